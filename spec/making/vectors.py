# SPDX-License-Identifier: Apache-2.0
"""A vector: files, and what a reader makes of them step by step; and the usual kinds of them.

Names of tensors and elements of strings are bytes. In vectors.json a name is a text of which each
character is one byte (U+0000 .. U+00FF); bytes of values are hex, `HH*n` for n times the same, and
little-endian in a bundle of either byte order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from making import parts
from making.parts import Row

FLOAT, UINT8, STRING, VARIANT = 1, 4, 7, 21
BFLOAT16, UINT16 = 14, 17

Step = dict[str, Any]
Refusal = tuple[str, str]  # failure class and rule


def text(name: bytes) -> str:
    return name.decode("latin-1")


def hex_runs(data: bytes) -> str:
    """Bytes as vectors.json has them: a run of 4 or more of one byte is `HH*n`."""
    words = [""]
    for one, run in itertools.groupby(data):
        count = len(list(run))
        if count < 4:
            words[-1] += f"{one:02x}" * count
        else:
            words += [f"{one:02x}*{count}", ""]
    return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Value:
    """A tensor's value: raw bytes (little-endian) of a fixed type, or elements."""

    code: int
    dims: tuple[int, ...]
    raw: bytes = b""
    elements: tuple[bytes, ...] | None = None

    def stored(self) -> tuple[bytes, int]:
        """The bytes in the data file and their checksum."""
        if self.code == STRING:
            return parts.string_value(self.elements or ())
        if self.code == VARIANT:
            return parts.variant_value(self.elements or ())
        return self.raw, parts.crc32c(self.raw)

    def entry(self, offset: int = 0, **more: Any) -> bytes:
        data, crc = self.stored()
        return parts.entry(self.code, self.dims, len(data), crc, offset=offset, **more)

    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"dtype": self.code, "shape": list(self.dims)}
        if self.elements is None:
            return made | {"bytes": hex_runs(self.raw)}
        return made | {"elements": [one.hex() for one in self.elements]}


def u8(*numbers: int, dims: Sequence[int] | None = None) -> Value:
    return Value(UINT8, (len(numbers),) if dims is None else tuple(dims), bytes(numbers))


def strings(*elements: bytes, dims: Sequence[int] | None = None) -> Value:
    return Value(STRING, (len(elements),) if dims is None else tuple(dims), elements=elements)


GOOD = u8(1, 2)
FLOATS = Value(FLOAT, (2,), bytes.fromhex("0000803f00000040"))


@dataclass
class Vector:
    """One case. `files` are by what their names have after the prefix."""

    name: str
    rules: list[str]
    files: dict[str, bytes]
    steps: list[Step]
    level: str = "v2"
    suffix: str = ""  # of the prefix, behind the vector's name
    limits: dict[str, int] = field(default_factory=dict)
    consumer: int = 2

    @property
    def kind(self) -> str:
        if any("fails" in step or step.get("problems") or "among" in step for step in self.steps):
            return "bad"
        return "deviation" if any(step.get("deviations") for step in self.steps) else "good"

    @property
    def prefix(self) -> str:
        return f"{self.kind}/{self.name}{self.suffix}"

    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "level": self.level,
            "prefix": self.prefix,
            "files": sorted(self.prefix + suffix for suffix in self.files),
            "rules": self.rules,
        }
        if self.limits:
            made["limits"] = self.limits
        if self.consumer != 2:
            made["consumer"] = self.consumer
        return made | {"steps": self.steps}


class Vectors(list[Vector]):
    """All vectors, in the order in which they were added."""

    merges: list[dict[str, Any]]
    texts: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    merge_files: dict[str, bytes]

    def __init__(self) -> None:
        super().__init__()
        self.merges, self.texts, self.keys = [], [], []
        self.merge_files = {}

    def add(
        self, name: str, rules: str, files: dict[str, bytes], *steps: Step, **more: Any
    ) -> None:
        assert all(name != one.name for one in self), name
        self.append(Vector(name, rules.split(), files, list(steps), **more))

    # ---- the usual kinds

    def sound(
        self,
        name: str,
        rules: str,
        files: dict[str, bytes],
        tensors: Mapping[bytes, Value],
        *more_steps: Step,
        head: dict[str, int] | None = None,
        deviations: str = "",
        **more: Any,
    ) -> None:
        """Everything can be opened, listed, read and verified, with these deviations."""
        steps = [opens(head), lists(tensors), *(reads(one, tensors[one]) for one in tensors)]
        self.add(name, rules, files, *steps, *more_steps, verifies(deviations=deviations), **more)

    def plain(
        self, name: str, rules: str, tensors: Mapping[bytes, Value], *steps: Step, **more: Any
    ) -> None:
        """A canonical bundle of tensors stored whole."""
        rows, data = store(tensors)
        self.sound(name, rules, files_of(parts.table(*rows), data), tensors, *steps, **more)

    def at_open(self, name: str, index: bytes, failure: str, rule: str, **more: Any) -> None:
        """The index breaks a rule that opening checks."""
        found = (failure, rule)
        steps = [opens(fails=found), verifies(found, more=True)]
        self.add(name, more.pop("rules", rule), files_of(index, b"\1\2"), *steps, **more)

    def at_list(self, name: str, index: bytes, failure: str, rule: str, **more: Any) -> None:
        """It opens, and the listing breaks a rule."""
        found = (failure, rule)
        steps = [opens(), lists(fails=found), verifies(found, more=True)]
        self.add(name, rule, files_of(index, b"\1\2"), *steps, **more)

    def at_entry(
        self,
        name: str,
        message: bytes,
        failure: str,
        rule: str,
        *extra_rows: Row,
        rules: str = "",
        data: bytes = b"",
        **more: Any,
    ) -> None:
        """The entry of `x` breaks a rule; that of `a` beside it is sound."""
        found = (failure, rule)
        steps = [
            opens(),
            lists(fails=found),
            reads(b"x", fails=found),
            reads(b"a", GOOD),
            verifies(found, more=True),
        ]
        files = files_of(around(message, *extra_rows), b"\1\2" + data)
        self.add(name, rules or rule, files, *steps, **more)

    def at_read(
        self,
        name: str,
        message: bytes,
        data: bytes,
        listed: tuple[int, Sequence[int]],
        failure: str,
        rule: str,
        *steps: Step,
        extra_rows: Sequence[Row] = (),
        problems: Sequence[Refusal] | None = None,
        rules: str = "",
        head: bytes | None = None,
        deviations: str = "",
        more_problems: bool = False,
        **more: Any,
    ) -> None:
        """It lists, `a` can be read and `x`, whose bytes begin at 2, cannot."""
        found = (failure, rule)
        files = files_of(around(message, *extra_rows, head=head), b"\1\2" + data)
        every = [
            opens(),
            lists({b"a": GOOD, b"x": Value(listed[0], tuple(listed[1]))}),
            reads(b"x", fails=found),
            *steps,
            reads(b"a", GOOD),
            verifies(
                *((found,) if problems is None else problems),
                deviations=deviations,
                more=more_problems,
            ),
        ]
        self.add(name, rules or rule, files, *every, **more)

    def beside(
        self,
        name: str,
        rules: str,
        message: bytes,
        data: bytes,
        value: Value,
        *steps: Step,
        **more: Any,
    ) -> None:
        """A sound `x`, whose bytes begin at 2, beside `a`."""
        rows = more.pop("extra_rows", ())
        files = files_of(around(message, *rows, head=more.pop("header", None)), b"\1\2" + data)
        self.sound(name, rules, files, {b"a": GOOD, b"x": value}, *steps, **more)


# ---- files


def files_of(
    index: bytes, data: bytes | Mapping[int, bytes] = b"", num_shards: int = 1
) -> dict[str, bytes]:
    """The files of a bundle; `data` by shard, or of the only one."""
    shards = {0: data} if isinstance(data, bytes) else data
    made = {".index": index}
    for shard, content in shards.items():
        made[f".data-{shard:05d}-of-{num_shards:05d}"] = content
    return made


def store(tensors: Mapping[bytes, Value], alignment: int = 1) -> tuple[list[Row], bytes]:
    """Entries in key order, values in the order given."""
    rows, data = [], b""
    for name, value in tensors.items():
        rows.append((name, value.entry(len(data))))
        data += value.stored()[0]
        data += bytes(-len(data) % alignment)
    return sorted(rows), data


def around(message: bytes, *rows: Row, head: bytes | None = None) -> bytes:
    """An index with GOOD as `a` at offset 0, the entry as `x`, and these rows."""
    return parts.table(*sorted([(b"a", GOOD.entry()), (b"x", message), *rows]), head=head)


# ---- steps


def opens(head: dict[str, int] | None = None, fails: Refusal | None = None) -> Step:
    if fails:
        return {"step": "open", "fails": list(fails)}
    return {"step": "open", **({"gives": head} if head else {})}


def lists(tensors: Mapping[bytes, Value] | None = None, fails: Refusal | None = None) -> Step:
    if fails:
        return {"step": "list", "fails": list(fails)}
    given = {text(name): [one.code, list(one.dims)] for name, one in (tensors or {}).items()}
    return {"step": "list", "gives": dict(sorted(given.items()))}


def reads(name: bytes, value: Value | None = None, fails: Refusal | None = None) -> Step:
    step: Step = {"step": "read", "tensor": text(name)}
    return step | ({"fails": list(fails)} if fails else {"gives": value.json() if value else None})


def reads_unverified(name: bytes, value: Value) -> Step:
    """Reads it without comparing checksums."""
    return reads(name, value) | {"verified": False}


def boxes(
    name: bytes,
    box: Sequence[tuple[int, int]],
    value: Value | None = None,
    fails: Refusal | None = None,
) -> Step:
    """Reads a part: start and length of each dimension."""
    step: Step = {"step": "box", "tensor": text(name), "box": [list(one) for one in box]}
    return step | ({"fails": list(fails)} if fails else {"gives": value.json() if value else None})


def verifies(*problems: Refusal, deviations: str = "", more: bool = False) -> Step:
    """What verifying finds; with `more`, among other problems that are not listed."""
    found = sorted(list(one) for one in problems)
    if more:
        return {"step": "verify", "among": found}
    return {"step": "verify", "problems": found, "deviations": sorted(deviations.split())}


def metadata(value: Any = None, fails: Refusal | None = None) -> Step:
    return {"step": "metadata", **({"fails": list(fails)} if fails else {"gives": value})}


def objects(value: Any = None, fails: Refusal | None = None) -> Step:
    return {"step": "objects", **({"fails": list(fails)} if fails else {"gives": value})}
