# SPDX-License-Identifier: Apache-2.0
"""Every byte of three small checkpoints damaged in turn: TensorFlow's outcome beside ours.

CKPTFMT_TEST_DAMAGE=all tries all 255 other values of each byte instead of 14, and the path in
CKPTFMT_TEST_DAMAGE_SUMMARY receives the tables that stand in damage_summary.md.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.index import FOOTER_SIZE

import ckptfmt

from . import ours, table
from .generate import seed_from_environment
from .oracle import Mutation, Oracle
from .values import STRING, Value, digest_of, element_count

# The header that bans readers of consumer version 1: TensorFlow's is one, ours is of version 2. It
# is one byte away from what is written, and starts behind the first entry's three sizes.
BANS_CONSUMER_1 = bytes.fromhex("08 01 1a 02 18 01")
BANNED = ("error:InvalidArgumentError", "same, as consumer 2")

ALL = os.environ.get("CKPTFMT_TEST_DAMAGE") == "all"
SUMMARY = os.environ.get("CKPTFMT_TEST_DAMAGE_SUMMARY")


def numbers() -> tuple[list[bytes], list[bytes], list[Value]]:
    rng = random.Random(1)
    values = [
        (b"a/scalar", Value(1, (), rng.randbytes(4))),
        (b"a/vector", Value(3, (3,), rng.randbytes(12))),
        (b"b/half", Value(19, (2, 1), rng.randbytes(4))),
        (b"b/flags", Value(10, (3,), b"\1\0\1")),
        (b"b/zero", Value(2, (0, 2), b"")),
        (b"c/step", Value(9, (), rng.randbytes(8))),
        (b"c/bfloat16", Value(14, (2,), rng.randbytes(4))),
        (b"c/complex", Value(8, (), rng.randbytes(8))),
        (b"d/int4", Value(29, (3,), b"\x0f\x08\x07")),
    ]
    return [name for name, _ in values], [b""] * len(values), [value for _, value in values]


def strings() -> tuple[list[bytes], list[bytes], list[Value]]:
    values = [
        (b"words", Value(STRING, (2, 2), (b"hello", b"", b"wor\0ld", b"\xff\xfe"))),
        (b"lone", Value(STRING, (), (b"one string",))),
        (b"blank", Value(STRING, (), (b"",))),
        (b"none", Value(STRING, (0,), ())),
        (b"long", Value(STRING, (2,), (b"x" * 130, b"yz"))),
    ]
    return [name for name, _ in values], [b""] * len(values), [value for _, value in values]


def slices() -> tuple[list[bytes], list[bytes], list[Value]]:
    rng = random.Random(2)
    kernel = Value(1, (4, 3), rng.randbytes(48))
    bias = Value(3, (5,), rng.randbytes(20))
    names, specs, values = [], [], []
    for name, spec, value in (
        (b"kernel", b"4 3 0,2:-", kernel.box((slice(0, 2),))),
        (b"bias", b"5 3,2", bias.box((slice(3, 5),))),
        (b"kernel", b"4 3 2,2:0,1", kernel.box((slice(2, 4), slice(0, 1)))),
        (b"whole", b"", Value(4, (3,), b"abc")),
        (b"bias", b"5 0,3", bias.box((slice(0, 3),))),
        (b"kernel", b"4 3 2,2:1,2", kernel.box((slice(2, 4), slice(1, 3)))),
    ):
        names.append(name)
        specs.append(spec)
        values.append(value)
    return names, specs, values


def whole_tensors(
    names: list[bytes], specs: list[bytes], values: list[Value]
) -> dict[bytes, Value]:
    """The tensors behind the arguments of a save."""
    found = {n: v for n, s, v in zip(names, specs, values, strict=True) if not s}
    if b"kernel" in names:
        rng = random.Random(2)
        found[b"kernel"] = Value(1, (4, 3), rng.randbytes(48))
        found[b"bias"] = Value(3, (5,), rng.randbytes(20))
    return found


CHECKPOINTS = {"numbers": numbers, "strings": strings, "slices": slices}


def other_bytes(rng: random.Random, byte: int) -> list[int]:
    if ALL:
        return [other for other in range(256) if other != byte]
    chosen = {byte ^ 1 << bit for bit in range(8)} | {0, 0xFF}
    chosen |= {rng.randrange(256) for _ in range(4)}
    return sorted(chosen - {byte})


def single_bytes(rng: random.Random, content: bytes) -> list[Mutation]:
    """Each byte changed, and the file cut at each size."""
    changed: list[Mutation] = [
        ((offset, bytes([other])),)
        for offset, byte in enumerate(content)
        for other in other_bytes(rng, byte)
    ]
    return changed + [((size, None),) for size in range(len(content))]


def repaired_blocks(
    rng: random.Random, content: bytes, blocks: list[table.Region]
) -> list[Mutation]:
    """Each byte of each block changed, and the block's checksum with it."""
    found: list[Mutation] = []
    for block in blocks:
        sound = content[block.offset : block.offset + block.size + 1]
        for position, byte in enumerate(sound):
            for other in other_bytes(rng, byte):
                changed = sound[:position] + bytes([other]) + sound[position + 1 :]
                crc = table.mask(table.crc32c(changed)).to_bytes(4, "little")
                trailer = block.offset + len(sound)
                found.append(((block.offset + position, bytes([other])), (trailer, crc)))
    return found


def apply(content: bytes, mutation: Mutation) -> bytes:
    for offset, patch in mutation:
        if patch is None:
            return content[:offset]
        content = content[:offset] + patch + content[offset + len(patch) :]
    return content


@dataclass
class Outcome:
    """Ours: "same", "different" or "error:CLASS"; `complaints` lists what an error did not say."""

    text: str
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where an error may say that the damage is; `tensor` only for a data file."""

    begin: int
    end: int
    tensor: str | None = None


def stored_values(prefix: Path) -> list[Place]:
    """The region of each stored value, and its tensor."""
    found = []
    for key, stored in table.read_index(table.index_path(prefix)):
        entry = table.Entry.parse(stored)
        if key and not entry.partitioned and entry.size:
            # A slice's key is 0, the name (here without bytes that are escaped), 0 1, and the box.
            name = key[1 : key.index(b"\0\1")] if key.startswith(b"\0") else key
            found.append(Place(entry.offset, entry.offset + entry.size, name.decode()))
    return found


def index_places(regions: list[table.Region]) -> list[Place]:
    """Each block with its trailer, and the footer."""
    footer = next(region.offset for region in regions if region.name == "footer handles")
    blocks = [region for region in regions if region.offset < footer]
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    places = [Place(block.offset, trailer.offset + trailer.size) for block, trailer in pairs]
    return [*places, Place(footer, footer + FOOTER_SIZE)]


def complaints(error: ckptfmt.CkptfmtError, file: Path, places: list[Place]) -> list[str]:
    """What is missing or wrong in an error about damage of `file` at one of the places."""
    found = []
    if error.path != str(file):
        found.append(f"names the file {error.path!r}")
    if not re.match(r"[A-Z]{3}-\d+: ", error.message):
        found.append(f"cites no rule: {error.message!r}")
    if not any(
        error.tensor == place.tensor
        and error.offset is not None
        and place.begin <= error.offset < place.end
        for place in places
    ):
        found.append(f"tells the offset {error.offset}, tensor {error.tensor!r}, not {places}")
    return found


def our_outcome(
    prefix: Path,
    file: Path,
    places: list[Place],
    request: tuple[list[bytes], list[bytes], list[Value]],
    tensors: dict[bytes, Value],
) -> Outcome:
    """By name, as TensorFlow is asked, and by listing and loading all: one answer for both."""
    names, specs, values = request
    codes = {name: value.code for name, value in tensors.items()}
    answers = []
    missing: list[str] = []
    for read in (
        lambda: ours.restore_v2(prefix, names, specs, [value.code for value in values]) == values,
        lambda: ours.read_all(prefix, codes) == tensors,
    ):
        try:
            answers.append("same" if read() else "different")
        except ckptfmt.CkptfmtError as error:
            answers.append(f"error:{type(error).__name__}")
            missing += complaints(error, file, places)
    if "different" in answers:
        return Outcome("different", missing)
    if len({answer.split(":")[0] for answer in answers}) > 1:
        missing.append(f"by name: {answers[0]}, by listing: {answers[1]}")
    return Outcome(answers[0], missing)


def region_of(regions: list[table.Region], mutation: Mutation) -> str:
    offset, patch = mutation[0]
    if patch is None:
        return "cut short"
    return next(region.name for region in regions if offset in region)


def data_regions(prefix: Path) -> list[table.Region]:
    """Stored values of the data file; for strings the sizes, their checksum and the bytes apart."""
    found = []
    for key, stored in table.read_index(table.index_path(prefix)):
        entry = table.Entry.parse(stored)
        if not key or entry.partitioned or not entry.size:
            continue
        if entry.dtype != STRING:
            found.append(table.Region("values", entry.offset, entry.size))
            continue
        data = table.data_path(prefix, 0, 1).read_bytes()
        position = entry.offset
        for _ in range(element_count(entry.shape)):
            _, position = table.take_varint(data, position)
        end = entry.offset + entry.size
        found.append(table.Region("string sizes", entry.offset, position - entry.offset))
        found.append(table.Region("checksum of string sizes", position, 4))
        found.append(table.Region("string bytes", position + 4, end - position - 4))
    return found


def markdown(tables: dict[tuple[str, str], Counter[tuple[str, str, str]]]) -> str:
    values = "all 255 other values of each byte" if ALL else "14 other values of each byte"
    lines = [
        "# One byte damaged: TensorFlow 2.21 and ckptfmt",
        "",
        f"Written by test_damage.py: three checkpoints that TensorFlow wrote, {values},",
        "and the file cut short at each size; then the index again with the checksum of the",
        "damaged block repaired, so that what its entries say is at stake. Both sides read every",
        "tensor whole and every stored slice; where no checksum is repaired ckptfmt also reads all",
        "that it lists. `same` and `different` are about the values read (two `different` of a row",
        "are the same values), `died:N` is the end of the process by signal N; an error is named",
        "by its class. `same, as consumer 2`: the header bans readers of consumer version 1, as",
        "TensorFlow is one, and ckptfmt is of version 2.",
    ]
    for (checkpoint, file), counts in tables.items():
        lines += ["", f"## {checkpoint}, {file}", ""]
        lines += ["| region | TensorFlow | ckptfmt | cases |", "| --- | --- | --- | ---: |"]
        for (region, theirs, mine), count in counts.items():
            lines.append(f"| {region} | {theirs} | {mine} | {count} |")
    totals: Counter[tuple[str, str]] = Counter()
    for counts in tables.values():
        for (_, theirs, mine), count in counts.items():
            totals[theirs.split(":")[0], mine.split(":")[0]] += count
    lines += ["", "## All", "", "| TensorFlow | ckptfmt | cases |", "| --- | --- | ---: |"]
    lines += [f"| {a} | {b} | {count} |" for (a, b), count in sorted(totals.items())]
    return "\n".join(lines) + "\n"


TABLES: dict[tuple[str, str], Counter[tuple[str, str, str]]] = {}


def places_near(places: list[Place], region: str, mutation: Mutation, size: int) -> list[Place]:
    """Where an error about this damage may point."""
    offset = mutation[0][0]
    if region == "cut short" and places[-1].end == size and places[-1].tensor is None:
        return [Place(0, offset + 1)]  # an index: what is its footer now
    if region == "cut short":
        return [place for place in places if offset < place.end]
    if region == "footer handles":
        return places
    return [place for place in places if place.begin <= offset < place.end]


class Subject:
    """One checkpoint, the requests for all that it holds, and one of its files."""

    def __init__(self, oracle: Oracle, directory: Path, checkpoint: str, file: str) -> None:
        self.oracle = oracle
        self.prefix = directory / "p"
        save = CHECKPOINTS[checkpoint]()
        oracle.save_v2(self.prefix, *save)
        self.tensors = whole_tensors(*save)
        self.request = (
            [*save[0], *self.tensors],
            [*save[1], *[b""] * len(self.tensors)],
            [*save[2], *self.tensors.values()],
        )
        if file == "index":
            self.path = table.index_path(self.prefix)
            self.regions = table.index_regions(self.path)
            self.places = index_places(self.regions)
        else:
            self.path = table.data_path(self.prefix, 0, 1)
            self.regions = data_regions(self.prefix)
            self.places = stored_values(self.prefix)
        self.sound = self.path.read_bytes()
        assert len(self.sound) < 700

    def bans_consumer_1(self) -> bool:
        """Whether the index now bans readers of consumer version 1."""
        return self.path.read_bytes()[3:].startswith(BANS_CONSUMER_1)

    def outcomes(
        self, mutations: list[Mutation], ask: Callable[[str, Mutation], Outcome]
    ) -> Iterator[tuple[str, str, Outcome, str]]:
        """Region, TensorFlow's outcome, ours and a text to tell the case, of each mutation."""
        theirs = self.oracle.damage(self.prefix, self.path, mutations, *self.request)
        for mutation, their_outcome in zip(mutations, theirs, strict=True):
            self.path.write_bytes(apply(self.sound, mutation))
            region = region_of(self.regions, mutation)
            mine = ask(region, mutation)
            told = " ".join(f"{o}={'cut' if p is None else p.hex()}" for o, p in mutation)
            yield (
                region,
                their_outcome,
                mine,
                f"{region}, {told}: TensorFlow {their_outcome}, ckptfmt {mine.text}",
            )
        self.path.write_bytes(self.sound)


def row_text(outcome: str) -> str:
    """An outcome as the tables tell it: without the digest of different values."""
    return "different" if outcome.startswith("different") else outcome


def report(name: tuple[str, str], counts: Counter[tuple[str, str, str]]) -> None:
    TABLES[name] = counts
    for (region, theirs, mine), count in counts.items():
        print(f"{count:8d}  {region:28s} TensorFlow {theirs:28s} ckptfmt {mine}")
    if SUMMARY:
        Path(SUMMARY).write_text(markdown(TABLES))


def check(failures: list[str], total: int, seed: int) -> None:
    if failures:
        kinds = Counter(failure.rpartition(": ")[2] for failure in failures)
        pytest.fail(
            f"{len(failures)} of {total}, CKPTFMT_TEST_SEED={seed}: {kinds.most_common(6)}\n"
            + "\n".join(failures[:20])
        )


@pytest.mark.parametrize("file", ["index", "data"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_every_byte(oracle: Oracle, tmp_path: Path, checkpoint: str, file: str) -> None:
    """We refuse what TensorFlow refuses and nothing else, and say where the damage is."""
    seed = seed_from_environment()
    subject = Subject(oracle, tmp_path, checkpoint, file)

    def ask(region: str, mutation: Mutation) -> Outcome:
        near = places_near(subject.places, region, mutation, len(subject.sound))
        return our_outcome(subject.prefix, subject.path, near, subject.request, subject.tensors)

    assert ask("", ((0, b""),)) == Outcome("same")
    attempts = single_bytes(random.Random(seed), subject.sound)
    counts: Counter[tuple[str, str, str]] = Counter()
    failures: list[str] = []
    for region, theirs, mine, case in subject.outcomes(attempts, ask):
        counts[region, row_text(theirs), row_text(mine.text)] += 1
        if mine.text == "different":
            failures.append(f"{case}: wrong values")
        elif (mine.text == "same") != (theirs == "same"):
            failures.append(f"{case}: not the same answer")
        failures += [f"{case}: {complaint}" for complaint in mine.complaints]
    report((checkpoint, f"{file} file"), counts)
    check(failures, len(attempts), seed)
    if file == "index":
        # Nobody reads the metaindex or the padding of the footer; the damage is noticed elsewhere.
        unread = {"metaindex", "metaindex trailer", "footer handles", "footer padding"}
        assert {region for region, _, mine_text in counts if mine_text == "same"} == unread


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_every_byte_with_repaired_checksum(oracle: Oracle, tmp_path: Path, checkpoint: str) -> None:
    """As a forger would: the block's checksum is right again, so what the entries say is at stake.

    What TensorFlow refuses we refuse. What it reads we read the same, or refuse. Where it dies, we
    do not. One header is for us alone: the one that keeps readers of consumer version 1 away.
    """
    seed = seed_from_environment()
    subject = Subject(oracle, tmp_path, checkpoint, "index")
    names, specs, values = subject.request
    codes = [value.code for value in values]

    def ask(region: str, mutation: Mutation) -> Outcome:
        try:
            found = ours.restore_v2(subject.prefix, names, specs, codes)
        except ckptfmt.CkptfmtError as error:
            return Outcome(f"error:{type(error).__name__}")
        same = "same, as consumer 2" if subject.bans_consumer_1() else "same"
        return Outcome(same if found == values else f"different:{digest_of(found)}")

    blocks = [r for r in subject.regions if r.name in ("data block", "index block")]
    attempts = repaired_blocks(random.Random(seed), subject.sound, blocks)
    counts: Counter[tuple[str, str, str]] = Counter()
    failures: list[str] = []
    for region, theirs, mine, case in subject.outcomes(attempts, ask):
        counts[region, row_text(theirs), row_text(mine.text)] += 1
        if mine.text.startswith("error") or mine.text == theirs:
            continue
        told = theirs.startswith("died") and mine.text == "same"
        if not told and (theirs, mine.text) != BANNED:
            failures.append(f"{case}: neither refused nor the same")
    report((checkpoint, "index file, block checksums repaired"), counts)
    check(failures, len(attempts), seed)
    assert counts["data block", *BANNED] == 1
