# SPDX-License-Identifier: Apache-2.0
"""Completion as a shell asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import Command, small

pytest.importorskip("argcomplete")


def words(line: str, directory: Path) -> set[str]:
    """What is offered at the end of a line."""
    answer = directory / "answer"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    code = "import sys; sys.argv = ['ckptfmt']; from ckptfmt.cli import main; main()"
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True)
    found = {word.strip() for word in answer.read_text().splitlines()}
    answer.unlink()
    return found


def test_words(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "runs").mkdir()
    assert {"verify", "version"} & words("ckptfmt ver", tmp_path) == {"verify"}
    assert words("ckptfmt inspect sm", tmp_path) == {"small"}
    assert words("ckptfmt verify r", tmp_path) == {"runs/"}
    assert words("ckptfmt show small model/d", tmp_path) == {"model/dense/kernel"}
    assert words("ckptfmt show nothing model/d", tmp_path) == set()
    assert "--depth" in words("ckptfmt inspect --de", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, command: Command) -> None:
    ran = command("completion", shell)
    assert ran.status == 0 and "ckptfmt" in ran.out
    if shutil.which(shell) is not None:
        option = "--no-execute" if shell == "fish" else "-n"
        subprocess.run([shell, option], input=ran.out, text=True, check=True)


def test_other_shells(command: Command) -> None:
    assert command("completion", "tcsh").status == 2


def test_without_argcomplete(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    ran = command("completion", "bash")
    assert (ran.status, ran.out) == (2, "") and "pip install argcomplete" in ran.err
