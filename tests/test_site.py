"""The documentation site, built without a warning and opened in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pytest
from chromium import chromium, foreign_requests, open_page, stops, wait
from filelock import FileLock
from real import LIMIT, environment

import milodo

ROOT = Path(__file__).parent.parent
PAGES = (
    "index",
    "choosing",
    "gallery",
    "results",
    "equations",
    "tutorials/researcher",
    "reference/algorithms",
    "reference/commands",
)

pytest.importorskip("furo", reason="the site needs pip install 'milodo[docs]'")
pytest.importorskip("myst_parser", reason="the site needs pip install 'milodo[docs]'")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds; once, however many processes run tests."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in environment() else shared
    out = shared / "site"
    with FileLock(shared / "site.lock"):
        if not (out / "index.html").exists():
            words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", out]
            done = subprocess.run(list(map(str, words)), env=environment(), capture_output=True, text=True, timeout=2 * LIMIT)
            assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


class Page(HTMLParser):
    """Where a page's links lead, what it loads, and the ids it has."""

    LOADED: ClassVar = {**dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src"), "link": "href"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.pictures: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "img":
            self.pictures.append(given)
        if (name := self.LOADED.get(tag)) and given.get(name):
            self.loads.append(str(given[name]))


@cache
def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, read(path)


def test_no_page_loads_anything_from_elsewhere(site):
    away = [(path.name, load) for path, page in pages(site) for load in page.loads if urlsplit(load).scheme not in ("", "data")]
    assert away == [] and not [load for _, page in pages(site) for load in page.loads if load.startswith("//")]
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")), style.name


def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site):
    """Links to code become pages with the line marked; links between pages keep their headings."""
    broken = []
    for path, page in pages(site):
        for link in {link for link in page.links if not urlsplit(link).scheme}:
            target, fragment = (path.parent / unquote(urlsplit(link).path)).resolve(), unquote(urlsplit(link).fragment)
            target = path if not urlsplit(link).path else target
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (fragment and target.suffix == ".html" and fragment not in read(target).ids):
                broken.append((path.relative_to(site).as_posix(), link))
    assert broken == []
    assert any("source/milodo/algorithms/prox_ed.py.html#L" in link for link in read(site / "equations.html").links)


def test_every_public_name_and_every_command_is_in_the_reference(site):
    ids = {name for path in (site / "reference").glob("*.html") for name in read(path).ids}
    assert {f"milodo.{name}" for name in milodo.__all__} <= ids
    from test_cli import NAMES

    assert {f"milodo-{name}" for name in NAMES} <= ids


def test_formulas_are_drawn_without_a_script(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in text
    assert not [load for load in read(site / "index.html").loads if "math" in load.lower() or "katex" in load.lower()]


def test_every_example_is_in_the_gallery_with_a_picture_and_words_for_it():
    shown = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for example in sorted((ROOT / "examples").glob("*.py")):
        picture = ROOT / "docs" / "gallery" / f"{example.stem}.png"
        assert f"(../examples/{example.name})" in shown and picture.exists(), f"the gallery lacks {example.name}, or its picture"
        assert re.search(rf"!\[[^]]{{40,}}\]\(gallery/{example.stem}\.png\)", shown), f"no words for {picture.name}"


def test_every_picture_has_words(site):
    assert [(path.name, p) for path, page in pages(site) for p in page.pictures if not p.get("alt")] == []


def test_every_method_number_in_the_decision_table_has_a_page_that_says_it():
    """Figures of docs/choosing.md are copied from other pages; here they are looked up there."""
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    sources = " ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("plus", "results", "training"))
    sources += (ROOT / "README.md").read_text(encoding="utf-8")
    said = set(re.findall(r"\d[\d,.]*\d (?:MB|kB|rounds|iterations)|\d[\d,.]*\d(?= to \d[\d,.]*\d (?:MB|s\b))", text))
    assert len(said) > 15
    known = sources.replace("\u202f", " ")
    missing = [figure for figure in said if not re.search(rf"(?<![\d,.]){re.escape(figure.split()[0])}(?![\d]|,\d)", known)]
    assert missing == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pages_fit_phones_and_desks_without_complaint_and_without_a_network(browser, site, width, scheme):
    grounds = set()
    for name in PAGES:
        open_page(browser, site / f"{name}.html", width, scheme)
        assert browser.get_log("browser") == [], name
        assert foreign_requests(browser) == [], name
        wide, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert window == width and wide <= window, name
        grounds.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    light = [sum(map(int, re.findall(r"\d+", ground)[:3])) / 3 for ground in grounds]
    assert max(light) < 60 if scheme == "dark" else min(light) > 195


def test_the_keyboard_alone_reads_a_page(browser, site):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, site / "choosing.html", 1280, "light")
    found = stops(browser, most=60)
    assert "Skip to content" in found[0]["what"]
    assert len(found) > 30
    assert [stop["what"] for stop in found if not stop["seen"]] == []
    open_page(browser, site / "choosing.html", 1280, "light")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, lambda: browser.current_url.endswith("#furo-main-content"))
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.execute_script("return document.getElementById('furo-main-content').contains(document.activeElement)")
