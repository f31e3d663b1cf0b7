# SPDX-License-Identifier: Apache-2.0
"""The `ckptfmt` command in pipes, on terminals and without either."""

from __future__ import annotations

import errno
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfmt.cli import main
from cli.commands import child, data_file, environment, many, odd, script, small


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["inspect", "--tree"],
        ["verify"],
    ],
)
def test_reader_of_a_pipe_goes_away(arguments: list[str], tmp_path: Path) -> None:
    prefix = many(tmp_path)
    expected = 0
    if arguments == ["verify"]:
        path = data_file(prefix)
        path.write_bytes(bytes(path.stat().st_size))
        expected = 1
    ran = child(*arguments, prefix)
    assert ran.stdout is not None
    assert ran.stderr is not None
    assert ran.stdout.readline()
    ran.stdout.close()
    assert ran.stderr.read() == b""
    assert ran.wait(60) == expected, "the status does not depend on the reader"
    ran.stderr.close()


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"], ["--version"]])
def test_nobody_reads_the_help(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = child(*arguments, stdout=writing)
    os.close(writing)
    _, err = ran.communicate()
    assert (ran.returncode, err) == (0, b"")


def test_closed_streams(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    python = f"'{sys.executable}' -m ckptfmt"
    for words, expected in (
        (f"{python} inspect '{prefix}' >&-", 0),
        (f"{python} verify '{prefix}' >&-", 0),
        (f"{python} inspect '{prefix}x' 2>&-", 2),
        (f"{python} inspect '{prefix}x' >&- 2>&-", 2),
    ):
        ran = subprocess.run(
            ["sh", "-c", words], capture_output=True, env=environment(), check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (expected, b"", b""), words


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk(tmp_path: Path) -> None:
    for prefix in (small(tmp_path), many(tmp_path)):
        with open("/dev/full", "wb") as full:
            ran = child("inspect", prefix, stdout=full)
            _, err = ran.communicate()
        assert ran.returncode == 2
        reason = os.strerror(errno.ENOSPC)
        assert err.decode() == f"ckptfmt: cannot write the output: {reason}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_of_standard_error(tmp_path: Path) -> None:
    """The status stays what it is: no 1, which says that a checkpoint is damaged, and no other."""
    prefix, nowhere = small(tmp_path), tmp_path / "nowhere"
    damaged = tmp_path / "damaged"
    for file in (".index", ".data-00000-of-00001"):
        shutil.copy(f"{prefix}{file}", f"{damaged}{file}")
    data_file(damaged).write_bytes(bytes(data_file(damaged).stat().st_size))
    for arguments, expected in (
        *((["verify", path], status) for path, status in ((nowhere, 2), (damaged, 1))),
        *((["inspect", path], status) for path, status in ((nowhere, 2), (prefix, 0))),
        (["digest", nowhere], 2),
        (["diff", prefix, nowhere], 2),
        (["latest", nowhere], 2),
        (["cp", nowhere, prefix], 2),
        (["merge", "--allow-missing", nowhere, prefix, tmp_path / "merged"], 0),
        (["prune", "--keep", "1", tmp_path], 2),
        (["verify"], 2),
        (["verify", "--nothing"], 2),
    ):
        with open("/dev/full", "wb") as full:
            ran = child(*arguments, stdout=subprocess.DEVNULL, stderr=full)
            ran.communicate()
        assert ran.returncode == expected, arguments


def test_interrupted(tmp_path: Path) -> None:
    code = (
        "import ckptfmt, os, signal, time\n"
        "ckptfmt.verify = lambda *_, **__: (os.kill(os.getpid(), signal.SIGINT), time.sleep(9))\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    ran = script(code, "verify", small(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def on_terminal(code: str, *arguments: object) -> tuple[int, bytes, bytes]:
    """Runs the command with a terminal as standard error: status, output, and what was drawn."""
    ours, theirs = pty.openpty()
    try:
        ran = script(code, *arguments, capture_output=False, stdout=subprocess.PIPE, stderr=theirs)
    finally:
        os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 4096):
            drawn += piece
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    return ran.returncode, ran.stdout, drawn


AT_ONCE = "import ckptfmt.cli.progress as p; p.DELAY_SECONDS = 0"


def test_progress(tmp_path: Path) -> None:
    status, out, drawn = on_terminal(AT_ONCE, "verify", small(tmp_path))
    assert status == 0
    assert out.startswith(b"sound; checked ")
    assert re.search(rb"\rchecking \[#{30}\] 100% [\d.]+ K?i?B of ", drawn)
    assert drawn.endswith(b"\r\x1b[K"), "erased"


def test_no_progress(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    assert on_terminal(AT_ONCE, "verify", "--quiet", prefix) == (0, b"", b"")
    status, _, drawn = on_terminal("", "verify", prefix)
    assert (status, drawn) == (0, b""), "too short for a bar"
    ran = script(AT_ONCE, "verify", prefix)
    assert (ran.returncode, ran.stderr) == (0, b""), "no terminal"


def test_colors(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    for options, variables, colored in (
        ([], {}, True),
        (["--color", "never"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        ([], {"TERM": "dumb"}, False),
    ):
        ours, theirs = pty.openpty()
        ran = child("inspect", *options, prefix, stdout=theirs, env=environment(**variables))
        os.close(theirs)
        shown = os.read(ours, 1 << 16)
        assert ran.wait(60) == 0
        assert (b"\x1b[" in shown) == colored, (options, variables)
        os.close(ours)
        assert ran.stderr is not None
        ran.stderr.close()
    ran = child("inspect", prefix)
    out, _ = ran.communicate()
    assert b"\x1b" not in out


def test_signal_numbers_are_left_alone() -> None:
    """Importing the command changes nothing in a process that imports it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    assert main(["--version"]) == 0
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_other_encodings(tmp_path: Path) -> None:
    encoding = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    for options in ([], ["--tree"]):
        ran = child("inspect", *options, odd(tmp_path), env=encoding)
        out, err = ran.communicate()
        assert (ran.returncode, err) == (0, b"")
        assert out.isascii()
        assert rb"\u691c" in out
        assert b"`- " in out or not options
