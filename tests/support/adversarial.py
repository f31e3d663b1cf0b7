# SPDX-License-Identifier: Apache-2.0
"""Cases of malformed checkpoints, each named after items of the adversarial checklist.

The files come from `support.index`, with checksums that fit, so that the check meant is reached.
A refusal is exact: failure class, rule, file, and the offset if the damage has one. Verifying must
find the same. No case may take much memory or time, or leave a file open.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt import CkptfmtError, CorruptError, _core
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.verify import Finding
from support import index as ix
from support.arrays import bits
from support.process import memory_limit, open_files

MEMORY = 64 << 20

SECONDS = 5


F2 = np.array([1, 2], np.float32)

DATA = F2.tobytes()

GOOD = ix.stored_entry(ix.FLOAT, [2], DATA)


@dataclass
class Refused:
    """What an error must be. `offset` None: it has none; a range: it is within."""

    failure: str
    rule: str | None
    offset: int | range | type(Ellipsis) | None = ...
    file: str | None = ".index"
    names: str | None = None  # what the message must say


@dataclass
class Trial:
    label: str
    act: Callable[[], Any]
    expected: Any
    memory: int = MEMORY


Case = Callable[[Path], Iterator[Trial]]


@dataclass
class Use:
    """Opens a checkpoint and lists it, or reads one tensor or a part of it without a listing."""

    prefix: Path
    options: dict[str, Any]
    name: str | bytes | None = None
    key: Any = None

    def __call__(self) -> Any:
        with Reader(str(self.prefix), **self.options) as reader:
            if self.name is None:
                return {name: handle.shape for name, handle in reader.items()}
            handle = reader[self.name]
            return bits(handle.read() if self.key is None else handle[self.key])


def listed(prefix: Path, **options: Any) -> Use:
    """Open and list: name to shape."""
    return Use(prefix, options)


def loaded(prefix: Path, name: str | bytes = "x", key: Any = None, **options: Any) -> Use:
    """Look one tensor up, without a listing, and read it or a part of it."""
    return Use(prefix, options, name, key)


def everything(prefix: Path) -> Callable[[], dict[str, Any]]:
    """Lists and reads all."""

    def act() -> dict[str, Any]:
        with Reader(str(prefix)) as reader:
            return {name: bits(handle.read()) for name, handle in reader.items()}

    return act


class Files:
    """Numbered prefixes in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.count = directory, 0

    def __call__(self, index: ix.Index | bytes, data: Any = DATA, num_shards: int = 1) -> Path:
        self.count += 1
        return ix.write(self.directory / f"c{self.count}", index, data, num_shards)


def table(*rows: ix.Row, head: bytes | None = None, **options: Any) -> ix.Index:
    """An index of one block with header and rows, built so that its positions are known."""
    made = ix.index_of([(b"", ix.header() if head is None else head), *rows], **options)
    made.build()
    return made


def with_value(value: bytes, name: bytes = b"x") -> tuple[ix.Index, range]:
    """An index whose only entry is `value`, and the range of that in the file."""
    made = table((name, value))
    start = made.blocks[0].values[1]
    return made, range(start, start + len(value) + 1)


SOUND = {"x": bits(F2)}


def many_blocks() -> tuple[ix.Index, int]:
    """An index larger than what opening reads of its end, and its number of tensors."""
    value = ix.entry(1, [0], masked_crc=ix.mask(0))
    groups: list[list[ix.Row]] = [[(b"", ix.header())]]
    for first in range(0, 6000, 1000):
        groups.append([(b"t%05d" % number, value) for number in range(first, first + 1000)])
    return ix.index_of(*groups), 6000


def index_of_contents(contents: bytes, last_key: bytes = b"x", **options: Any) -> ix.Index:
    return ix.raw_index(contents, last_key, **options)


FOUR = np.arange(4, dtype=np.float32).tobytes()


def partitioned(extents: list[list[ix.Extent]], dims: list[int]) -> ix.Index:
    """A tensor `x` in slices whose bytes stand one after the other in FOUR."""
    rows, offset = [], 0
    for one in extents:
        lengths = [d if n == -1 else n for (_, n), d in zip(one, dims, strict=True)]
        piece = FOUR[offset : offset + 4 * math.prod(lengths)]
        rows.append((ix.slice_key(b"x", one), ix.stored_entry(1, lengths, piece, offset)))
        offset += len(piece)
    full = ix.entry(1, dims, slices=[ix.slice_message(one) for one in extents])
    return table(*sorted(rows), (b"x", full))


DATA_FILE = ".data-00000-of-00001"


def merged(
    directory: Path, *prefixes: Path, to: str = "merged", **options: Any
) -> Callable[[], Any]:
    """Merges; after a refusal nothing may have changed on disk."""

    def snapshot() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}

    def act() -> Any:
        before = snapshot()
        try:
            ckptfmt.merge(prefixes, directory / to, **options)
        except CkptfmtError:
            assert snapshot() == before
            raise
        return everything(directory / to)()

    return act


def check_refusal(label: str, error: BaseException, expected: Refused) -> None:
    assert isinstance(error, CkptfmtError), f"{label}: {error!r}"
    wrong = f"{label}: {error} [{error.failure} {error.offset} {error.path}]"
    assert isinstance(error, _core.ERROR_BY_FAILURE[error.failure]), wrong
    assert is_expected(error, expected), wrong
    if expected.names is not None:
        assert re.search(expected.names, error.message), wrong
    assert str(error).isprintable(), wrong


def is_expected(found: CkptfmtError | Finding, expected: Refused) -> bool:
    """Whether an error or a finding has the failure class, the rule, the place and the file."""
    if isinstance(expected.offset, range):
        offset = found.offset in expected.offset
    else:
        offset = expected.offset is ... or found.offset == expected.offset
    return (
        offset
        and re.fullmatch(expected.failure, found.failure) is not None
        and (expected.rule is None or re.match(f"({expected.rule}):", found.message) is not None)
        and (expected.file is None or (found.path or "").endswith(expected.file))
    )


def check_verify(trial: Trial, error: BaseException) -> None:
    """Verifying finds the damage that reading is refused for, at the same place."""
    if not isinstance(trial.act, Use) or trial.act.options or not isinstance(error, CorruptError):
        return
    report = ckptfmt.verify(trial.act.prefix)
    assert any(is_expected(one, trial.expected) for one in report.problems), (
        f"{trial.label}, verified: {report.problems}"
    )


def check(trial: Trial) -> None:
    files, began = open_files(), time.process_time()
    found: Any
    with memory_limit(trial.memory):
        try:
            found = trial.act()
        except (CkptfmtError, MemoryError) as error:
            found = error
    took = time.process_time() - began
    if isinstance(trial.expected, Refused):
        check_refusal(trial.label, found, trial.expected)
        check_verify(trial, found)
    else:
        assert found == trial.expected, f"{trial.label}: {found!r:.300}"
    assert took < SECONDS, f"{trial.label}: {took:.1f} s of CPU"
    del found
    assert open_files() == files, trial.label


class Cases(dict[str, Case]):
    """The cases of one module, by the items of the checklist that they stand for."""

    def __call__(self, *identifiers: str) -> Callable[[Case], Case]:
        """Files a case under its items."""

        def file_under(made: Case) -> Case:
            name = "+".join(identifiers)
            assert name not in self
            self[name] = made
            return made

        return file_under

    def run(self, name: str, directory: Path) -> None:
        """Checks every trial of a case."""
        wrong, count = [], 0
        # The files of a trial are made when it is asked for, so only its act is bounded.
        for trial in self[name](directory):
            count += 1
            try:
                check(trial)
            except AssertionError as error:
                wrong.append(str(error).partition("\nassert")[0])
        assert count
        assert not wrong, "\n".join(wrong)
