# SPDX-License-Identifier: Apache-2.0
"""Vectors of what verifying still checks of a value that failed: two rules broken in one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from making import parts
from making.chunks import ONES, THREE, THREE_CHUNKS, compressed, crcs_of, with_extension
from making.parts import COMPRESSED_HEADER, entry, extension, header, msg, num
from making.values import EIGHT, ROWS_OF_2, pieces
from making.vectors import FLOAT, UINT8, Refusal, Vectors, boxes, strings, u8

TEN = u8(*range(10))
CRC = parts.crc32c(TEN.raw)
CHUNKS = num(2, 4) + msg(3, crcs_of(TEN.raw, 4))
FEW = num(2, 4) + msg(3, crcs_of(TEN.raw, 4)[:8])
UNKNOWN_FLAG = num(1, 2)

DAMAGE = ("CHECKSUM", "DAT-6")
CUT = ("TRUNCATED", "DAT-2")
FEW_CRCS = ("BAD_ENTRY", "EXT-4")


def flipped(data: bytes, at: int = 5) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def add(out: Vectors) -> None:
    def bad(
        name: str,
        problems: Sequence[Refusal],
        message: bytes,
        data: bytes,
        listed: tuple[int, Sequence[int]] = (UINT8, [10]),
        **more: Any,
    ) -> None:
        """Reading fails by the first of the problems."""
        rules = " ".join(rule for _, rule in problems)
        given: dict[str, Any] = {"rules": rules, "level": "v2+"} | more
        out.at_read(name, message, data, listed, *problems[0], problems=problems, **given)

    damaged = flipped(TEN.raw)
    bad("verify-ext-4-dat-6", [FEW_CRCS, DAMAGE], with_extension(TEN, FEW), damaged)
    misplaced = entry(UINT8, [10], 10, CRC, offset=2, shard=1, tail=extension(FEW))
    problems = [("BAD_ENTRY", "ENT-3"), FEW_CRCS]
    out.at_read(
        "verify-ent-3-ext-4",
        misplaced,
        TEN.raw,
        (UINT8, [10]),
        *FEW_CRCS,
        problems=problems,
        rules="ENT-3 EXT-4",
        level="v2+",
    )
    unknown = ("UNSUPPORTED", "EXT-3")
    with_flag = with_extension(TEN, UNKNOWN_FLAG)
    bad("verify-ext-3-dat-2", [unknown, CUT], with_flag, TEN.raw[:9])
    bad("verify-ext-3-dat-6", [unknown], with_flag, damaged)
    no_form = ("BAD_DTYPE", "DTY-5")
    reference = entry(101, [10], 10, CRC, offset=2)
    listed: tuple[int, Sequence[int]] = (101, [10])
    bad("verify-dty-5-dat-2", [no_form, CUT], reference, TEN.raw[:9], listed, level="v2")
    bad("verify-dty-5-dat-6", [no_form], reference, damaged, listed, level="v2")
    size = entry(FLOAT, [3], 10, CRC, offset=2)
    wrong_size = [("BAD_ENTRY", "ENT-5")]
    bad("verify-ent-5-dat-6", wrong_size, size, damaged, (FLOAT, [3]), level="v2")
    # `a` has bytes 0 and 1 of the data file.
    shared = entry(UINT8, [10], 10, 1, offset=1)
    problems = [DAMAGE, ("BAD_ENTRY", "DAT-8")]
    bad("verify-dat-8-dat-6", problems, shared, TEN.raw, level="v2")
    text = strings(b"hello", b"", b"world")
    stored = text.stored()[0]
    wrong_chunk = num(2, 8) + msg(3, bytes(4) + crcs_of(stored, 8)[4:])
    of_text = with_extension(text, wrong_chunk)
    sound: dict[str, Any] = {"level": "v2+"}
    out.beside("ext-9-strings", "EXT-9", of_text, stored, text, **sound)
    out[-1].steps[-1] |= {"problems": [["CHECKSUM", "EXT-9"]]}
    wrong_text = [("CHECKSUM", "STR-6")]
    listed = (text.code, text.dims)
    bad("verify-str-6-ext-9", wrong_text, of_text, flipped(stored, 8), listed)
    whole, rows, data = pieces([4, 2], ROWS_OF_2)
    other = entry(UINT8, [4], 4, 1, offset=6)
    rows = [rows[0], (rows[1][0], other)]
    wrong_shape = [("BAD_SLICE", "SLC-9")]
    listed = (UINT8, [4, 2])
    part = boxes(b"x", [(0, 2), (0, 2)], u8(*EIGHT[:4], dims=[2, 2]))
    out.at_read("verify-slc-9-dat-6", whole, data, listed, *wrong_shape[0], part, extra_rows=rows)
    full: dict[str, Any] = {"level": "ckptfmt", "head": COMPRESSED_HEADER}
    chunk = b"\0" + ONES.raw
    listed = (ONES.code, ONES.dims)
    problems = [("BAD_ENTRY", "CMP-2"), CUT]
    message, data = compressed(ONES, [chunk], chunk_size=4080)
    bad("verify-cmp-2-dat-2", problems, message, data[:-1], listed, **full)
    problems = [("UNSUPPORTED", "CMP-9"), CUT]
    full["head"] = header(endianness=1, producer=2, min_consumer=2)
    message, data = compressed(ONES, [chunk])
    more = full | {"deviations": "BIG_ENDIAN"}
    bad("verify-cmp-9-dat-2", problems, message, data[:-1], listed, **more)
    full["head"] = COMPRESSED_HEADER
    # The first chunk has a method that does not exist, the last another checksum than its own.
    chunks = [b"\4" + THREE_CHUNKS[0][1:], *THREE_CHUNKS[1:]]
    message, data = compressed(THREE, chunks)
    listed = (UINT8, THREE.dims)
    damage = flipped(data, len(data) - 1)
    first = ("BAD_CHUNK", "CMP-12")
    problems = [("CHECKSUM", "CMP-11")]
    given = full | {"problems": problems, "rules": "CMP-11 CMP-12"}
    out.at_read("verify-cmp-11-cmp-12", message, damage, listed, *first, **given)
