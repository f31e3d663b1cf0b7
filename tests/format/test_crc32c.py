# SPDX-License-Identifier: Apache-2.0
"""CRC-32C against crcmod, which shares no code with ours: every variant that this machine can run,
each in a process of its own, where CKPTFMT_ISA chooses it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import index

import ckptfmt
from ckptfmt import _core
from ckptfmt._ckptfmt import ffi, lib

# Name of each variant: what CKPTFMT_ISA calls it.
ISA = {
    "portable": "portable",
    "sse42": "sse42",
    "pclmul": "pclmul",
    "vpclmul256": "avx2",
    "vpclmul512": "avx512",
    "armv8": "armv8",
}

# Sizes around the widths at which the loops change: words, vectors, streams, blocks.
SIZES = [*range(70), 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025]
SIZES += [4095, 4096, 4097, 12287, 12289, 65537, 300_001]


def usable() -> dict[int, str]:
    """Row and name of the variants that this machine can run, worst first."""
    found, row = {}, 0
    while (name := lib.ckptfmt_crc32c_variant_name(row)) != ffi.NULL:
        if lib.ckptfmt_crc32c_variant_usable(row):
            found[row] = _core.text(name)
        row += 1
    return found


ROWS = usable()
USABLE = list(ROWS.values())


# ---- known answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_answers(data: bytes, crc: int) -> None:
    """RFC 3720, B.4; the check value of the polynomial's catalogue."""
    assert index.crc32c(data) == crc
    assert _core.crc32c(data) == crc


def test_buffers_of_every_kind() -> None:
    content = bytes(range(256)) * 3
    expected = index.crc32c(content)
    array = np.frombuffer(content, np.uint32)
    for data in (content, bytearray(content), memoryview(content), array, array.reshape(4, -1)):
        assert _core.crc32c(data) == expected
    assert _core.crc32c(memoryview(content)[5:300]) == index.crc32c(content[5:300])
    with pytest.raises(ValueError, match="contiguous"):
        _core.crc32c(np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(TypeError):
        _core.crc32c("text")


# ---- every variant in a child --------------------------------------------------------------------

# Prints the name of the variant in use and the checksum of every case of the file.
CHILD = """
import json, sys
from ckptfmt import _core
from ckptfmt._ckptfmt import lib
content = open(sys.argv[1], "rb").read()
cases = json.load(open(sys.argv[2]))
view = memoryview(content)
print(json.dumps({
    "variant": _core.text(lib.ckptfmt_crc32c_variant_name(lib.ckptfmt_crc32c_variant())),
    "crcs": [_core.crc32c(view[start : start + size], crc) for start, size, crc in cases],
}))
"""


def in_child(tmp_path: Path, isa: str | None, content: bytes, cases: list[list[int]]) -> dict:
    (tmp_path / "content").write_bytes(content)
    (tmp_path / "cases").write_text(json.dumps(cases))
    environment = {name: value for name, value in os.environ.items() if name != "CKPTFMT_ISA"}
    if isa is not None:
        environment["CKPTFMT_ISA"] = isa
    command = [sys.executable, "-c", CHILD, str(tmp_path / "content"), str(tmp_path / "cases")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict = json.loads(ran.stdout)
    return found


def test_the_portable_variant_is_always_there() -> None:
    assert USABLE[0] == "portable"
    assert set(USABLE) <= set(ISA)


@pytest.mark.parametrize("variant", USABLE)
def test_every_variant(tmp_path: Path, seed: int, variant: str) -> None:
    """All sizes at which a loop begins or ends, at every alignment, continuing random sums."""
    chance = random.Random(seed)
    content = chance.randbytes(320_000)
    cases = [[chance.randrange(17), size, 0] for size in SIZES]
    cases += [[start, 200, chance.randrange(2**32)] for start in range(65)]
    cases += [
        [chance.randrange(5000), chance.randrange(20_000), chance.randrange(2**32)]
        for _ in range(150)
    ]
    found = in_child(tmp_path, ISA[variant], content, cases)
    assert found["variant"] == variant
    for (start, size, crc), got in zip(cases, found["crcs"], strict=True):
        expected = index.crc32c(content[start : start + size], crc)
        assert got == expected, (seed, start, size, crc)


# ---- in this process -----------------------------------------------------------------------------


def test_stored_checksums_are_these(tmp_path: Path) -> None:
    """What an index says of a tensor is the plain sum of its bytes."""
    values = np.arange(1000, dtype=np.float64)
    ckptfmt.save_v2(tmp_path / "ck", ["x"], [""], [values])
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader["x"].crc32c == index.crc32c(values.tobytes())
    content = (tmp_path / "ck.index").read_bytes()
    stored = index.fixed32(6, index.mask(index.crc32c(values.tobytes())))
    assert content.count(stored) == 1
