# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask of compression."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError

__all__ = ["CHUNK_SIZE", "Compression", "compression_of"]

# Bytes of the raw value that a chunk stands for, as writers do by default (CMP-2).
CHUNK_SIZE = 256 << 10
LEVEL_MAX = 22


@dataclass(frozen=True, slots=True)
class Compression:
    """How values are compressed.

    Attributes:
        effort: level of zstd, 1 to 22, for what repeats itself: text, indices, zeros. Where it is
            the exponents of numbers that compress, nothing is gained by more than 1.
    """

    effort: int = 1


def compression_of(asked: str | None, level: str) -> Compression | None:
    """What the arguments `compression` and `level` of a save mean together.

    Args:
        asked: None, "zstd" or "zstd:<effort>".
        level: that of the format; "ckptfmt" alone means "zstd".

    Raises:
        InvalidError: another text, or level "v2".
    """
    if asked is None:
        return Compression() if level == "ckptfmt" else None
    if not isinstance(asked, str):
        raise wrong("compression", "'zstd', 'zstd:<level>' or None", asked)
    found = re.fullmatch(r"zstd(?::([0-9]{1,2}))?", asked)
    effort = int(found[1] or 1) if found else 0
    if not 1 <= effort <= LEVEL_MAX:
        raise InvalidError(
            f"compression {asked!r} is neither 'zstd' nor 'zstd:1' to 'zstd:{LEVEL_MAX}'"
        )
    if level == "v2":
        raise InvalidError("level 'v2' has no place for compressed values")
    return Compression(effort)
