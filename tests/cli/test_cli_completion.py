# SPDX-License-Identifier: Apache-2.0
"""Completion as a shell asks for it."""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from ckptfmt.cli import main
from cli.commands import Command, child, environment, script, small

argcomplete = pytest.importorskip("argcomplete")


def variables(line: str) -> dict[str, str]:
    """What a shell sets that asks for what to offer at the end of a line."""
    point = str(len(line))
    return {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": point}


def test_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    # Its log is file 9, which may be another file of this process.
    monkeypatch.setattr(argcomplete.CompletionFinder, "_init_debug_stream", lambda _self: None)
    autocomplete = argcomplete.autocomplete

    def words(line: str) -> set[str]:
        offered = io.StringIO()
        here = functools.partial(autocomplete, exit_method=sys.exit, output_stream=offered)
        with mock.patch.dict(os.environ, variables(line)):
            monkeypatch.setattr(argcomplete, "autocomplete", here)
            assert main([]) == 0
        return set(offered.getvalue().split())

    assert words("ckptfmt ver") == words("ckptfmt help ver") == {"verify"}
    assert words("ckptfmt inspect sm") == {"small"}
    assert words("ckptfmt verify r") == {"runs/"}
    assert words("ckptfmt show small model/d") == {"model/dense/kernel"}
    assert words("ckptfmt show nothing model/d") == set()
    assert "--depth" in words("ckptfmt inspect --de")


def test_words_of_a_process(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = variables("ckptfmt show --ra") | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    ran = child("inspect", env=environment(**asked))
    assert (ran.communicate(), ran.returncode) == ((b"", b""), 0)
    assert answer.read_text().strip() == "--raw"


def test_commands_are_completed_without_numpy() -> None:
    code = """import argcomplete, atexit, functools
exits = {"exit_method": sys.exit, "output_stream": sys.stderr}
argcomplete.autocomplete = functools.partial(argcomplete.autocomplete, **exits)
atexit.register(lambda: print(*sys.modules))"""
    ran = script(code, env=environment(**variables("ckptfmt sh")))
    assert ran.stderr.strip() == b"show" and b" numpy " not in ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, command: Command) -> None:
    ran = command("completion", shell)
    assert ran.status == 0 and "ckptfmt" in ran.out
    if shutil.which(shell) is not None:
        option = "--no-execute" if shell == "fish" else "-n"
        subprocess.run([shell, option], input=ran.out, text=True, check=True)


def test_without_argcomplete(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    ran = command("completion", "bash")
    assert (ran.status, ran.out) == (2, "") and "pip install argcomplete" in ran.err
