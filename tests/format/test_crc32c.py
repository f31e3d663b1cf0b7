# SPDX-License-Identifier: Apache-2.0
"""CRC-32C through the Python interface, against crcmod. Each variant: tests/c/test_crc32c.c."""

from __future__ import annotations

import numpy as np
import pytest
from support import index

from ckptfmt import _core


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
