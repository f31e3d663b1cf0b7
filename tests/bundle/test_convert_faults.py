# SPDX-License-Identifier: Apache-2.0
"""Conversions that do not end well: full disks, limits, Ctrl-C and kills at any moment. The
destination is as it was, and nothing is left behind, or what is left can be swept."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.child import Forked

import ckptfmt
from ckptfmt import StorageError
from ckptfmt._base.arrays import Sources
from ckptfmt.bundle.staging import Staging
from ckptfmt.bundle.writer import Writer
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.files.temporary import LOCK_NAME
from ckptfmt.recipe import values as rewriting
from ckptfmt.recipe.values import Piece

# `ckptfmt.convert` is the function.
converting = importlib.import_module("ckptfmt.recipe.checkpoint")

CONVERT = """
import importlib, os, resource, signal, sys
from ckptfmt.cli import main
rewriting = importlib.import_module("ckptfmt.recipe.values")

folder, limit, held = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rewriting.HELD_MAX = held
sys.dont_write_bytecode = True  # Python keeps what a short write leaves of a cached module
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
words = ["convert", "--overwrite", "--level", "v2", folder + "/a", folder + "/to/b"]
print(main(words), os.listdir(folder + "/to"), flush=True)
"""

STOPPING = """
import sys
import ckptfmt

def tell(done, total):
    print(done, flush=True)
    sys.stdin.readline()

ckptfmt.convert(sys.argv[1], sys.argv[2], progress=tell)
"""


def source(prefix: Path) -> dict[str, Any]:
    values = {"a": np.arange(1000), "w": np.zeros((1000, 4000), "f4"), "z": np.arange(10)}
    ckptfmt.save(prefix, values, compression="zstd")
    return values


def small_disk(folder: Path) -> list[str]:
    """How to run a program that has a disk of 8 MiB in this folder; nothing if that cannot be
    here."""
    mount = f"mount -t tmpfs -o size=8m none '{folder}' && exec \"$@\""
    words = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return words if done.returncode == 0 else []


@pytest.mark.parametrize("held", [1 << 20, 1 << 30], ids=["through a file", "through memory"])
@pytest.mark.parametrize("full", ["disk", "limit"])
def test_no_room(tmp_path: Path, full: str, held: int) -> None:
    source(tmp_path / "a")
    (tmp_path / "to").mkdir()
    disk = small_disk(tmp_path / "to") if full == "disk" else []
    limit = "0" if disk else str(8 << 20)
    done = subprocess.run(
        [*disk, sys.executable, "-c", CONVERT, str(tmp_path), limit, str(held)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout == "2 []\n"
    told = done.stderr.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"ckptfmt: OS in {tmp_path}/to/b_temp_")
    assert os.strerror(errno.ENOSPC if disk else errno.EFBIG) in told[0]
    assert held > 1 << 20 or ", tensor 'w': cannot make a file of 16000000 bytes" in told[0]


@pytest.mark.parametrize("what", ["posix_fallocate", "mmap", "TemporaryFile"])
def test_a_large_value_finds_no_room(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "a")
    ckptfmt.save(tmp_path / "b", {"x": np.ones(3)})
    before = sorted(tmp_path.iterdir())

    def refuse(*_arguments: Any, **_more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = {"posix_fallocate": os, "mmap": rewriting.mmap, "TemporaryFile": rewriting.tempfile}
    monkeypatch.setattr(owner[what], what, refuse)
    monkeypatch.setattr(rewriting, "HELD_MAX", 1 << 20)
    with pytest.raises(StorageError, match="No space left on device") as found:
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    assert (found.value.errno, found.value.tensor) == (errno.ENOSPC, "w")
    assert found.value.path is not None and found.value.path.startswith(f"{tmp_path}/b_temp_")
    assert sorted(tmp_path.iterdir()) == before


def test_there_is_one_temporary_file_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []

    def counted(*arguments: Any) -> Any:
        gc.collect()
        assert not [one for one in made if one() is not None]
        made.append(weakref.ref(array := rewriting.mapped_array(*arguments)))
        return array

    monkeypatch.setattr("ckptfmt.recipe.sources.mapped_array", counted)
    monkeypatch.setattr("ckptfmt.bundle.comparing.PIECE_BYTES", 1 << 20)
    large = {name: np.full(1 << 18, number) for number, name in enumerate("abc")}
    ckptfmt.save(tmp_path / "a", large, level="v2")  # without checksums of parts
    ckptfmt.convert(tmp_path / "a", tmp_path / "a.safetensors")
    assert len(made) >= 3
    found = ckptfmt.safetensors.load_file(tmp_path / "a.safetensors")
    assert all((found[name] == large[name]).all() for name in large)


# ---- Ctrl-C


def _before(usual: Callable[..., Any]) -> Callable[..., Any]:
    def interrupted(*_arguments: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    return interrupted


def _after(usual: Callable[..., Any]) -> Callable[..., Any]:
    def interrupted(*arguments: Any, **more: Any) -> None:
        usual(*arguments, **more)
        raise KeyboardInterrupt

    return interrupted


MOMENTS = ["Staging.start", "Writer._add", "Writer.commit", "_check_source"]
MOMENTS += [
    "_copy",
    "Piece.read",
    "Sources.add",
    "rewriting.mapped_array",
    "_compare",
    "equal_values",
    "rewriting.verify_prefix",
    "Staging.merge",
]
OWNERS = {"Staging": Staging, "Writer": Writer, "Piece": Piece, "Sources": Sources}
OWNERS["rewriting"] = rewriting


@pytest.mark.parametrize("when", [_before, _after])
@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupts_leave_nothing(
    tmp_path: Path,
    moment: str,
    when: Callable[[Callable[..., Any]], Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source(tmp_path / "a")
    ckptfmt.save(tmp_path / "b", {"x": np.ones(3)})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(rewriting, "HELD_MAX", 1 << 20)
    monkeypatch.setattr(converting, "_sums", id)
    *owners, name = moment.split(".")
    owner = OWNERS[owners[0]] if owners else converting
    monkeypatch.setattr(owner, name, when(getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        ckptfmt.convert(tmp_path / "a", tmp_path / "b")
    if (moment, when) == ("Staging.merge", _after):
        with ckptfmt.open(tmp_path / "b") as reader:
            assert list(reader) == ["a", "w", "z"]
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    else:
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_interrupts_of_the_progress_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "BATCH_BYTES", 1)
    source(tmp_path / "a")
    before = sorted(tmp_path.iterdir())
    for moment in range(3):
        told: list[int] = []

        def tell(done: int, total: int, moment: int = moment, told: list[int] = told) -> None:
            told.append(done)
            if len(told) > moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ckptfmt.convert(tmp_path / "a", tmp_path / "b", progress=tell)
        assert len(told) == moment + 1
        assert sorted(tmp_path.iterdir()) == before


# ---- kills


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_kill_leaves_is_swept(tmp_path: Path, number: int) -> None:
    source(tmp_path / "a")
    folder = tmp_path / "to"
    folder.mkdir()
    with Forked.program(STOPPING, tmp_path / "a", folder / "ckpt-1") as child:
        assert child.line()
        (left,) = folder.iterdir()
        assert re.fullmatch("ckpt-1_temp_[0-9a-f]{16}", left.name)
        assert (left / LOCK_NAME).is_file()
        with LocalFolder(str(folder), durability="none").opened() as directory:
            assert directory.sweep() == []  # it lives
            os.kill(child.pid, number)
            assert child.end() == -number
            assert left.name in directory.sweep()
    assert not left.exists()
