# SPDX-License-Identifier: Apache-2.0
"""Runs the Python and the commands of README.md and of the pages in docs/ as they are printed.

    def test_page(tmp_path: Path) -> None:
        run_page("docs/torch.md", tmp_path)

The ```python blocks of a page are one program, in their order. A block that begins with
```python NAME.py is a program of its own, for a launcher:

    run_page("docs/mpi.md", tmp_path, "save.py", launcher=["mpirun", "-n", "2"])
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

from ckptfmt.cli import main

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    """The contents of the blocks of this language; "python save.py" is one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", text, re.M | re.S)


def indented(page: str) -> list[str]:
    """The contents of the blocks that four spaces indent, outside of lists and fences."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = re.findall(r"(?<=\n\n)(?:    .*\n)+", text)
    return [re.sub("^    ", "", block, flags=re.M) for block in found]


def program(page: str, name: str = "") -> str:
    """The blocks of the page, or the block of this name. Lines are at the numbers they have in the
    page, so that a traceback names them."""
    wanted, within, lines = f"```python {name}".rstrip(), False, []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            within = line == wanted
            lines.append("")
        else:
            lines.append(line if within else "")
    assert any(lines), f"{page} has no block that begins with {wanted}"
    return "\n".join(lines) + "\n"


def run_page(
    page: str,
    directory: Path,
    name: str = "",
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> str:
    """What the program prints, in a new process in the directory; it must succeed.

    Args:
        launcher: the words before the name of the Python interpreter.
        environment: variables to add.
    """
    # Never torch.py: the directory is where Python looks first.
    path = directory / (name or f"page_{Path(page).stem}.py")
    path.write_text(program(page, name), encoding="utf-8")
    ran = subprocess.run(
        [*launcher, sys.executable, str(path)],
        cwd=directory,
        env={**os.environ, "PYTHONUTF8": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{page}: {ran.stderr}"
    return ran.stdout


def run_console(page: str, directory: Path, more: Mapping[str, str] | None = None) -> None:
    """Run the commands of the ```console blocks in the directory, in their order, and compare what
    they print with what the page shows: `...` stands for anything within a line; times are ignored.

    Args:
        more: environment variables to add.
    """
    shown = "".join(blocks(page, "console"))
    commands = re.findall(r"^\$ (.*)\n((?:[^$\n].*\n|\n)*)", shown, re.M)
    assert commands, page
    for command, expected in commands:
        _, out, err = run_line(command, directory, more)
        # A shell may report a program that killed itself.
        assert re.fullmatch(r"(.*Killed.*\n)?", err), f"{command}: {err}"
        pattern = re.escape(_timeless(expected)).replace(r"\.\.\.", "[^\n]*")
        assert re.fullmatch(pattern, _timeless(out)), f"{command}\n{out}"


# `ckptfmt` and its arguments, without a word that a shell changes, up to an operator.
_OURS = re.compile(r"ckptfmt ((?:'[^']*'|[^'\"|&;<>()$`*\\#])*?)( 2>/dev/null)?(?=#|\||;|&&|$)")


def run_line(
    line: str, directory: Path, more: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a line of a shell in the directory: its status, output and errors. `ckptfmt` runs in this
    process where it begins the line; a shell runs the rest."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PYTHONUTF8": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    environment |= {**(more or {}), "PATH": path}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with mock.patch.dict(os.environ, environment), contextlib.chdir(directory):
        if ours := _OURS.match(line):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(shlex.split(ours[1]))
            line = line[ours.end() :].partition("#")[0].strip()
            printed = out.buffer.getvalue() + err.buffer.getvalue()  # type: ignore[attr-defined]
            if line.startswith("&& ") and status == 0 and not printed:
                return run_line(line[3:], directory, more)
            line = f"(cat; exit {status}) {line}"
        given = out.buffer.getvalue()  # type: ignore[attr-defined]
        ran = subprocess.run(["sh", "-c", line], input=given, capture_output=True, check=False)
    complaint = b"" if ours and ours[2] else err.buffer.getvalue()  # type: ignore[attr-defined]
    return ran.returncode, ran.stdout.decode(), (complaint + ran.stderr).decode()


def _timeless(output: str) -> str:
    """Without how long it took."""
    return re.sub(r"in [\d.]+ s \([^)]*\)", "in TIME", output).rstrip()
