# SPDX-License-Identifier: Apache-2.0
"""Two faults in one value: the C core and the reference report the same problems, those that
section 3 of `spec/conformance.md` says are still checked after a failure."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import vectors

import ckptfmt
from ckptfmt import CorruptError
from ckptfmt.bundle.verify import verify_prefix

UINT8, STRING, VARIANT = 4, 7, 21


@dataclass
class Stored:
    """What the entry of `x` says, and what is stored."""

    code: int
    count: int  # of elements
    data: bytes
    chunk_size: int
    crcs: list[int]
    crc: int
    size: int
    flags: int = 0
    sizes: list[int] = field(default_factory=list)
    raw_size: int = 0
    raw_crc: int = 0
    offset: int = 2
    shard: int = 0
    crc_bytes: bytes = b""  # behind chunk_crcs
    big_endian: bool = False
    overlapped: bool = False
    cut: int = 0
    missing: bool = False


def change(**fields: Any) -> Callable[[Stored], None]:
    return lambda stored: stored.__dict__.update(fields)


def add_to(name: str, number: int) -> Callable[[Stored], None]:
    return lambda stored: setattr(stored, name, getattr(stored, name) + number)


def flip(at: int) -> Callable[[Stored], None]:
    def apply(stored: Stored) -> None:
        data = bytearray(stored.data)
        data[at] ^= 1
        stored.data = bytes(data)

    return apply


def wrong_chunk(at: int) -> Callable[[Stored], None]:
    def apply(stored: Stored) -> None:
        stored.crcs[at] ^= 1

    return apply


def one_chunk_less(stored: Stored) -> None:
    """EXT-4, or CMP-4."""
    stored.crcs.pop()


def wrong_chunk_size(stored: Stored) -> None:
    """EXT-5, or CMP-2."""
    stored.chunk_size = 4104 if stored.flags else stored.size


def unknown_method(stored: Stored) -> None:
    """CMP-12, under checksums that are right; else other bytes."""
    crc32c = vectors.load_reference().rules.crc32c
    stored.data = b"\x09" + stored.data[1:]
    if stored.flags & 1:
        stored.crcs[0] = crc32c(stored.data[: stored.sizes[0]])
        stored.crc = crc32c(stored.data)


FAULTS: Mapping[str, Callable[[Stored], None]] = {
    "ENT-3": change(shard=9),
    "ENT-4": change(offset=-1),
    "ENT-4 sum": change(offset=2**63 - 3),
    "ENT-4 size": change(size=-1),
    "ENT-5": add_to("count", 1),
    "STR-2": change(count=10**6),
    "NAM-5": change(missing=True),
    "DAT-2": change(cut=3),
    "DAT-8": change(overlapped=True),
    "DAT-6 first": flip(0),
    "DAT-6 last": flip(-1),
    "DAT-6 entry": add_to("crc", 1),
    "EXT-2": change(crc_bytes=b"\0"),
    "EXT-3": add_to("flags", 2),
    "EXT-5": wrong_chunk_size,
    "EXT-9": wrong_chunk(0),
    "EXT-9 last": wrong_chunk(-1),
    "DTY-5": change(code=20),
    "DTY-5 zero": change(code=0),
    "DTY-6": change(code=34),
    "VAR-6": change(big_endian=True),
    "CMP-4": change(sizes=[1]),
    "CMP-12": unknown_method,
    "CMP-19": add_to("raw_crc", 1),
    "CMP-19 size": add_to("raw_size", 1),
    "EXT-4": one_chunk_less,  # after those that change a chunk
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(vectors.SPEC))
    return importlib.import_module("making.parts")


def sound(kind: str, parts: Any) -> Stored:
    """A value without faults."""
    if kind == "compressed":
        raw = b"\1" * 4096 + b"\2" * 100
        chunks = [b"\1" + parts.run_frame(1, 4096), b"\1" + parts.run_frame(2, 100)]
    elif kind == "compressed strings":
        raw = parts.string_value([b"a" * 40, b"", b"b"])[0]
        chunks = [b"\1" + parts.runs_frame(raw)]
    else:
        code, count, chunk_size, (data, crc) = {
            "fixed": (UINT8, 10, 4, (bytes(range(10)), parts.crc32c(bytes(range(10))))),
            "strings": (STRING, 3, 8, parts.string_value([b"hello", b"", b"world"])),
            "variants": (VARIANT, 2, 8, parts.variant_value([b"abc", b"de"])),
        }[kind]
        pieces = (data[at : at + chunk_size] for at in range(0, len(data), chunk_size))
        crcs = [parts.crc32c(one) for one in pieces]
        return Stored(code, count, data, chunk_size, crcs, crc, len(data))
    data = b"".join(chunks)
    code, count, raw_crc = UINT8, len(raw), parts.crc32c(raw)
    if kind == "compressed strings":
        code, count, raw_crc = STRING, 3, parts.string_value([b"a" * 40, b"", b"b"])[1]
    crcs = [parts.crc32c(one) for one in chunks]
    found = Stored(code, count, data, 4096, crcs, parts.crc32c(data), len(data), flags=1)
    found.sizes, found.raw_size, found.raw_crc = [*map(len, chunks)], len(raw), raw_crc
    return found


def write(parts: Any, directory: Path, stored: Stored, kind: Stored, in_slices: bool) -> str:
    """The bundle of `x`, whole or as the first of two slices, and of other tensors."""
    crcs = b"".join(map(parts.u32, stored.crcs)) + stored.crc_bytes
    content = parts.some(1, stored.flags) + parts.some(2, stored.chunk_size) + parts.msg(3, crcs)
    if stored.flags & 1:
        content += parts.msg(4, parts.packed(stored.sizes)) + parts.some(5, stored.raw_size)
        content += parts.fixed(6, stored.raw_crc & 0xFFFFFFFF)
    own = parts.entry(
        stored.code,
        [stored.count],
        stored.size,
        stored.crc & 0xFFFFFFFF,
        offset=stored.offset,
        shard=stored.shard,
        tail=parts.extension(content),
    )
    second = {STRING: parts.string_value, VARIANT: parts.variant_value}.get(kind.code)
    data, crc = second([b"q"]) if second else (b"\5", parts.crc32c(b"\5"))
    rows = [(b"a", parts.entry(UINT8, [2], 2, parts.crc32c(b"\1\2")))]
    if in_slices:
        places = [(0, kind.count), (kind.count, 1)]
        listed = (parts.slice_(place) for place in places)
        rows.append((b"x", parts.partitioned(kind.code, [kind.count + 1], *listed)))
        rows.append((parts.slice_key(b"x", places[0]), own))
        other = parts.entry(kind.code, [1], len(data), crc, shard=1)
        rows.append((parts.slice_key(b"x", places[1]), other))
    else:
        rows.append((b"x", own))
    content = b"\1\2" + stored.data
    if stored.overlapped:
        rows.append((b"o", parts.entry(UINT8, [2], 2, parts.crc32c(content[1:3]), offset=1)))
    head = parts.header(2, int(stored.big_endian), producer=2, min_consumer=2)
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    (directory / "x.index").write_bytes(parts.table(*sorted(rows), head=head))
    (directory / "x.data-00001-of-00002").write_bytes(data)
    if not stored.missing:
        shard = content[: len(content) - stored.cut]
        (directory / "x.data-00000-of-00002").write_bytes(shard)
    return str(directory / "x")


def agree(core: set[tuple[str, str]], reference: set[tuple[str, str]]) -> bool:
    """The same problems; of one that is not damage the core may leave out the rule."""
    ruled = {one for one in reference if one[0] in CorruptError.failures}
    others = {failure for failure, _ in reference - ruled}
    named = {one for one in core if one[0] in CorruptError.failures}
    return named == ruled and {failure for failure, _ in core - named} == others


def reference_read_error(reference: Any, prefix: str) -> tuple[str, str] | None:
    """The same of the reference."""
    try:
        with contextlib.closing(reference.Bundle(prefix)) as bundle:
            bundle.read(b"x")
    except reference.Violation as violation:
        return violation.failure, violation.rule
    return None


def read_error(prefix: str) -> tuple[str, str] | None:
    """The failure of a read of `x`, and its rule."""
    try:
        with ckptfmt.Reader(prefix, verify="full") as reader:
            reader["x"].read()
    except ckptfmt.CkptfmtError as error:
        return error.failure, vectors.rule_of(error.message)
    return None


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("in_slices", [False, True], ids=["whole", "slice"])
@pytest.mark.parametrize(
    "kind", ["fixed", "strings", "variants", "compressed", "compressed strings"]
)
def test_two_faults(
    kind: str, in_slices: bool, share: int, parts: Any, tmp_path: Path, seed: int
) -> None:
    """One pair of faults in `share`, and each fault alone."""
    pairs = [*itertools.combinations(FAULTS, 2)]
    pairs = random.Random(f"{seed} {kind} {in_slices}").sample(pairs, len(pairs) // share)
    reference = vectors.load_reference()
    base = sound(kind, parts)
    some = 0
    for names in [(), *itertools.combinations(FAULTS, 1), *pairs]:
        stored = sound(kind, parts)
        for name in names:
            FAULTS[name](stored)
        prefix = write(parts, tmp_path / "made", stored, base, in_slices)
        report = verify_prefix(prefix)
        core = {(one.failure, vectors.rule_of(one.message)) for one in report.problems}
        found = {(one.failure, one.rule) for one in reference.verify(prefix)[0]}
        assert agree(core, found), (names, sorted(core), sorted(found))
        assert names or not found
        refused = read_error(prefix)
        told = reference_read_error(reference, prefix)
        assert (refused and refused[0]) == (told and told[0]), (names, refused, told)
        assert not refused or not refused[1] or refused == told, (names, refused, told)
        # Whatever a reader refuses, verify reports; an unknown type alone is no fault.
        if "DTY-6" not in names and refused:
            reported = core if refused[1] else {(failure, "") for failure, _ in core}
            # Of a negative size with chunks a reader says EXT-5, which comes first; verify ENT-4.
            some_other = len(names) > 1 or names == ("ENT-4 size",)
            assert core and (some_other or refused in reported), (names, refused, core)
        some += bool(found)
    assert some > 300 / share
