# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real headless Chromium, driven through WebDriver: clicks, keys, filter,
themes. The page may ask for nothing, and Chromium has no network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.report import html, report
from ckptfmt.report.collect import checkpoint_data
from ckptfmt.report.measuring import Budget

webdriver = pytest.importorskip("selenium.webdriver", reason="NOT RUN: needs selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="NOT RUN: needs chromium and its driver"
)

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=alert(1)>"

SHORT = """
const $ = (id) => document.getElementById(id), seen = {};
const all = (selector) => [...document.querySelectorAll(selector)];
const shown = () => all('#rows td:first-child > *').map((one) => one.getAttribute('aria-label'));
const row = (end) => all('#rows button[aria-label]')
  .find((one) => one.getAttribute('aria-label').endsWith(end));
const cells = () => all('#map button').map((one) => one.getAttribute('aria-label'));
const press = (end) => { row(end).focus(); row(end).click(); };
const type = (text) => { $('filter').value = text; $('filter').dispatchEvent(new Event('input')); };
const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
"""

# The contrast of every text with what is behind it, as WCAG 2 computes it; the lowest is returned.
CONTRAST = """
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (color) => parts(color).slice(0, 3).map((one) => one / 255)
  .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const color = getComputedStyle(node).backgroundColor;
    if ((parts(color)[3] ?? 1) > 0) return color;
  }
};
const texts = all('body *').filter((one) => one.checkVisibility() && !one.closest('svg, script') &&
  [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
const contrasts = texts.map((one) => {
  const pair = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
  return [(pair[0] + 0.05) / (pair[1] + 0.05), one.outerHTML.slice(0, 100)];
}).sort((a, b) => a[0] - b[0]);
seen.texts = texts.length; seen.contrast = contrasts[0];
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """A page that is open in the browser."""

    def __init__(self, browser: Any, file: Path, size: tuple[int, int] = (1280, 900)) -> None:
        self.browser = browser
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(file.as_uri())

    def act(self, actions: str) -> dict[str, Any]:
        """Return what the actions put into `seen`; no action may fail or ask the network."""
        seen: dict[str, Any] = self.browser.execute_script(f"{SHORT}{actions};return seen;")
        asked = self.browser.execute_script(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
            ".filter((name) => !name.startsWith('data:'));"
        )
        assert asked == [] and self.browser.get_log("browser") == []
        return seen

    def keys(self, *keys: str) -> None:
        chain = webdriver.ActionChains(self.browser)
        for key in keys:
            chain.send_keys(key)
        chain.perform()

    @property
    def focused(self) -> str:
        """The accessible name of the element that has the focus."""
        return str(self.browser.switch_to.active_element.accessible_name)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    with ckptfmt.Writer(directory / "m") as writer:
        for layer in range(3):
            writer.add(f"encoder/layer_{layer}/kernel", values.reshape(8, 8))
            writer.add(f"encoder/layer_{layer}/kernel/Adam", values.reshape(8, 8) ** 2)
        writer.add("head/bias", np.array([1.0, np.nan]))
        writer.add(HOSTILE, np.ones(3))
        for row in range(2):
            writer.add_slice("table", np.ones((2, 4)), shape=(4, 4), offset=(2 * row, 0))
    report(directory / "m", directory / "r.html")
    return directory / "r.html"


def test_it_shows_everything(page: Path, browser: Any) -> None:
    seen = Page(browser, page).act(
        "seen.names = shown(); seen.cells = cells(); seen.count = $('count').textContent;"
        "seen.warnings = $('warnings').textContent; seen.wide = wide();"
        "seen.health = $('health').textContent;"
        "seen.share = $('share').getAttribute('aria-label');"
    )
    assert len(seen["names"]) == 9 and HOSTILE in seen["names"]
    assert browser.title.startswith("m - ")
    assert seen["count"] == "9 of 9 tensors"
    assert seen["warnings"] == "head/bias: 1 NaN"
    assert "Verified: every byte of 9 tensors" in seen["health"]
    assert "9 of 9 tensors of numbers read whole" in seen["health"]
    assert "weights" in seen["share"] and "optimizer" in seen["share"]
    assert any(label.startswith("layer_0/kernel/, ") for label in seen["cells"]), (
        "below one large module"
    )
    assert seen["wide"] <= 0, "nothing is cut at the right"


@pytest.mark.parametrize("size", [(1280, 900), (500, 900), (390, 844)])
def test_it_fits_the_window(size: tuple[int, int], page: Path, browser: Any) -> None:
    opened = Page(browser, page, size)
    seen = opened.act("document.querySelector('#rows td button').click(); seen.wide = wide();")
    assert seen["wide"] <= 0


def test_filter_and_sort(page: Path, browser: Any) -> None:
    seen = Page(browser, page).act(
        "type('*/kernel'); seen.glob = shown(); type('/layer_[01].*Adam/'); seen.regex = shown();"
        "type('bias'); seen.text = shown(); type('/(/'); seen.wrong = $('count').textContent;"
        "seen.invalid = $('filter').getAttribute('aria-invalid'); type('');"
        "const head = all('#rows th button').find((one) => one.textContent === 'bytes');"
        "head.click(); head.click(); seen.largest = shown()[0];"
        "seen.sorted = head.parentNode.getAttribute('aria-sort');"
    )
    assert seen["glob"] == [f"encoder/layer_{layer}/kernel" for layer in range(3)]
    assert seen["regex"] == [f"encoder/layer_{layer}/kernel/Adam" for layer in range(2)]
    assert seen["text"] == ["head/bias"]
    assert (seen["wrong"], seen["invalid"]) == ("not a regular expression", "true")
    assert seen["largest"].startswith("encoder/layer_") and seen["sorted"] == "descending"


def test_a_click_into_the_map(page: Path, browser: Any) -> None:
    seen = Page(browser, page).act(
        "$('crumbs').querySelector('button').click(); const cell = all('#map button')"
        ".find((one) => one.getAttribute('aria-label').startsWith('encoder/'));"
        "cell.click(); seen.crumbs = $('crumbs').textContent; seen.cells = cells();"
        "seen.focus = document.activeElement.parentNode.id;"
        "$('crumbs').querySelector('button').click(); seen.back = $('crumbs').textContent;"
    )
    assert seen["crumbs"].startswith("all / encoder 1.5 KiB, 6 tensors")
    assert sum(label.startswith("layer_") for label in seen["cells"]) == 3
    assert seen["focus"] == "map"
    assert "weights 50%, optimizer 50%" in seen["cells"][0]
    assert seen["back"].startswith("all ") and "9 tensors" in seen["back"]


def test_a_tensor(page: Path, browser: Any) -> None:
    seen = Page(browser, page).act(
        "seen.hidden = $('detail').hidden;"
        "press('table');"
        "seen.title2 = $('h-detail').textContent; seen.facts = $('facts').textContent;"
        "seen.slices = document.querySelectorAll('#facts rect.slice').length;"
        "press('_0/kernel');"
        "seen.bars = document.querySelectorAll('#facts rect.bar').length;"
        "document.querySelector('#warnings button').click(); seen.warned = $('facts').textContent;"
    )
    assert seen["hidden"] is True and seen["title2"] == "table"
    assert "2 slices" in seen["facts"] and seen["slices"] == 2
    assert seen["bars"] == 16
    assert "1 NaN" in seen["warned"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes(theme: str, page: Path, browser: Any) -> None:
    opened = Page(browser, page)
    scheme = "seen.scheme = getComputedStyle(document.documentElement).colorScheme;"
    for _ in range(2):  # it begins with the system's
        if opened.act(scheme)["scheme"] != theme:
            opened.act("$('theme').click();")
    seen = opened.act(f"press('_0/kernel'); {scheme} {CONTRAST}")
    assert seen["scheme"] == theme and seen["texts"] > 50
    assert seen["contrast"][0] >= 4.5, seen["contrast"]


def test_keyboard(page: Path, browser: Any) -> None:
    opened = Page(browser, page)
    keys = webdriver.Keys
    opened.keys(keys.TAB)
    assert opened.focused == "Filter", "the first stop"
    reached = []
    for _ in range(40):
        opened.keys(keys.TAB)
        reached.append(opened.focused)
        if reached[-1] == "name":
            break
    assert reached[0] == "Dark" and reached[1] == "head/bias" and reached[-1] == "name"
    assert sum("KiB" in name or " B, " in name for name in reached) == 1, "one stop in the map"
    assert all(reached), "everything that takes the focus has a name"
    opened.act("row('head/bias').focus()")
    opened.keys(keys.ENTER)
    seen = opened.act(
        "seen.title = $('h-detail').textContent; const box = $('detail').getBoundingClientRect();"
        "seen.inside = box.top >= 0 && box.bottom <= innerHeight && !$('detail').hidden;"
        "seen.hash = location.hash;"
    )
    assert (seen["title"], seen["inside"]) == ("head/bias", True), "the details are in view"
    assert opened.focused == "head/bias", "the focus stays"
    assert seen["hash"] == "#head%2Fbias"
    opened.keys(keys.ESCAPE)
    assert opened.act("seen.hidden = $('detail').hidden;")["hidden"]
    assert opened.focused == "head/bias"


def test_arrow_keys_in_the_map(page: Path, browser: Any) -> None:
    opened = Page(browser, page)
    opened.act("$('map').firstChild.focus()")
    first = opened.focused
    opened.keys(webdriver.Keys.ARROW_RIGHT)
    assert opened.focused != first
    opened.keys(webdriver.Keys.ARROW_LEFT)
    assert opened.focused == first


def test_a_link_to_a_tensor(page: Path, browser: Any) -> None:
    opened = Page(browser, page)
    browser.get("about:blank")
    browser.get(page.as_uri() + "#head%2Fbias")
    assert opened.act("seen.title = $('h-detail').textContent;")["title"] == "head/bias"
    browser.get("about:blank")


def test_comparison(page: Path, browser: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    many = {f"many/{number}": np.ones(2) for number in range(1500)}
    ckptfmt.save(tmp_path / "before", many | {"gone": np.ones(1), "same": np.ones(1)})
    changed = {name: np.full(2, 1.0 + place) for place, name in enumerate(many, 1)}
    ckptfmt.save(other, changed | {"new": np.ones(2), "same": np.ones(1)}, metadata={"step": 2})
    report(other, tmp_path / "c.html", before=tmp_path / "before")
    seen = Page(browser, tmp_path / "c.html").act(
        "seen.compared = $('compared').textContent; seen.wide = wide();"
        "const names = () => all('#changes td:first-child > *')"
        ".map((one) => one.getAttribute('aria-label'));"
        "seen.first = names().slice(0, 2); seen.metadata = $('metadata').textContent;"
        "all('#kinds button').find((one) => one.textContent === 'changed').click();"
        "seen.largest = names()[0];"
        "const head = all('#changes th button').find((one) => one.textContent === 'largest');"
        "head.click(); seen.smallest = names()[0]; type('many/77'); seen.filtered = names();"
        "all('#colours button')[0].click(); seen.legend = $('colours').textContent;"
        "seen.cells = cells();"
    )
    assert seen["compared"] == (
        "1 removed, 1 added, 1,500 changed, 1 same (1 not read: equal stored checksums)"
    )
    assert seen["first"] == ["gone", "new"] and seen["wide"] <= 0
    assert "step" in seen["metadata"] and "2" in seen["metadata"]
    assert (seen["largest"], seen["smallest"]) == ("many/1499", "many/0")
    assert seen["filtered"] == ["many/77", *(f"many/77{last}" for last in range(10))]
    assert seen["legend"].startswith("addedchangedsame")
    assert any("changed 100%" in label for label in seen["cells"])


def test_numbers_are_not_rounded_to_others(tmp_path: Path, browser: Any) -> None:
    arrays = {"c": np.array([3 + 4j]), "mean": np.array([1234998, 1234999])}
    arrays |= {"step": np.float64(1234567.25), "big": np.uint64(2**64 - 1)}
    np.savez(tmp_path / "m.npz", **arrays)
    report(tmp_path / "m.npz", tmp_path / "r.html")
    seen = Page(browser, tmp_path / "r.html").act(
        "seen.cells = all('#rows td.n').map((one) => one.textContent);"
        "seen.heads = all('#rows th').map((one) => one.textContent);"
        "seen.cut = all('#rows td + td').filter((one) => one.scrollWidth > one.clientWidth)"
        ".map((one) => one.textContent);"
        "press('c'); seen.facts = $('facts').textContent;"
    )
    assert {"|x| 5", "1234998.5", "1234567.3", "18446744073709551615"} <= set(seen["cells"])
    assert seen["cut"] == []
    assert "file" not in seen["heads"] and "data file" not in seen["facts"]


def test_what_was_sampled_is_marked(tmp_path: Path, browser: Any) -> None:
    ckptfmt.save(tmp_path / "m", {"a": np.ones(1 << 19), "b": np.ones(1 << 19)})
    with ckptfmt.open(tmp_path / "m") as reader:
        data = checkpoint_data(reader, Budget(None, 3 << 20))
    (tmp_path / "r.html").write_text(html.page(data), encoding="utf-8")
    seen = Page(browser, tmp_path / "r.html").act(
        "seen.health = $('health').textContent; seen.cells = all('#rows td.n')"
        ".map((one) => one.textContent); press('b'); seen.facts = $('facts').textContent;"
    )
    assert "0 of 2 tensors of numbers read whole, 2 of 2 sampled (~)" in seen["health"]
    assert "Verified: 0 of 2 tensors" in seen["health"] and "~1" in seen["cells"]
    assert "a sample: 131,072 of 524,288 elements" in seen["facts"]


def test_five_thousand_tensors(tmp_path: Path, browser: Any) -> None:
    names = [f"encoder/layer_{n // 4}/part_{n % 4}" for n in range(5000)]
    ckptfmt.save(tmp_path / "m", {name: np.ones((4, 4), np.float32) for name in names})
    output = tmp_path / "r.html"
    report(tmp_path / "m", output)
    assert output.stat().st_size < 5_000_000
    seen = Page(browser, output).act(
        "seen.rows = shown().length; $('rows').scrollTop = 26 * 4000; "
        "const began = performance.now(); type('*_3'); document.body.offsetHeight;"
        "seen.filter = performance.now() - began;"
        "seen.count = $('count').textContent;"
    )
    assert seen["rows"] < 100, "only the rows in view are in the page"
    assert seen["count"] == "1,250 of 5,000 tensors"
    paint = browser.execute_async_script(
        "const [done] = arguments; requestAnimationFrame(() => setTimeout(() => done("
        "performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)[0])));"
    )
    size = output.stat().st_size
    print(f"5,000 tensors: {size:,} B, first paint {paint:.0f} ms, filter {seen['filter']:.0f} ms")
