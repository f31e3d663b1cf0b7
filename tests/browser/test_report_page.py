# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real headless Chromium: what it shows, clicks, keys, filter, theme.

A script at the end of a copy of the page acts as the user, and leaves what it saw in an element,
which Chromium prints. The page itself allows no request; Chromium has no network either.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.report import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NOT RUN: needs chromium")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000"),
]
HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=alert(1)>"

USER = """<script>
const $ = (id) => document.getElementById(id), seen = {};
const all = (selector) => [...document.querySelectorAll(selector)];
const shown = () => all('#body button').map((one) => one.textContent);
const cells = () => all('#map button').map((one) => one.getAttribute('aria-label'));
const press = (end) => all('#body button').find((one) => one.textContent.endsWith(end)).click();
const type = (text) => { $('filter').value = text; $('filter').dispatchEvent(new Event('input')); };
const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
addEventListener('error', (event) => { seen.error = event.message; });
ACTIONS
const requests = performance.getEntriesByType('resource').map((one) => one.name);
seen.requests = requests.filter((name) => !name.startsWith('data:')).length;
seen.title = document.title;
const result = document.createElement('pre');
result.id = 'result';
result.textContent = JSON.stringify(seen);
document.body.append(result);
</script></body>"""


def act(page: Path, actions: str, scratch: Path, size: str = "1280,900") -> dict[str, Any]:
    """What the actions put into `seen`."""
    copy = scratch / "acted.html"
    text = page.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", USER.replace("ACTIONS", actions)), encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--window-size={size}", f"--user-data-dir={scratch / 'profile'}"]
    ran = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.findall(r'<pre id="result">(.*?)</pre>', ran.stdout, re.S)
    assert len(found) == 1, ran.stderr[-2000:]
    document: dict[str, Any] = json.loads(
        found[0].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    assert "error" not in document, document
    assert document["requests"] == 0
    return document


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


def test_it_shows_everything(page: Path, tmp_path: Path) -> None:
    seen = act(
        page,
        "seen.names = shown(); seen.cells = cells(); seen.count = $('count').textContent;"
        "seen.warnings = $('warnings').textContent; seen.wide = wide();"
        "seen.share = $('share').getAttribute('aria-label');",
        tmp_path,
    )
    assert len(seen["names"]) == 9 and HOSTILE in seen["names"]
    assert seen["title"].startswith("m - ")
    assert seen["count"] == "9 of 9 tensors"
    assert seen["warnings"] == "head/bias: 1 NaN"
    assert "weights" in seen["share"] and "optimizer" in seen["share"]
    assert any(label.startswith("encoder/, ") for label in seen["cells"])
    assert seen["wide"] <= 0, "nothing is cut at the right"


@pytest.mark.parametrize("size", ["1280,900", "500,900"])
def test_it_fits_the_window(size: str, page: Path, tmp_path: Path) -> None:
    seen = act(
        page, "document.querySelector('#body button').click(); seen.wide = wide();", tmp_path, size
    )
    assert seen["wide"] <= 0


def test_filter_and_sort(page: Path, tmp_path: Path) -> None:
    seen = act(
        page,
        "type('*/kernel'); seen.glob = shown(); type('/layer_[01].*Adam/'); seen.regex = shown();"
        "type('bias'); seen.text = shown(); type('/(/'); seen.wrong = $('count').textContent;"
        "seen.invalid = $('filter').getAttribute('aria-invalid'); type('');"
        "const head = all('#heads button').find((one) => one.textContent === 'bytes');"
        "head.click(); head.click(); seen.largest = shown()[0];"
        "seen.sorted = head.parentNode.getAttribute('aria-sort');",
        tmp_path,
    )
    assert seen["glob"] == [f"encoder/layer_{layer}/kernel" for layer in range(3)]
    assert seen["regex"] == [f"encoder/layer_{layer}/kernel/Adam" for layer in range(2)]
    assert seen["text"] == ["head/bias"]
    assert (seen["wrong"], seen["invalid"]) == ("not a regular expression", "true")
    assert seen["largest"].startswith("encoder/layer_") and seen["sorted"] == "descending"


def test_a_click_into_the_map(page: Path, tmp_path: Path) -> None:
    seen = act(
        page,
        "const cell = all('#map button')"
        ".find((one) => one.getAttribute('aria-label').startsWith('encoder/'));"
        "cell.click(); seen.crumbs = $('crumbs').textContent; seen.cells = cells();"
        "seen.focus = document.activeElement.parentNode.id;"
        "$('crumbs').querySelector('button').click(); seen.back = $('crumbs').textContent;",
        tmp_path,
    )
    assert seen["crumbs"].startswith("all / encoder 1.5 KiB, 6 tensors")
    assert sum(label.startswith("layer_") for label in seen["cells"]) == 3
    assert seen["focus"] == "map"
    assert seen["back"].startswith("all ") and "9 tensors" in seen["back"]


def test_a_tensor(page: Path, tmp_path: Path) -> None:
    seen = act(
        page,
        "seen.hidden = $('detail').hidden;"
        "press('table');"
        "seen.title2 = $('h-detail').textContent; seen.facts = $('facts').textContent;"
        "seen.slices = document.querySelectorAll('#facts rect.slice').length;"
        "press('_0/kernel');"
        "seen.bars = document.querySelectorAll('#facts rect.bar').length;"
        "document.querySelector('#warnings button').click(); seen.warned = $('facts').textContent;",
        tmp_path,
    )
    assert seen["hidden"] is True and seen["title2"] == "table"
    assert "2 slices" in seen["facts"] and seen["slices"] == 2
    assert seen["bars"] == 16
    assert "1 NaN" in seen["warned"]


def test_theme_and_keyboard(page: Path, tmp_path: Path) -> None:
    seen = act(
        page,
        "const scheme = () => getComputedStyle(document.documentElement).colorScheme;"
        "const paper = () => getComputedStyle(document.body).backgroundColor;"
        "seen.light = [scheme(), paper()]; $('theme').click(); seen.dark = [scheme(), paper()];"
        "seen.pressed = $('theme').getAttribute('aria-pressed');"
        "const controls = all('button, input, [tabindex]');"
        "const name = (one) => one.textContent.trim() || one.getAttribute('aria-label');"
        "seen.unreachable = controls.filter((one) => one.tabIndex < 0).length;"
        "seen.nameless = controls.filter((one) => !name(one) && !one.labels?.length).length;",
        tmp_path,
    )
    assert seen["light"][0] == "light" and seen["dark"][0] == "dark"
    assert seen["light"][1] != seen["dark"][1] and seen["pressed"] == "true"
    assert (seen["unreachable"], seen["nameless"]) == (0, 0)


def test_comparison(page: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ckptfmt.save(other, {"head/bias": np.array([1.0, 2.0]), "new": np.ones(2)})
    report(other, tmp_path / "c.html", before=page.parent / "m")
    seen = act(
        tmp_path / "c.html",
        "seen.changed = $('changed').textContent; seen.rows = $('changes').tBodies[0].rows.length;"
        "seen.hidden = $('s-comparison').hidden; seen.wide = wide();",
        tmp_path,
    )
    assert seen["changed"] == "1 changed, 1 added, 8 removed"
    assert (seen["rows"], seen["hidden"]) == (10, False) and seen["wide"] <= 0


def test_five_thousand_tensors(tmp_path: Path) -> None:
    names = [f"encoder/layer_{n // 4}/part_{n % 4}" for n in range(5000)]
    ckptfmt.save(tmp_path / "m", {name: np.ones((4, 4), np.float32) for name in names})
    output = tmp_path / "r.html"
    report(tmp_path / "m", output)
    assert output.stat().st_size < 5_000_000
    seen = act(
        output,
        "seen.rows = shown().length; $('rows').scrollTop = 26 * 4000; "
        "seen.paint = performance.getEntriesByName('first-paint').map((one) => one.startTime);"
        "const began = performance.now(); type('*_3'); seen.filter = performance.now() - began;"
        "seen.count = $('count').textContent;",
        tmp_path,
    )
    assert seen["rows"] < 100, "only the rows in view are in the page"
    assert seen["count"] == "1,250 of 5,000 tensors"
    print(f"5,000 tensors: {output.stat().st_size:,} bytes, filter {seen['filter']:.1f} ms")
