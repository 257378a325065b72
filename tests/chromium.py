"""Debian's chromium, headless, without a network: a real browser for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real import LIMIT

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip


def _missing() -> str | None:
    absent = [path.name for path in (CHROMIUM, DRIVER) if not path.exists()]
    return f"chromium or chromedriver is not installed: no {' and no '.join(absent)} in /usr/bin" if absent else None


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser with a profile of its own; where there is none the test is skipped, and fails in CI."""
    if reason := _missing():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)  # the driver is spoken to on localhost
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()
    shutil.rmtree(profile, ignore_errors=True)


def emulate(browser: Any, scheme: str, media: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def open_page(browser: Any, path: Path, width: int, scheme: str, media: str = "") -> None:
    """A page, loaded afresh, in a window of this width; the logs begin with it."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    emulate(browser, scheme, media)
    browser.get_log("browser"), browser.get_log("performance")  # of the page before
    browser.get(path.resolve().as_uri())


def wait(browser: Any, true: Callable[[], bool]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LIMIT, poll_frequency=0.05).until(lambda _: true())


def foreign_requests(browser: Any) -> list[str]:
    """Requests since the page was opened that are not for files of this machine."""
    sent = [entry["message"] for entry in browser.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    assert sent, "not even the page itself was asked for"
    return [text for text in sent if not any(f'"url":"{kind}:' in text for kind in ("file", "data", "blob"))]


FOCUS = """
const active = document.activeElement;
const visited = window.visited = window.visited || new Set();
const again = visited.has(active);
visited.add(active);
const near = [active, active.nextElementSibling, active.closest('label')].filter(e => e);
const seen = near.map(e => getComputedStyle(e)).some(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2);
const box = active.getBoundingClientRect();
return {
  what: again || active === document.body ? '' : active.outerHTML.slice(0, 120), seen,
  inside: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
};
"""


def stops(browser: Any, most: int = 400) -> list[dict[str, Any]]:
    """Where the tab key leads, from the top of the page: what has the focus, whether that is seen, and inside of the window."""
    from selenium.webdriver.common.keys import Keys

    found: list[dict[str, Any]] = []
    while len(found) < most:
        browser.switch_to.active_element.send_keys(Keys.TAB)
        stop = browser.execute_script(FOCUS)
        if not stop["what"]:
            break
        found.append(stop)
    return found
