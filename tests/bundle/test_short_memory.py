# SPDX-License-Identifier: Apache-2.0
"""Compressing and reading compressed values with hardly any memory left: success or MemoryError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from support.process import SANITIZED

import ckptfmt
from ckptfmt.bundle import codec

TENSORS = {"x": np.tile(np.arange(1000, dtype=np.float32), 1000)}


class Short:
    """A coder of a zstd that finds no memory for its work."""

    def __init__(self, **_: Any) -> None:
        pass

    def fails(self, *_: Any, **__: Any) -> bytes:
        raise zstandard.ZstdError("Allocation error : not enough memory")

    compress = decompress = fails


def no_coder(**_: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("coder", [Short, no_coder])
def test_no_memory_in_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coder: Any) -> None:
    ckptfmt.save(tmp_path / "sound", TENSORS, compression="zstd")
    fake = SimpleNamespace(**vars(zstandard))
    fake.ZstdCompressor = fake.ZstdDecompressor = coder
    with monkeypatch.context() as patch:
        patch.setattr(codec, "_zstandard", lambda: fake)
        with pytest.raises(MemoryError):
            ckptfmt.save(tmp_path / "ck", TENSORS, compression="zstd")
        with pytest.raises(MemoryError):
            ckptfmt.load(tmp_path / "sound")
    assert not list(tmp_path.glob("ck*"))
    assert (ckptfmt.load(tmp_path / "sound")["x"] == TENSORS["x"]).all()


# A process that has not compressed anything yet forks a child for each amount of memory.
PROGRAM = """
import os, resource, sys
import numpy as np, ckptfmt
tensors = {"x": np.tile(np.arange(1000, dtype=np.float32), 1000)}
ckptfmt.save(sys.argv[1], tensors, durability="none")
pages = int(open("/proc/self/statm").read().split()[0])
seen = set()
for more in range(0, 40 << 20, 960 << 10):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more,) * 2)
        try:
            ckptfmt.save(sys.argv[1], tensors, compression="zstd", durability="none")
            os._exit(0)
        except MemoryError:
            os._exit(3)
        except BaseException:
            os._exit(4)
    seen.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(*seen)
"""


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer reserves all of the address space")
def test_the_first_compression_of_a_process(tmp_path: Path) -> None:
    """No abort for memory freed twice. At some limits the C library ends a process that has no
    memory for thread-local data (127), and extension modules of others fail on their own."""
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "ck")]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    seen = set(map(int, ran.stdout.split()))
    assert seen >= {0, 3}, ran.stderr
    assert -6 not in seen, ran.stderr
