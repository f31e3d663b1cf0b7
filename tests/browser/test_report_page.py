# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real headless Chromium, driven through WebDriver: clicks, keys, filter,
themes. The page may ask for nothing, and Chromium has no network."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip
from support.reports import measured

import ckptfmt
from ckptfmt.report import html, report, report_series
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
const named = (box) => all(`${box} td:first-child > *`).map((one) => one.title);
const shown = () => named('#rows');
const row = (end) => all('#rows button[aria-label]')
  .find((one) => one.getAttribute('aria-label').endsWith(end));
const cells = () => all('#map button').map((one) => one.getAttribute('aria-label'));
const press = (end) => { row(end).focus(); row(end).click(); };
const type = (text) => { $('filter').value = text; $('filter').dispatchEvent(new Event('input')); };
const inView = (node) => { const box = node.getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight && box.width > 0; };
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
    assert seen["warnings"] == "head/bias: 1 NaN, the first at [1]"
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
    for _ in range(60):
        opened.keys(keys.TAB)
        reached.append(opened.focused)
        if reached[-1] == "name":
            break
    assert reached[:3] == ["CSV", "JSON", "Dark"] and reached[-1] == "name"
    assert "head/bias" in reached
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


LAYERS, TRAINED = 8, ("attention/kernel", "mlp/kernel", "mlp/bias")


def trained(step: int) -> dict[str, Any]:
    """A model after some steps, with what Adam keeps of it."""
    rng, later = np.random.default_rng(0), np.random.default_rng(step)
    values: dict[str, Any] = {"step": np.int64(step)}
    for layer in range(LAYERS):
        for name in TRAINED:
            shape = (24, 16) if name.endswith("kernel") else (16,)
            key = f"block_{layer}/{name}"
            moved = later.normal(0, 0.01 * step, shape)
            values[key] = (rng.normal(0, 0.5 + layer, shape) + moved).astype(np.float32)
            values[f"{key}/Adam"] = moved.astype(np.float32)
    return values


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints `a` and `b`, and `b.html` from one to the other: block_5 is stuck, block_2 and
    block_6 are exchanged, and values are planted."""
    directory = tmp_path_factory.mktemp("two")
    before, after = trained(1), trained(2)
    for name in TRAINED:
        after[f"block_5/{name}"] = before[f"block_5/{name}"]
        one, other = f"block_2/{name}", f"block_6/{name}"
        after[one], after[other] = after[other], after[one]
    after["block_1/mlp/kernel"][3, 7] = np.nan
    after["block_3/mlp/kernel"][:, 5] = 0
    after["block_7/attention/kernel"] *= 1e5
    before |= {"gone": np.ones(1), "same": np.ones(2)}
    after |= {"new": np.ones(2), "same": np.ones(2)}
    ckptfmt.save(directory / "a", before, metadata={"lr": 0.1})
    ckptfmt.save(directory / "b", after, metadata={"lr": 0.2})
    report(directory / "b", directory / "b.html", before=directory / "a")
    report(directory / "b", directory / "one.html")
    return directory


def test_faults_are_on_the_first_screen(two: Path, browser: Any) -> None:
    seen = Page(browser, two / "one.html").act(
        "seen.items = all('#warnings li').filter(inView).map((one) => one.textContent);"
    )
    nan, column, large = seen["items"]
    assert nan.startswith("block_1/mlp/kernel: 1 NaN") and "[3, 7]" in nan
    assert column.startswith("block_3/mlp/kernel: 1 of 16 columns are zero")
    assert large.startswith("block_7/attention/kernel: ")
    opened = Page(browser, two / "b.html").act(
        "seen.items = all('#noticed li').filter(inView).map((one) => one.textContent);"
    )
    still, exchanged = opened["items"]
    assert "block_5" in still and "block_2" not in still
    assert "block_2" in exchanged and "block_6" in exchanged


def cells_of(opened: Page, box: str, name: str) -> dict[str, str]:
    """The texts of a row by the titles of the columns."""
    seen = opened.act(
        f"const at = all('{box} tbody tr').find((one) => one.querySelector('td > *').title === "
        f"'{name}'); seen.cells = [...at.children].map((one) => one.textContent);"
        f"seen.heads = all('{box} th').map((one) => one.textContent);"
    )
    return dict(zip(seen["heads"], seen["cells"], strict=True))


def number_in(text: str) -> float:
    return float(text.replace(",", "").replace("inf", "Infinity"))


def test_numbers_are_those_of_numpy(two: Path, browser: Any) -> None:
    before, after = ckptfmt.load(two / "a"), ckptfmt.load(two / "b")
    names = [name for name in after if name.startswith("block_") and "Adam" not in name]
    opened, compared = 0, 0
    page = Page(browser, two / "b.html")
    page.act("type('block_')")
    for name in names[:10]:
        page.act(f"type('/^{name.replace('/', '.')}$/')")
        value = after[name].astype(np.float64)
        finite = value[np.isfinite(value)]
        cells = cells_of(page, "#rows", name)
        expected = {"norm": np.linalg.norm(finite), "mean": finite.mean(), "std": finite.std()}
        expected |= {"min": finite.min(), "max": finite.max()}
        for title, exact in expected.items():
            assert number_in(cells[title]) == pytest.approx(exact, rel=1e-3), (name, title)
        opened += 1
        old, change = before[name].astype(np.float64), value - before[name]
        change = change[np.isfinite(change)]
        if change.any():
            row = cells_of(page, "#changes", name)
            ratio = np.linalg.norm(change) / np.linalg.norm(old)
            assert number_in(row["change / norm"]) == pytest.approx(ratio, rel=1e-3)
            assert number_in(row["norm before"]) == pytest.approx(np.linalg.norm(old), rel=1e-3)
            compared += 1
    assert (opened, compared) == (10, 10)
    page.act("type('')")
    for layer in (0, 2, 4):
        part = f"block_{layer}"
        every = np.concatenate([after[one].ravel() for one in names if part in one]).astype(float)
        cells = cells_of(page, "#layers", part)
        assert number_in(cells["norm"]) == pytest.approx(np.linalg.norm(every), rel=1e-3)
        assert number_in(cells["std"]) == pytest.approx(every.std(), rel=1e-3)
        assert number_in(cells["max"]) == pytest.approx(every.max(), rel=1e-3)


def test_comparison(two: Path, browser: Any) -> None:
    seen = Page(browser, two / "b.html").act(
        "seen.compared = $('compared').textContent; seen.wide = wide();"
        "seen.first = named('#changes').slice(0, 2); seen.metadata = $('metadata').textContent;"
        "all('#kinds button').find((one) => one.textContent === 'changed').click();"
        "seen.changed = named('#changes');"
        "type('step'); seen.step = $('changes').textContent;"
        "type('block_2/'); seen.filtered = named('#changes');"
        "type(''); all('#colours button')[0].click(); seen.legend = $('colours').textContent;"
        "seen.colours = new Set(all('#map button').map((one) => getComputedStyle(one)"
        ".backgroundColor)).size; seen.bars = all('#layer-chart g').length;"
    )
    counts = "1 removed, 1 added, 46 changed, 4 same"
    assert seen["compared"] == f"{counts} (4 not read: equal stored checksums)"
    assert seen["first"] == ["gone", "new"] and seen["wide"] <= 0
    assert "lr" in seen["metadata"] and "0.2" in seen["metadata"]
    assert "1 → 2" in seen["step"]
    assert "Adam" not in "".join(seen["changed"][:20]), "weights come first"
    assert sorted(seen["filtered"])[0].startswith("block_2/")
    assert all("block_2/" in name for name in seen["filtered"])
    assert "changed, below" in seen["legend"] and "same" in seen["legend"]
    assert seen["colours"] >= 4, "layers differ though nearly everything changed"
    assert seen["bars"] == 3


def test_what_could_not_be_compared(tmp_path: Path, browser: Any) -> None:
    values = np.ones((40, 40), np.float32)
    broken = np.full_like(values, np.nan)
    ckptfmt.save(tmp_path / "a", {"x/w": values, "y/w": values, "z/w": np.float32(1)})
    new = {"x/w": broken, "y/w": values + 1, "z/w": np.float32(np.nan)}
    ckptfmt.save(tmp_path / "b", new)
    flip(tmp_path / "a.data-00000-of-00001", 6400)
    report(tmp_path / "b", tmp_path / "b.html", before=tmp_path / "a")
    report_series([tmp_path / "b"], tmp_path / "s.html", seconds=0)
    report_series([tmp_path / "a", tmp_path / "b"], tmp_path / "t.html")
    seen = Page(browser, tmp_path / "b.html").act(
        "seen.layers = $('layers').textContent; seen.first = named('#changes');"
        "seen.health = $('warnings').textContent; all('#colours button')[0].click();"
        "seen.legend = $('colours').textContent;"
    )
    assert seen["first"] == ["y/w", "x/w", "z/w"], "unreadable, then new NaN"
    assert "same" not in seen["layers"] and "not compared" in seen["layers"]
    assert "[]" not in seen["health"] and "undefined" not in seen["legend"]
    seen = Page(browser, tmp_path / "s.html").act("seen.gaps = $('series-gaps').textContent;")
    assert "1 checkpoint not read in full" in seen["gaps"]
    seen = Page(browser, tmp_path / "t.html").act("seen.gaps = $('series-gaps').textContent;")
    assert f"NaN or infinity in z, the first in {tmp_path / 'b'}" in seen["gaps"]


@pytest.mark.parametrize("size", [(400, 844), (1280, 900), (1920, 1000)])
def test_what_a_row_opens(size: tuple[int, int], two: Path, browser: Any) -> None:
    seen = Page(browser, two / "b.html", size).act(
        "const cell = all('#changes tbody tr').find((one) => one.textContent.includes('block_2'));"
        "cell.scrollIntoView({block: 'center'}); cell.children[1].click();"
        "seen.title = $('h-detail').textContent; seen.facts = $('facts').textContent;"
        "seen.outline = all('#facts path.outline').length; seen.bars = all('#facts .bar').length;"
        "const box = $('detail').getBoundingClientRect();"
        "seen.beside = box.left > 0; seen.inside = box.right <= innerWidth;"
        "seen.wide = wide(); seen.covered = cell.isConnected && box.top < innerHeight / 3;"
    )
    assert seen["title"].startswith("block_2/") and "norm before" in seen["facts"]
    assert (seen["outline"], seen["bars"]) == (1, 16)
    assert seen["beside"] == (size[0] >= 1400) and seen["inside"]
    assert seen["wide"] <= 0


def test_the_filter_acts_on_all(two: Path, browser: Any) -> None:
    seen = Page(browser, two / "b.html").act(
        "type('block_4'); seen.cells = cells(); seen.layers = named('#layers');"
        "seen.changes = named('#changes'); seen.rows = shown();"
        "type('no such'); seen.map = $('s-map').hidden; type('');"
        "all('#layers td button')[0].click(); seen.filter = $('filter').value;"
    )
    assert seen["cells"] and seen["map"] is True
    assert {name.split("/")[0] for name in [*seen["layers"], *seen["changes"]]} == {"block_4"}
    assert len(seen["rows"]) == 6 and seen["filter"].startswith("block_")


def test_files_of_what_is_shown(two: Path, browser: Any) -> None:
    page = Page(browser, two / "one.html")
    page.act(
        "window.files = []; URL.createObjectURL = (blob) => { window.files.push(blob);"
        "return '#'; }; type('block_4/mlp'); $('csv').click(); $('json').click();"
    )
    table, document = browser.execute_async_script(
        "const [done] = arguments; Promise.all(files.map((one) => one.text())).then(done);"
    )
    values = ckptfmt.load(two / "b")
    listed = {row["name"]: row for row in csv.DictReader(io.StringIO(table))}
    assert len(listed) == 4
    for name, row in listed.items():
        exact = values[name].astype(np.float64)
        assert float(row["norm"]) == pytest.approx(np.linalg.norm(exact), rel=1e-12)
        assert row["shape"] == "x".join(map(str, exact.shape))
    assert {one["name"] for one in json.loads(document)["tensors"]} == set(listed)


def test_a_name_is_copied(two: Path, browser: Any) -> None:
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", allowed)
    page = Page(browser, two / "one.html")
    page.act("type('block_4'); press('block_4/mlp/kernel'); $('copy').focus();")
    page.keys(webdriver.Keys.ENTER)
    copied = browser.execute_async_script(
        "setTimeout(() => navigator.clipboard.readText().then(arguments[0]), 100);"
    )
    assert copied == "block_4/mlp/kernel"
    assert page.act("seen.text = $('copy').textContent;")["text"] == "Copied"


def test_damage_in_the_map(tmp_path: Path, browser: Any) -> None:
    ckptfmt.save(tmp_path / "m", {f"layer_{n}/w": np.full(1000, n + 1.0) for n in range(4)})
    flip(tmp_path / "m.data-00000-of-00001", 100)
    report(tmp_path / "m", tmp_path / "r.html")
    seen = Page(browser, tmp_path / "r.html").act(
        "seen.damaged = all('#map .damaged').map((one) => one.textContent);"
        "seen.labels = cells().filter((one) => one.includes('1 damaged'));"
        "seen.health = $('warnings').textContent + $('health').textContent;"
    )
    assert len(seen["damaged"]) == len(seen["labels"]) == 1
    assert seen["damaged"][0].startswith("! layer_0") and "layer_0/w" in seen["health"]


def test_print(two: Path, browser: Any) -> None:
    seen = Page(browser, two / "b.html").act(
        "const rows = () => all('#rows tbody tr:not(.space)').length; seen.screen = rows();"
        "dispatchEvent(new Event('beforeprint')); seen.paper = rows();"
        "seen.map = $('map').clientWidth; dispatchEvent(new Event('afterprint'));"
        "seen.after = rows(); seen.adjust = [...document.styleSheets[0].cssRules]"
        ".some((one) => one.cssText.includes('print-color-adjust: exact'));"
    )
    assert seen["paper"] == 51 and seen["screen"] == seen["after"] < 51
    assert seen["map"] == 700 and seen["adjust"]


@pytest.mark.parametrize("size", [(400, 844), (1280, 900), (1920, 1000)])
@pytest.mark.parametrize("which", ["b", "one"])
def test_accessibility(which: str, size: tuple[int, int], two: Path, browser: Any) -> None:
    axe = pytest.importorskip("axe_core_python", reason="NOT RUN: needs axe-core-python")
    page = Page(browser, two / f"{which}.html", size)
    page.act("type('block_4'); press('block_4/mlp/kernel')")
    browser.execute_script(files(axe).joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = browser.execute_async_script("axe.run().then(arguments[0]);")
    assert len(found["passes"]) > 30
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


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
        "press('big'); seen.exact = $('facts').textContent;"
        "press('c'); seen.facts = $('facts').textContent;"
    )
    assert {"|x| 5", "1234998.5", "1234567.3", "1.845e+19"} <= set(seen["cells"])
    assert seen["cut"] == [] and "18446744073709551615" in seen["exact"]
    assert "file" not in seen["heads"] and "data file" not in seen["facts"]


def test_what_was_sampled_is_marked(tmp_path: Path, browser: Any) -> None:
    ckptfmt.save(tmp_path / "m", {"a": np.ones(1 << 19), "b": np.ones(1 << 19)})
    data = measured(tmp_path / "m", Budget(None, 3 << 20))
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
