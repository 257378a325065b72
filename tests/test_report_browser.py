"""The page in a real browser: Debian's chromium, headless, without a network."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, emulate, foreign_requests, open_page, stops, wait
from test_report import complete, complete_run, make_run, records_of

from milodo.report.html import write_report
from milodo.report.run import Run

CHARTS = ("chart-gap", "chart-consensus")

# What a chart is made of, as a plain object.
LOOK = """
const chart = document.getElementById(arguments[0]);
return {
  lines: chart.querySelectorAll('.scatterlayer .trace .js-line').length,
  drawn: [...chart.querySelectorAll('.scatterlayer .js-line')].every(p => (p.getAttribute('d') || '').length > 2),
  xtitle: chart.querySelector('.xtitle').textContent,
  shown: chart.data.filter(t => t.visible !== false).map(t => t.meta),
  names: chart.data.filter(t => t.name).map(t => t.name),
  text: getComputedStyle(chart.querySelector('.xtitle')).fill,
  colours: chart.data.filter(t => t.name).map(t => t.line.color),
  width: chart.getBoundingClientRect().width,
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milodo.report.html.write_figures", lambda run: [])  # the page links to them, and draws its own
        return write_report(Run(complete_run(tmp_path_factory.mktemp("runs") / "demo")))


@pytest.fixture
def visit(browser: Any, page: Path) -> Callable[..., Any]:
    """visit(width, scheme, media): the page, loaded afresh; returns the browser."""

    def load(width: int = 1200, scheme: str = "light", media: str = "", path: Path = page) -> Any:
        open_page(browser, path, width, scheme, media)
        return browser

    return load


def _look(browser: Any, chart: str) -> dict[str, Any]:
    return browser.execute_script(LOOK, chart)


def _find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def test_the_page_loads_without_complaint_and_without_a_network(visit):
    browser = visit()
    assert browser.get_log("browser") == []
    assert foreign_requests(browser) == []


def test_both_charts_draw_a_line_and_a_band_for_every_method(visit):
    browser = visit()
    for chart in CHARTS:
        seen = _look(browser, chart)
        assert seen["names"] == ["Prox-ED", "Prox-ED (published)", "DAPG", "Wild", "Cut short"]
        assert seen["lines"] == 10 and seen["drawn"]
        assert seen["xtitle"] == "iterations"


@pytest.mark.parametrize(
    ("key", "title"),
    [("rounds", "rounds of communication"), ("bytes", "bytes sent by all nodes"), ("seconds", "seconds spent in steps")],
)
def test_choosing_a_cost_changes_both_charts_and_the_table(visit, key, title):
    browser = visit()
    _find(browser, f"input[name=axis][value={key}]").click()
    wait(browser, lambda: all(_look(browser, chart)["xtitle"] == title for chart in CHARTS))
    shown = browser.execute_script(
        "return [...document.querySelectorAll('[data-panel]')].filter(p => p.offsetParent).map(p => p.dataset.panel)"
    )
    assert shown == [key]
    assert _find(browser, f"input[name=table-axis][value={key}]").is_selected()


def test_the_controls_work_from_the_keyboard(visit):
    browser = visit()
    _find(browser, "input[name=axis][value=k]").send_keys("\ue014")  # arrow right
    wait(browser, lambda: _look(browser, "chart-gap")["xtitle"] == "rounds of communication")
    _find(browser, "input[data-method='2']").send_keys(" ")
    wait(browser, lambda: 2 not in _look(browser, "chart-gap")["shown"])


def test_a_toggle_hides_line_and_band_in_both_charts_and_brings_them_back(visit):
    browser = visit()
    toggle = _find(browser, "input[data-method='0']")
    toggle.click()
    wait(browser, lambda: all(0 not in _look(browser, chart)["shown"] for chart in CHARTS))
    assert all(_look(browser, chart)["lines"] == 8 for chart in CHARTS)
    toggle.click()
    wait(browser, lambda: all(_look(browser, chart)["shown"].count(0) == 2 for chart in CHARTS))


def test_dark_and_light_recolour_page_and_charts_while_open(visit):
    browser = visit()
    background = "return getComputedStyle(document.body).backgroundColor"
    light, light_charts = browser.execute_script(background), [_look(browser, chart) for chart in CHARTS]
    emulate(browser, "dark")
    wait(browser, lambda: all(_look(browser, c)["text"] != old["text"] for c, old in zip(CHARTS, light_charts, strict=True)))
    assert browser.execute_script(background) != light
    for chart, old in zip(CHARTS, light_charts, strict=True):
        assert set(_look(browser, chart)["colours"]).isdisjoint(old["colours"])
    emulate(browser, "light")
    wait(browser, lambda: [_look(browser, c)["colours"] for c in CHARTS] == [old["colours"] for old in light_charts])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(visit, scheme):
    """Contrast of at least 4.5 to 1 (WCAG AA), computed from the colours in use."""
    browser = visit(scheme=scheme)
    worst = browser.execute_script("""
        const rgb = c => c.match(/[\\d.]+/g).map(Number);
        const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
        const light = c => { const [r, g, b] = rgb(c).map(v => linear(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
        const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                              if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
        let worst = [99, ''];
        const texts = 'h1,h2,h3,p,dt,dd,th,td,caption,figcaption,legend,summary,a,.note,.main,.chip,.segments span,.status b';
        for (const e of document.querySelectorAll(texts)) {
          if (!e.textContent.trim() || !e.offsetParent) continue;
          const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
          const ratio = (a + .05) / (b + .05);
          if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
        }
        return worst;""")
    assert worst[0] >= 4.5, worst


def test_a_phone_never_scrolls_sideways(visit):
    browser = visit(width=375)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    width, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert window == 375 and width <= window
    assert all(280 <= _look(browser, chart)["width"] <= 375 for chart in CHARTS)


def test_on_a_phone_no_first_column_hides_the_numbers(visit, tmp_path):
    """A real race with long names: wherever a table is scrolled to, its numbers have more than half of the width."""
    folder = shutil.copytree(Path(__file__).parent.parent / "docs" / "records" / "auto-ring10", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milodo.report.html.write_figures", lambda run: [])
        path = write_report(Run(folder))
    browser = visit(width=390, path=path)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    seen = browser.execute_script("""
        return [...document.querySelectorAll('.scroll')].filter(s => s.offsetParent).map(region => {
          const box = region.getBoundingClientRect();
          const heads = [...region.querySelectorAll('tbody th')].map(th => th.getBoundingClientRect().right - box.left);
          const row = region.querySelector('tbody tr'), first = row.querySelector('th ~ td.num');
          const sticky = row.querySelector('th') && getComputedStyle(row.querySelector('th')).position === 'sticky';
          const shown = !first || first.matches('.wide ~ td, .code ~ td') || first.getBoundingClientRect().right <= box.right;
          return {caption: region.querySelector('caption').textContent, share: Math.max(0, ...heads) / box.width, shown, sticky};
        });""")
    assert any(table["sticky"] for table in seen)
    assert [table for table in seen if table["share"] > 0.45 or not table["shown"]] == []


def test_of_many_methods_all_or_none_can_be_shown_and_second_entries_step_back(visit, tmp_path):
    names = ["prox-ed", "prox-ed (published)", "dapg", "odapg", "pg-extra", "prox-atc", "prox-dgd", "tree-apg", "apapc"]
    run = {"format": 1, "name": "many"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milodo.report.html.write_figures", lambda run: [])
        path = write_report(
            Run(make_run(tmp_path / "many", run, records_of({name: 0.01 * (k + 1) for k, name in enumerate(names)})))
        )
    browser = visit(path=path)
    widths = browser.execute_script(
        "return document.getElementById('chart-gap').data.filter(t => t.name).map(t => [t.line.width, t.mode])"
    )
    assert widths[1] == [1.25, "lines"] and {tuple(each) for k, each in enumerate(widths) if k != 1} == {(2, "lines+markers")}
    _find(browser, "button[data-show=none]").click()
    wait(browser, lambda: all(_look(browser, chart)["shown"] == [] for chart in CHARTS))
    _find(browser, "button[data-show=all]").click()
    wait(browser, lambda: all(len(set(_look(browser, chart)["shown"])) == len(names) for chart in CHARTS))


def test_every_control_has_a_name(visit):
    browser = visit()
    unnamed = (
        "return [...document.querySelectorAll('input')].filter(i => !i.labels.length || !i.labels[0].textContent.trim()).length"
    )
    assert browser.execute_script(unnamed) == 0
    assert browser.execute_script("return document.documentElement.lang") == "en"


def test_on_paper_controls_are_gone_and_everything_is_unfolded(visit):
    browser = visit()
    emulate(browser, "dark", media="print")
    wait(browser, lambda: browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)"))
    seen = browser.execute_script("""
        const shown = s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).length;
        return {controls: shown('.control'), tables: shown('[data-panel]'), legend: shown('.legend'),
                background: getComputedStyle(document.body).backgroundColor};""")
    assert seen == {"controls": 0, "tables": 4, "legend": 1, "background": "rgb(255, 255, 255)"}
    emulate(browser, "light")
    wait(browser, lambda: not browser.execute_script("return [...document.querySelectorAll('details')].some(d => d.open)"))


@pytest.mark.parametrize("width", [1200, 390])
def test_the_tab_key_reaches_everything_and_shows_where_it_is(visit, width):
    browser = visit(width=width)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    found = stops(browser)
    unseen = [stop["what"] for stop in found if not (stop["seen"] and stop["inside"])]
    assert unseen == []
    words = " ".join(stop["what"] for stop in found)
    assert found[0]["what"].startswith('<a class="skip"')
    assert all(part in words for part in ('name="axis"', 'data-method="4"', "<summary>", 'role="region"', "<pre tabindex"))


def test_the_skip_link_leads_past_the_head_of_the_page(visit):
    browser = visit()
    _find(browser, "a.skip").send_keys("\ue007")  # enter
    assert browser.execute_script("return document.activeElement.id") == "race"


def test_charts_have_their_numbers_beside_them(visit):
    browser = visit()
    for chart in CHARTS:
        described = _find(browser, f"#{chart}").get_attribute("aria-describedby")
        assert "ends at" in _find(browser, f"#{described}").text
    _find(browser, "details.numbers summary").send_keys("\ue007")
    assert "10⁻¹⁵" in _find(browser, "details.numbers table").text


def test_on_paper_no_table_is_cut_off(visit, tmp_path):
    """A real race: four gaps, long names; A4 less its margins is 180 mm, 680 CSS pixels."""
    folder = shutil.copytree(Path(__file__).parent.parent / "docs" / "records" / "auto-ring10", tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milodo.report.html.write_figures", lambda run: [])
        path = write_report(Run(folder))
    browser = visit(width=680, path=path)
    emulate(browser, "light", media="print")
    wait(browser, lambda: browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)"))
    cut = "return [...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > innerWidth + 1)"
    assert browser.execute_script(f"{cut}.map(t => t.caption.textContent)") == []
    rows = browser.execute_script(
        "return [...document.querySelectorAll('.grid')].map(t => [...t.tBodies[0].rows].filter(r => r.offsetParent).length)"
    )
    assert rows and max(rows) <= 13  # of 132 candidates


def test_it_prints(visit):
    pdf = visit().execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")


@pytest.mark.usefixtures("undrawn")
def test_a_hostile_label_is_drawn_as_text(visit, tmp_path):
    hostile = "</script><img src=x onerror=window.hit=1><b>bold</b>"
    run = complete() | {"title": hostile, "baseline": hostile}
    run["methods"] = {hostile: {"label": hostile}}
    path = write_report(Run(make_run(tmp_path / "hostile", run, records_of({hostile: 0.01}))))
    browser = visit(path=path)
    assert browser.execute_script("return window.hit") is None
    assert browser.get_log("browser") == []
    assert _find(browser, "h1").text == hostile
    assert hostile in _find(browser, ".chip").text
