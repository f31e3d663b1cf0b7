# SPDX-License-Identifier: Apache-2.0
"""The `ckptfmt` command in pipes, on terminals and without either."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptfmt.cli import main, progress
from cli.commands import (
    Command,
    child,
    data_file,
    environment,
    many,
    odd,
    on_terminal,
    script,
    small,
)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose data file is damaged, and whose listing fills more than a pipe."""
    prefix = many(tmp_path_factory.mktemp("many"))
    path = data_file(prefix)
    path.write_bytes(bytes(path.stat().st_size))
    return prefix


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["inspect", "--json"], ["inspect", "--tree"], ["verify"]]
)
def test_reader_of_a_pipe_goes_away(
    arguments: list[str], listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as reader, open(writing, "w", encoding="utf-8") as pipe:
        closed = reader.submit(lambda: (os.read(reading, 1), os.close(reading)))
        monkeypatch.setattr(sys, "stdout", pipe)
        status = main([*arguments, str(listing)])
    assert closed.result()[0], "it had been written to"
    assert status == (arguments == ["verify"]), "the status does not depend on the reader"


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"], ["--version"]])
def test_nobody_reads_the_help(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = child(*arguments, stdout=writing)
    os.close(writing)
    _, err = ran.communicate()
    assert (ran.returncode, err) == (0, b"")


def test_closed_streams(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = small(tmp_path)
    python = f"'{sys.executable}' -m ckptfmt"
    for words, expected in (
        (f"{python} verify '{prefix}' >&-", 0),
        (f"{python} inspect '{prefix}x' >&- 2>&-", 2),
    ):
        ran = subprocess.run(
            ["sh", "-c", words], capture_output=True, env=environment(), check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (expected, b"", b""), words
    # What Python has in place of a stream that is closed.
    monkeypatch.setattr(sys, "stdout", None)
    ran = command("inspect", prefix)
    assert (ran.status, ran.err) == (0, "")
    monkeypatch.setattr(sys, "stderr", None)
    assert command("inspect", f"{prefix}x").status == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk(listing: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    complaint = f"ckptfmt: cannot write the output: {os.strerror(errno.ENOSPC)}\n"
    with open("/dev/full", "w", encoding="utf-8") as full:
        # The version is written when all is done.
        ran = child("--version", stdout=full)
        assert (ran.communicate()[1].decode(), ran.returncode) == (complaint, 2)
        monkeypatch.setattr(sys, "stdout", full)
        shown = command("inspect", listing)
        assert (shown.status, shown.err) == (2, complaint)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_of_standard_error(
    tmp_path: Path, listing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status stays what it is: no 1, which says that a checkpoint is damaged, and no other."""
    prefix, nowhere = small(tmp_path), tmp_path / "nowhere"
    for arguments, expected in (
        *((["verify", path], status) for path, status in ((nowhere, 2), (listing, 1))),
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
        # Closing it fails if something is left to write, as at the end of a process.
        with open("/dev/full", "w", encoding="utf-8") as full:
            monkeypatch.setattr(sys, "stderr", full)
            assert main([*map(str, arguments)]) == expected, arguments
            monkeypatch.undo()
    with open("/dev/full", "wb") as full:
        assert child("verify", listing, stdout=subprocess.DEVNULL, stderr=full).wait() == 1


def test_interrupted(tmp_path: Path) -> None:
    code = (
        "import ckptfmt, os, signal, time\n"
        "ckptfmt.verify = lambda *_, **__: (os.kill(os.getpid(), signal.SIGINT), time.sleep(9))\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    ran = script(code, "verify", small(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def test_progress(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = small(tmp_path)
    monkeypatch.setattr(progress, "DELAY_SECONDS", 1e9)
    assert on_terminal("stderr", "verify", prefix) == (0, b""), "too short for a bar"
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0)
    status, drawn = on_terminal("stderr", "verify", prefix)
    assert status == 0
    assert re.search(rb"\rchecking \[#{30}\] 100% [\d.]+ K?i?B of ", drawn)
    assert drawn.endswith(b"\r\x1b[K"), "erased"
    assert on_terminal("stderr", "verify", "--quiet", prefix) == (0, b"")
    monkeypatch.chdir(tmp_path)
    for words in (
        *("show --stats small scale", "digest small", "merge small merged", "cp small copied"),
        *("mv copied moved", "latest --verify ."),
    ):
        status, drawn = on_terminal("stderr", *words.split())
        assert (status, b"100%" in drawn) == (0, True), words
    ran = command("verify", prefix)
    assert ran.out.startswith("sound; checked ") and ran.err == "", "no terminal"


def test_colors(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = small(tmp_path)
    for options, variables, colored in (
        ([], {}, True),
        (["--color", "never"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        ([], {"TERM": "dumb"}, False),
    ):
        for name, value in {"NO_COLOR": "", "TERM": "xterm", **variables}.items():
            monkeypatch.setenv(name, value)
        status, shown = on_terminal("stdout", "inspect", *options, prefix)
        assert (status, b"\x1b[" in shown) == (0, colored), (options, variables)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in command("inspect", prefix).out


def test_signal_numbers_are_left_alone() -> None:
    """Importing the command changes nothing in a process that imports it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    assert main(["--version"]) == 0
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_other_encodings(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = odd(tmp_path)
    for options in ([], ["--tree"]):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
        ran = command("inspect", *options, prefix)
        assert (ran.status, ran.err) == (0, "")
        assert out.getvalue().isascii()
        assert rb"\u691c" in out.getvalue()
        assert b"`- " in out.getvalue() or not options
