# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/: linked from the README, run by a test, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.pages import ROOT, blocks, indented, program, run_console, run_line, run_page

import ckptfmt
from ckptfmt.cli.parser import COMMANDS, command_parser
from ckptfmt.stores import waiting

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("docs", "docs/internals")
    for path in (ROOT / folder).glob("*.md")
)


# Tests below run the indented blocks of these pages.
INDENTED = ("README.md", "docs/c.md", "docs/operators.md")


def test_every_block_runs() -> None:
    """Of Python: the test that runs the page; of the other kinds: those that have a test."""
    tests = "".join(one.read_text(encoding="utf-8") for one in (ROOT / "tests").rglob("test_*.py"))
    for page in ["README.md", "SECURITY.md", *PAGES]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for kind in re.findall(r"^```(.*)\n(?:.*\n)*?```$", text, re.M):
            if kind == "python":
                assert f'("{page}"' in tests, "write a test with run_page"
            elif kind.startswith("python "):
                assert re.search(rf'\("{page}", (tmp_path, )?"{kind[7:]}"', tests), page
            elif kind == "console":
                assert f'run_console("{page}"' in tests
            elif kind == "c":
                assert page in (ROOT / "tools" / "languages.sh").read_text(encoding="utf-8")
            else:  # sphinx reads it
                assert kind in ("{toctree}", "{include} ../README.md") and page == "docs/index.md"
        assert page in INDENTED or not indented(page), page


def test_every_page_is_linked() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if f"]({page})" not in readme] == []


def test_what_installs() -> None:
    """Packages come from PyPI by the name of a peer; ckptfmt from a checkout, with extras that it
    has. Each `make TARGET` is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    peers = {re.match("[a-z0-9]*", one)[0] for one in extras["peers"]}  # type: ignore[index]
    targets = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    known = {word for line in targets for word in line.split()}
    link = "[installed from a checkout](../README.md#install)"
    for page in ["README.md", *PAGES]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for installed in re.findall(r"pip\s+install ([^`]+)`", text):
            if "." in installed:
                found = re.fullmatch(r"'\.\[([\w,]+)\]'", installed)
                assert found is not None and {*found[1].split(",")} <= {*extras}, page
            else:
                assert set(installed.split()) <= peers, page
                assert page == "README.md" or link in text.replace("\n", " "), page
        for line in re.findall(r"(?:`|^    )make ((?:[A-Z_]+=\S* )*[a-z][a-z -]*)", text, re.M):
            words = line.split("  ")[0].split()
            assert {word for word in words if "=" not in word} <= known, (page, line)


def test_constants() -> None:
    """What a page says of times and sizes is what the code does."""
    stall = f"{waiting.STALL_SECONDS:.0f}"
    text = " ".join((ROOT / "docs/stores.md").read_text(encoding="utf-8").split())
    for phrase in (
        f"cancelled, default {stall} (",
        f"moves no byte for {stall} seconds is cancelled",
        f"{stall} seconds for the whole request, plus one for each {waiting.SLOWEST >> 10} KiB",
    ):
        assert phrase in text, phrase
    code = (ROOT / "csrc/base/limits.c").read_text(encoding="utf-8")
    limits = dict(re.findall(r"\.(\w+) = (?:\(uint64_t\))?(\d+ << \d+)", code))
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| `(\w+)`.*\| (\d+ GiB|\d+ MiB|2\^\d+) \|$", page, re.M))
    shown = {" GiB": " << 30", " MiB": " << 20", "2^": "1 << "}
    for name in found.keys() & limits.keys():
        for unit, shift in shown.items():
            found[name] = found[name].replace(unit, shift)
        assert found[name] == limits[name], name
    assert len(found.keys() & limits.keys()) >= 4


def test_links() -> None:
    for page in ["README.md", *PAGES]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in target:
                assert (ROOT / page).parent.joinpath(target).exists(), (page, target)


def test_coming_from_tensorflow(tmp_path: Path) -> None:
    for path in (ROOT / "tests" / "golden" / "merged").glob("ckpt.*"):  # TensorFlow wrote them
        shutil.copy(path, tmp_path / path.name.replace("ckpt.", "model.ckpt-1000."))
    run_page("docs/coming-from-tensorflow.md", tmp_path)


@pytest.mark.slow  # and a stage of CI of its own
def test_demo(tmp_path: Path) -> None:
    """What `make demo` runs."""
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)


def test_c(tmp_path: Path) -> None:
    """The commands of docs/c.md with its program; the last is `make languages`."""
    if shutil.which("pkg-config") is None or shutil.which("cc") is None:
        pytest.skip("no pkg-config or cc")
    for path in (ROOT / "tests" / "golden" / "merged").glob("ckpt.*"):  # TensorFlow wrote them
        shutil.copy(path, tmp_path / path.name.replace("ckpt.", "model.ckpt-1000."))
    (program_of_page,) = blocks("docs/c.md", "c")
    (tmp_path / "list.c").write_text(program_of_page, encoding="utf-8")
    *commands, last = indented("docs/c.md")[0].splitlines()
    assert last.startswith("make languages ")
    script = "\n".join(["set -e", f'make() {{ command make -s -C "{ROOT}" "$@"; }}', *commands])
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key}
    ran = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "part/float: 24 elements, 96 bytes" in ran.stdout


def test_engines(tmp_path: Path) -> None:
    assert len(blocks("docs/engines.md", "python")) == 1
    run_page("docs/engines.md", tmp_path)


def test_own_objects(tmp_path: Path) -> None:
    run_page("docs/own-objects.md", tmp_path)


def test_guide(tmp_path: Path) -> None:
    assert len(blocks("docs/guide.md", "python")) == 9
    run_page("docs/guide.md", tmp_path)


def test_tutorial(tmp_path: Path) -> None:
    """The console blocks run the programs, which the reader saves under these names."""
    for name, text in (
        ("save.py", program("docs/tutorial.md", "save.py")),
        ("flip.py", program("docs/tutorial.md", "flip.py")),
        ("look.py", program("docs/tutorial.md", "look.py")),
        ("train.py", program("docs/tutorial.md", "train.py")),
        ("write_part.py", program("docs/tutorial.md", "write_part.py")),
        ("read_half.py", program("docs/tutorial.md", "read_half.py")),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    run_console("docs/tutorial.md", tmp_path)
    assert run_line("python train.py run", tmp_path)[0] == 0, "a restart after the last step"


def test_recipes(tmp_path: Path) -> None:
    run_page("docs/recipes.md", tmp_path)
    run_console("docs/recipes.md", tmp_path)


def test_report(tmp_path: Path) -> None:
    run_page("docs/report.md", tmp_path)
    assert {one.name for one in tmp_path.glob("*.html")} == {"now.html", "changed.html", "run.html"}


def test_operators(tmp_path: Path) -> None:
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=np.zeros(3)), tmp_path / "runs", 10)
    for _ in range(4):
        manager.save()
    run_console("docs/operators.md", tmp_path)
    (crontab,) = indented("docs/operators.md")
    for line in crontab.splitlines():
        command = line.split(maxsplit=5)[5].replace("/data/runs", str(tmp_path))
        assert run_line(command, tmp_path) == (0, "", ""), command


def test_options(tmp_path: Path) -> None:
    run_page("docs/options.md", tmp_path)


def test_every_option_of_edit() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    _, commands = command_parser()
    for action in commands["edit"]._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in text, option


@pytest.mark.parametrize("tool", ["commands", "api"])
def test_reference(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of these pages of the site nothing is missing; `make docs` has sphinx check them."""
    monkeypatch.setenv("COLUMNS", "")  # the tool sets it
    runpy.run_path(str(ROOT / "tools" / f"{tool}.py"), run_name="__main__")
    wanted = tuple(COMMANDS)
    if tool == "api":
        wanted = tuple(name for name in ckptfmt.__all__ if callable(getattr(ckptfmt, name)))
    out = capsys.readouterr().out
    assert not [name for name in wanted if name not in out]
