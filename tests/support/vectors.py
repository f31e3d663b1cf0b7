# SPDX-License-Identifier: Apache-2.0
"""The vectors of `spec/vectors/`, and the two readers that must agree on them: the C core and
`spec/reference/`.

An outcome of a step is what it gives, in the form of vectors.json, or a `Refusal`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from interop.values import KINDS

from ckptfmt import CkptfmtError, CorruptError
from ckptfmt.bundle.graph import decode_graph
from ckptfmt.bundle.graph_keys import read_graph_bytes
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.verify import Finding, verify_prefix
from ckptfmt.tf import parse_spec

SPEC = Path(__file__).resolve().parent.parent.parent / "spec"
DIRECTORY = SPEC / "vectors"

# What the C core reads: compressed values too, for which its consumer version is 2.
LEVELS = ("v2", "v2+", "ckptfmt")
CONSUMER = 2

Step = Mapping[str, Any]


def specification() -> str:
    """The text of both documents, one after the other."""
    names = ("format.md", "lifecycle.md")
    return "".join((SPEC / name).read_text(encoding="utf-8") for name in names)


def rules_of_text() -> dict[str, str]:
    """The rules of the specification with their texts."""
    pattern = r"^- \*\*\[([A-Z]{3}-\d+)\]\*\* (.*?)(?=^\S|\Z)"
    return dict(re.findall(pattern, specification(), re.M | re.S))


class Refusal(NamedTuple):
    """The failure class and the rule that is broken."""

    failure: str
    rule: str


@dataclass(frozen=True)
class Vector:
    """One of vectors.json."""

    name: str
    kind: str
    level: str
    prefix: str
    files: list[str]
    rules: list[str]
    steps: list[Step]
    limits: Mapping[str, int]
    consumer: int


def _load() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DIRECTORY / "vectors.json").read_text(encoding="utf-8"))
    return loaded


_LOADED = _load()
FORMAT: str = _LOADED["format"]
VECTORS = [Vector(**{"limits": {}, "consumer": 2} | one) for one in _LOADED["vectors"]]
MERGES: list[dict[str, Any]] = _LOADED["merges"]
TEXTS: list[dict[str, Any]] = _LOADED["texts"]
KEYS: list[dict[str, Any]] = _LOADED["keys"]


def expected(step: Step) -> Any:
    """The outcome that vectors.json demands."""
    if "fails" in step:
        return Refusal(*step["fails"])
    if step["step"] == "verify":
        return {name: step[name] for name in ("among", "problems", "deviations") if name in step}
    given = step.get("gives")
    return normal(given) if step["step"] in ("read", "box") else given


def normal(value: Mapping[str, Any]) -> Any:
    """A value with its bytes written out, and only those bits of them that count."""
    if "elements" in value:
        return dict(value)
    raw = b"".join(
        bytes.fromhex(one) * int(times or 1)
        for one, _, times in (word.partition("*") for word in value["bytes"].split())
    )
    return _value(value["dtype"], value["shape"], raw)


def _value(code: int, shape: list[int], raw: bytes) -> dict[str, Any]:
    used = KINDS[code].used_bits if code in KINDS else 0
    if used and code != 10:
        raw = bytes(byte & ((1 << used) - 1) for byte in raw)
    return {"dtype": code, "shape": shape, "bytes": raw.hex()}


def array_value(code: int, shape: list[int], array: Any) -> dict[str, Any]:
    """What vectors.json would have of an array that a reader gave."""
    if isinstance(array, bytes):
        elements = [array]
    elif array.dtype == np.dtype(object):
        elements = array.reshape(-1).tolist()
    else:
        shape = shape if code not in KINDS else list(array.shape)
        return _value(code, shape, np.ascontiguousarray(array).tobytes())
    return {"dtype": code, "shape": shape, "elements": [one.hex() for one in elements]}


# ---- the C core

# Rules of the notes about deviations in the index; the core does not distinguish all of section 23.
_DEVIATIONS = {
    *("MSG-8", "MSG-15", "FTR-4", "TAB-7", "TAB-10", "TAB-11", "SNP-1", "BLK-11"),
    *("ENT-2", "ENT-7", "SLC-10", "HDR-5", "DTY-6"),
}

_GRAPH_LIMITS = {
    "graph_bytes_max": "bytes_max",
    "graph_nodes_max": "nodes_max",
    "graph_parts_max": "entries_max",
}


def _has(problems: set[tuple[str, str]], failure: str, rule: str) -> bool:
    """Whether it is among them; the rule is optional where the failure is not damage."""
    ruled = failure in CorruptError.failures
    return (failure, rule) in problems or (not ruled and (failure, "") in problems)


def rule_of(message: str) -> str:
    """The rule with which the message of an error begins; "" if it names none."""
    match = re.match(r"([A-Z]{3}-\d+): ", message)
    return match[1] if match else ""


class Core:
    """Runs steps with the C core; `places` collects where it reports what."""

    def __init__(self, vector: Vector) -> None:
        self.prefix = f"{DIRECTORY}/{vector.prefix}"
        self.places: list[list[Any]] = []
        limits = dict(vector.limits)
        self.graph_limits = {
            ours: limits.pop(name) for name, ours in _GRAPH_LIMITS.items() if name in limits
        }
        self.limits = limits
        self.reader: Reader | None = None

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()

    def run(self, step: Step) -> Any:
        try:
            return getattr(self, step["step"])(step)
        except CkptfmtError as error:
            self._note(step["step"], error)
            return Refusal(error.failure, rule_of(error.message))

    def _note(self, step: str, found: CkptfmtError | Finding) -> None:
        file = None if found.path is None else Path(found.path).name
        rule = rule_of(found.message)
        self.places.append([step, found.failure, rule, file, found.offset, found.tensor])

    def opened(self) -> Reader:
        if self.reader is None:
            self.reader = Reader(self.prefix, limits=self.limits or None)
        return self.reader

    def open(self, step: Step) -> Any:
        found = self.opened().header
        given = step.get("gives")
        return None if given is None else {name: getattr(found, name) for name in given}

    def list(self, step: Step) -> Any:
        rows = self.opened().table(reserved=True)
        return {
            row["name"].encode("utf-8", "surrogateescape").decode("latin-1"): [
                int(row["dtype_code"]),
                list(row["shape"]),
            ]
            for row in rows
        }

    def read(self, step: Step) -> Any:
        handle = self.opened()[step["tensor"].encode("latin-1")]
        array = handle.read() if step.get("verified", True) else handle.read(verify="off")
        return array_value(handle.dtype_code, list(handle.shape), array)

    def box(self, step: Step) -> Any:
        handle = self.opened()[step["tensor"].encode("latin-1")]
        box = tuple(slice(start, start + length) for start, length in step["box"])
        return array_value(handle.dtype_code, [n for _, n in step["box"]], handle[box])

    def verify(self, step: Step) -> Any:
        report = verify_prefix(self.prefix, limits=self.limits or None)
        for finding in report.findings:
            self._note("verify", finding)
        problems = {(one.failure, rule_of(one.message)) for one in report.problems}
        if "among" in step:
            found = [one for one in step["among"] if _has(problems, *one)]
            return {"among": found}
        deviates = any(rule_of(one.message) in _DEVIATIONS for one in report.notes)
        return {"problems": sorted(map(list, problems)), "deviations": deviates}

    def metadata(self, step: Step) -> Any:
        return self.opened().metadata

    def objects(self, step: Step) -> Any:
        reader = self.opened()
        content = read_graph_bytes(reader)
        assert content is not None
        graph = decode_graph(content, self.prefix, **self.graph_limits)
        return [
            _node(
                [[child, name] for name, child in node.children],
                [[one.name, one.full_name, one.checkpoint_key] for one in node.attributes],
                [
                    [one.original_variable_node_id, one.slot_name, one.slot_variable_node_id]
                    for one in node.slot_variables
                ],
                registered_saver=list(node.registered_saver) if node.registered_saver else None,
                has_checkpoint_values=node.has_checkpoint_values,
                kind=node.kind,
            )
            for node in graph.nodes
        ]


def _node(children: Any, attributes: Any, slots: Any, **more: Any) -> dict[str, Any]:
    made = {"children": children, "attributes": attributes, "slots": slots}
    return made | {name: value for name, value in more.items() if value is not None}


def core_text(text: str) -> Any:
    """What the C core makes of a slice text."""
    try:
        found = parse_spec(text)
    except CkptfmtError as error:
        return Refusal(error.failure, rule_of(error.message))
    if found is None:
        return None
    pairs = zip(found.start, found.lengths, strict=True)
    return [list(found.full_shape), [list(pair) for pair in pairs]]


# ---- the reference decoder

# Rules that hold only where values are verified.
VERIFIED_ONLY = {
    *("ENT-8", "DAT-6", "EXT-9", "STR-5", "STR-6", "VAR-3", "VAR-4", "CMP-11", "CMP-19"),
}
_REFERENCE_LIMITS = {
    "index_bytes_max": "index",
    "block_bytes_max": "block",
    "key_bytes_max": "key",
    "keys_bytes_floor": "keys",
    "entries_max": "entries",
    "slices_max": "slices",
    "tensor_bytes_max": "value",
    "expansion_max": "expansion",
    "graph_bytes_max": "graph_bytes",
    "graph_nodes_max": "nodes",
    "graph_parts_max": "node_fields",
}


def load_reference() -> ModuleType:
    """The package `spec/reference/`, under the name `reference`."""
    if "reference" not in sys.modules:
        home = SPEC / "reference"
        place = importlib.util.spec_from_file_location("reference", home / "__init__.py")
        assert place is not None
        assert place.loader is not None
        sys.modules["reference"] = importlib.util.module_from_spec(place)
        place.loader.exec_module(sys.modules["reference"])
    return sys.modules["reference"]


@contextmanager
def reference_limits(given: Mapping[str, int]) -> Iterator[None]:
    """These limits are in force for the reference decoder."""
    limits = load_reference().LIMITS
    before = dict(limits)
    limits |= {_REFERENCE_LIMITS[name]: value for name, value in given.items()}
    try:
        yield
    finally:
        limits |= before


class Reference:
    """Runs steps with the reference decoder."""

    def __init__(self, vector: Vector) -> None:
        self.module = load_reference()
        self.prefix = f"{DIRECTORY}/{vector.prefix}"
        self.consumer, self.limits = vector.consumer, vector.limits
        self.bundle: Any = None

    def close(self) -> None:
        if self.bundle is not None:
            self.bundle.close()

    def run(self, step: Step) -> Any:
        with reference_limits(self.limits):
            try:
                return getattr(self, step["step"])(step)
            except self.module.Violation as violation:
                return Refusal(violation.failure, violation.rule)

    def opened(self) -> Any:
        if self.bundle is None:
            self.bundle = self.module.Bundle(self.prefix, consumer=self.consumer)
        return self.bundle

    def open(self, step: Step) -> Any:
        found = self.opened().header
        flat = found | found["version"]
        given = step.get("gives")
        return None if given is None else {name: flat[name] for name in given}

    def list(self, step: Step) -> Any:
        bundle, found = self.opened(), {}
        for name in bundle.names():
            entry, _ = bundle.entry(name)
            found[name.decode("latin-1")] = [entry.dtype, list(entry.shape)]
        return found

    def _named(self, step: Step) -> tuple[bytes, Any]:
        name = step["tensor"].encode("latin-1")
        return name, self.opened().entry(name)[0]

    def read(self, step: Step) -> Any:
        name, entry = self._named(step)
        disabled = self.module.DISABLED
        skipped = set() if step.get("verified", True) else VERIFIED_ONLY - disabled
        disabled |= skipped
        try:
            return array_value(entry.dtype, list(entry.shape), self.opened().read(name))
        finally:
            disabled -= skipped

    def box(self, step: Step) -> Any:
        name, entry = self._named(step)
        box = [tuple(one) for one in step["box"]]
        return array_value(entry.dtype, [n for _, n in box], self.opened().read(name, box))

    def verify(self, step: Step) -> Any:
        found, deviations = self.module.verify(self.prefix, self.consumer)
        problems = {(one.failure, one.rule) for one in found}
        if "among" in step:
            return {"among": [one for one in step["among"] if tuple(one) in problems]}
        return {"problems": sorted(map(list, problems)), "deviations": deviations}

    def metadata(self, step: Step) -> Any:
        return self.opened().metadata

    def objects(self, step: Step) -> Any:
        found = []
        for node in self.opened().objects():
            saver, has = node.get("registered_saver"), node.get("has_checkpoint_values")
            found.append(
                _node(
                    [[one["node_id"], one["local_name"]] for one in node["child"]],
                    [
                        [one["name"], one["full_name"], one["checkpoint_key"]]
                        for one in node["attribute"]
                    ],
                    [
                        [
                            one["original_variable_node_id"],
                            one["slot_name"],
                            one["slot_variable_node_id"],
                        ]
                        for one in node["slot"]
                    ],
                    registered_saver=None
                    if saver is None
                    else [saver.get("name", ""), saver.get("object_name", "")],
                    has_checkpoint_values=None if has is None else has.get("value", False),
                    kind=node.get("kind"),
                )
            )
        return found


def outcomes(vector: Vector, reader: type[Core] | type[Reference]) -> list[Any]:
    """What each step comes to."""
    running = reader(vector)
    try:
        return [running.run(step) for step in vector.steps]
    finally:
        running.close()
