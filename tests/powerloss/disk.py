# SPDX-License-Identifier: Apache-2.0
"""What a disk may hold after a power cut: images of a directory, for every moment of a trace.

A system call is durable when a later sync covers it. Two models say what may be lost of the others:

  ordered  changes of directories take effect in their order, and a sync of anything covers all
           before it, as in the journals of ext4 and XFS;
  subset   any subset of the changes of directories that no sync of that directory covers, as POSIX
           allows.

In both, a file has what its last sync covered, and of what was written since nothing, all, the
first half, or zeros of its length.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Call", "Disk", "Image", "images", "lay_out"]

# Up to so many unsynced changes of directories, and files with unsynced bytes, all combinations are
# taken; of more, the ends, those that differ in one, and random ones: as many as `breadth` says.
CHANGES_ALL, FILES_ALL = 6, 2
STATES = ("old", "full", "half", "zeros")

Image = frozenset[tuple[str, bytes | None]]  # paths with contents; None is a directory


@dataclass(frozen=True)
class Call:
    """A system call that succeeded; paths are relative to the directory.

    Attributes:
        kind: "create", "write", "truncate", "sync", "rename", "link", "unlink", "mkdir" or "mark".
        path: what is changed; of a mark, its text.
        other: of a rename or link, the new path.
        data: the bytes of a write.
        offset: of a write; the new size of a truncate; -1 appends.
        number: counts the calls of the process that change something, failed ones included.
    """

    kind: str
    path: str
    other: str = ""
    data: bytes = b""
    offset: int = 0
    number: int = 0


@dataclass
class _File:
    durable: bytes = b""
    # Since the last sync: writes as (offset, bytes), truncations as (size, None).
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def content(self, state: str) -> bytes:
        if state == "old" or not self.pending:
            return self.durable
        found = bytearray(self.durable)
        left = sum(len(data) for _, data in self.pending if data) // 2
        for offset, data in self.pending:
            if data is None:
                found = found[:offset].ljust(offset, b"\0")
                continue
            end = offset + len(data)
            if state == "half":
                data, left = data[:left], left - len(data[:left])  # noqa: PLW2901
                end = offset + len(data)
            elif state == "zeros":
                data = bytes(len(data))  # noqa: PLW2901
            found = found.ljust(end, b"\0")
            found[offset:end] = data
        return bytes(found)


@dataclass(frozen=True)
class _Change:
    """Names that one call adds to and removes from directories, all at once."""

    adds: tuple[tuple[str, _File | None], ...]
    removes: tuple[str, ...]

    @property
    def folders(self) -> set[str]:
        return {os.path.dirname(path) for path in [*self.removes, *(path for path, _ in self.adds)]}


class Disk:
    """The directory after some calls: as programs see it, and what is durable of it."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self.live: dict[str, _File | None] = {}
        self.durable: dict[str, _File | None] = {}
        self.pending: list[_Change] = []

    def apply(self, call: Call) -> None:
        if call.kind == "create":
            self._change({call.path: _File()}, [])
        elif call.kind == "mkdir":
            self._change({call.path: None}, [])
        elif call.kind == "unlink":
            self._change({}, [call.path])
        elif call.kind == "link":
            self._change({call.other: self.live[call.path]}, [])
        elif call.kind == "rename":
            self._change({call.other: self.live[call.path]}, [call.path])
        elif call.kind in ("write", "truncate"):
            file = self.live[call.path]
            assert file is not None
            offset = len(file.content("full")) if call.offset < 0 else call.offset
            file.pending.append((offset, call.data if call.kind == "write" else None))
        elif call.kind == "sync":
            self._sync(call.path)
        else:
            raise AssertionError(call)

    def _change(self, adds: dict[str, _File | None], removes: list[str]) -> None:
        for path in removes:
            del self.live[path]
        self.live |= adds
        if self._strict and removes and adds and _folder([*adds]) != _folder(removes):
            self.pending += [_Change(tuple(adds.items()), ()), _Change((), tuple(removes))]
        else:
            self.pending.append(_Change(tuple(adds.items()), tuple(removes)))

    def _sync(self, path: str) -> None:
        file = self.live[path] if path else None
        if file is not None:
            file.durable, file.pending = file.content("full"), []
        rest = []
        for change in self.pending:
            if not self._strict or (file is None and change.folders == {path}):
                _take(self.durable, change)
            else:
                rest.append(change)
        self.pending = rest

    def names(self, chance: random.Random, breadth: int) -> Iterator[dict[str, _File | None]]:
        """Yield what directories may hold."""
        for chosen in self._chosen(chance, breadth):
            names = dict(self.durable)
            for change in chosen:
                _take(names, change)
            yield {path: file for path, file in names.items() if _reachable(path, names)}

    def _chosen(self, chance: random.Random, breadth: int) -> Iterator[list[_Change]]:
        every, count = self.pending, len(self.pending)
        if not self._strict:
            yield from (every[:number] for number in range(count + 1))
        elif count <= CHANGES_ALL:
            for mask in itertools.product((False, True), repeat=count):
                yield list(itertools.compress(every, mask))
        else:
            yield from (every[:number] for number in range(count + 1))
            yield from (every[:number] + every[number + 1 :] for number in range(count))
            yield from ([change] for change in every)
            for _ in range(breadth):
                yield [change for change in every if chance.random() < 0.5]


def _folder(paths: list[str]) -> set[str]:
    return {os.path.dirname(path) for path in paths}


def _take(names: dict[str, _File | None], change: _Change) -> None:
    for path in change.removes:
        names.pop(path, None)
    names.update(change.adds)


def _reachable(path: str, names: dict[str, _File | None]) -> bool:
    folder = os.path.dirname(path)
    return not folder or (names.get(folder, 0) is None and _reachable(folder, names))


def _contents(
    names: dict[str, _File | None], chance: random.Random, breadth: int
) -> Iterator[Image]:
    """Yield what the files of these names may hold."""
    unsynced = list({id(file): file for file in names.values() if file and file.pending}.values())
    if len(unsynced) <= FILES_ALL:
        states = list(itertools.product(STATES, repeat=len(unsynced)))
    else:
        states = [(state,) * len(unsynced) for state in STATES]
        for number in range(len(unsynced)):
            for state in STATES:
                states.append(
                    ("full",) * number + (state,) + ("full",) * (len(unsynced) - number - 1)
                )
        states += [tuple(chance.choices(STATES, k=len(unsynced))) for _ in range(breadth)]
    full = {path: file and file.content("full") for path, file in names.items()}
    for chosen in states:
        state = {id(file): one for file, one in zip(unsynced, chosen, strict=True)}
        changed = {
            path: file.content(state[id(file)])
            for path, file in names.items()
            if file and id(file) in state
        }
        yield frozenset((full | changed).items())


def images(
    calls: list[Call], model: str, chance: random.Random, breadth: int = 40
) -> Iterator[tuple[int, Image]]:
    """Yield the distinct images that a power cut may leave, each with the number of calls that were
    made: between any two calls, and after the last."""
    disk = Disk(strict=model == "subset")
    marks, seen = 0, set[tuple[int, int]]()
    for number in range(len(calls) + 1):
        for names in disk.names(chance, breadth):
            for image in _contents(names, chance, breadth):
                # The same image is another case after a mark: more has been promised.
                key = marks, hash(image)
                if key not in seen:
                    seen.add(key)
                    yield number, image
        if number < len(calls):
            if calls[number].kind == "mark":
                marks += 1
            else:
                disk.apply(calls[number])


def lay_out(image: Image, root: Path) -> None:
    """Make the files of an image in an empty directory."""
    for path, content in sorted(image, key=lambda one: one[0]):
        if content is None:
            os.mkdir(root / path)
        else:
            fd = os.open(root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(fd, content)
            os.close(fd)
