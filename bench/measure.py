# SPDX-License-Identifier: Apache-2.0
"""Takes the samples of a row: files and data at hand, sides in turn, forth and back, checked."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cases
import data
import ml_dtypes  # noqa: F401 (its dtypes have names then)
import numpy as np
from cases import BEFORE, OURS, TENSORFLOW, Part, Row
from session import (
    BenchError,
    Process,
    Sides,
    UnsupportedError,
    evict,
    in_new_process,
    ready_memory,
    warm,
)

# Whose tuned form stores something else, so that it needs files of its own.
OTHER_LAYOUT = {"dcp", "h5py"}
# A sample is of so many calls that it takes about as long.
SAMPLE_SECONDS, CALLS_MAX = 0.1, 50
FLOAT = 1  # TensorFlow's number of the dtype of all data
HOLDING = {"save", "save_changed", "stall"}


@dataclass
class Entry:
    """What one part of a row came to: samples, or a word why there are none."""

    part: Part
    count: int = 0
    size: int = 0
    group: int = 0
    word: str = ""
    first: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def seconds(self, measure: str = "seconds") -> list[float]:
        """The samples' times, for all tensors."""
        scale = 1 / self.part.share if self.part.scaled else 1.0
        return [sample[measure] * scale for sample in self.samples]


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    profile: str
    rounds: int  # of ours and of TensorFlow
    peer_rounds: int
    budget_seconds: float  # of one side in one row, after the first few samples
    seed: int


@functools.cache
def _expected(verb: str, count: int, shape: tuple[int, ...], what: str = "{}") -> str:
    """The digest of what a verb must give; `what` is its arguments, as JSON."""
    told, names = json.loads(what), data.names(count)
    if verb in ("list_names", "list_prefix"):
        prefix = told.get("prefix", "")
        return data.digest([name for name in names if name.startswith(prefix)])
    if verb == "list_shapes":
        return data.digest([f"{name} {list(shape)} {FLOAT}" for name in names])
    if verb in ("box", "one", "gets"):
        wanted = told.get("names") or [told["name"]]
        found = list(data.some(count, list(shape), wanted).values())
        if verb == "box":
            return data.digest(found[0][tuple(slice(*part) for part in told["box"])])
        return data.digest(found if verb == "gets" else found[0])
    arrays = data.some(count, list(shape), names)
    for name in names[:: told["changed"]] if "changed" in told else []:
        arrays[name] = arrays[name] + 1
    if "dtype" in told:
        arrays = {name: array.astype(told["dtype"]) for name, array in arrays.items()}
    return data.digest(arrays)


class Measurer:
    """Runs rows in a folder of its own; what sides saved is kept for the rows that follow."""

    def __init__(self, plan: Plan, sides: Sides, folder: Path) -> None:
        self.plan, self.sides, self.folder = plan, sides, folder
        self.kind = ""
        self.wrong: list[str] = []

    # ---- data and files

    def _count(self, row: Row, part: Part) -> int:
        return max(int(cases.KINDS[row.kind][self.plan.profile][0] * part.share), 1)

    def _shape(self, row: Row) -> tuple[int, ...]:
        return cases.KINDS[row.kind][self.plan.profile][1]

    def _worker(self, part: Part) -> Process:
        worker = self.sides(part.side, part.tuned)
        if worker is None:
            raise UnsupportedError("not installed")
        return worker

    def _saved(self, row: Row, part: Part) -> Path:
        """The folder with what this side saved of this data."""
        side = OURS if row.files == "keys" and part.side == TENSORFLOW else part.side
        tuned = part.tuned and side in OTHER_LAYOUT
        count = self._count(row, part)
        name = f"{row.kind}-{side}-{count}{'-tuned' if tuned else ''}"
        folder = self.folder / "saved" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            worker = self._worker(Part(side, tuned))
            worker.hold(count, self._shape(row), True)
            call = {"folder": str(folder), "durable": False}
            worker.ask("sample", verb="save", arguments=call, check=False)
            worker.hold(count, self._shape(row), False)
            os.sync()
        return folder

    def _shards(self, row: Row) -> Path:
        blocked = row.key.endswith("blocked")
        folder = self.folder / "saved" / f"shards-{blocked}"
        if not folder.exists():
            folder.mkdir(parents=True)
            inputs, keys = cases.MERGE[self.plan.profile]
            call = {"folder": str(folder), "inputs": inputs, "keys": keys, "blocked": blocked}
            ours = self._worker(Part(OURS))
            ours.ask("sample", verb="make_shards", arguments=call, check=False)
            os.sync()
        return folder

    def _size(self, row: Row, part: Part) -> int:
        """Bytes of all its arrays."""
        return self._count(row, part) * 4 * int(np.prod(self._shape(row), dtype=np.int64))

    # ---- one call

    def _arguments(self, row: Row, part: Part) -> dict[str, Any]:
        """Those of the verb, but for the folder."""
        found = {**row.arguments, **part.arguments}
        verb, count = part.verb or row.verb, self._count(row, part)
        names = data.names(count)
        if verb.startswith("load"):
            found = {}
        elif verb == "gets":
            chosen = random.Random(self.plan.seed).sample(names, found.pop("number"))
            found["names"] = chosen
        elif verb == "one":
            found["name"] = names[count // 3]
        elif verb == "list_prefix":
            found["prefix"] = names[count // 3][:12]
        elif verb == "stall":
            found["usual_seconds"] = 0.05 if self.plan.profile == "smoke" else 0.5
        return found

    def _call(self, row: Row, part: Part, check: bool, calls: int = 1) -> dict[str, Any]:
        verb, count = part.verb or row.verb, self._count(row, part)
        arguments = self._arguments(row, part)
        # Before files are brought in, which it might drive out.
        ready = self._size(row, part) * 5 // 4
        if verb == "first":
            self._worker(part)
            name, folder = data.names(count)[count // 3], str(self._saved(row, part))
            # What was installed is compiled; ours, run from its sources, may not be.
            compiled = self.folder / "bytecode" if part.side in (OURS, BEFORE) else None
            found = in_new_process(self.sides, part.side, part.tuned, folder, name, compiled)
            wanted = data.some(count, list(self._shape(row)), [name])[name].view("u4").sum()
            self._same(f"{row.key}, {part.name()}", found["sum"], str(wanted))
            return found
        worker = self._worker(part)
        if {"stall": "loop"}.get(verb, verb) not in worker.verbs:
            raise UnsupportedError("not offered")
        if row.files == "shards":
            target, left = self.folder / "target", 0.0
            shutil.copytree(self._shards(row), target)
        elif row.files == "new":
            target, left = self._target(row, part, worker, arguments)
            ready_memory(ready)
        else:
            target = self._saved(row, part)
            if row.new_process:
                self.sides.renew(part.side, part.tuned)
                worker = self._worker(part)
            worker.hold(count, self._shape(row), False)
            ready_memory(ready)
            left = self._cache(row, target)
        try:
            arguments["folder"] = str(target)
            if verb == "stall":
                found = worker.ask("stall", **arguments)
            else:
                found = worker.ask(
                    "sample", verb=verb, arguments=arguments, check=check, calls=calls
                )
            found["resident"] = left
            if check:
                self._check(row, part, found, target)
        finally:
            if row.files in ("new", "shards"):
                shutil.rmtree(target)
        return found

    def _target(
        self, row: Row, part: Part, worker: Process, arguments: dict[str, Any]
    ) -> tuple[Path, float]:
        """An empty folder to save into, data to save and, where one is named, a base."""
        left, target = 0.0, self.folder / "target"
        if "base" in arguments:
            base = self._saved(row, Part(part.side))
            arguments["base"] = str(base)
            left = self._cache(row, base)
        worker.hold(self._count(row, part), self._shape(row), True)
        target.mkdir()
        os.sync()  # of what others saved nothing is left to be written meanwhile
        return target, left

    def _cache(self, row: Row, folder: Path) -> float:
        """Brings files into the page cache or out of it; the share that is there when cold."""
        if row.cold:
            return evict(folder)
        warm(folder)
        return 0.0

    # ---- whether it is right

    def _check(self, row: Row, part: Part, found: dict[str, Any], target: Path) -> None:
        """Raises BenchError where other values were saved or loaded than there were."""
        verb, count, shape = part.verb or row.verb, self._count(row, part), self._shape(row)
        arguments = self._arguments(row, part)
        readers = [part.side]
        if part.side in (OURS, TENSORFLOW) and self.sides(TENSORFLOW) is not None:
            readers = [OURS, TENSORFLOW]
        if verb in ("save", "save_changed"):
            # What others saved is read in the rows that load it.
            if part.side in cases.PEERS and self.plan.profile == "quick":
                return
            # TensorFlow saves all, and the arrays as they are.
            changed = verb == "save_changed" and part.side in (OURS, BEFORE)
            what = {"changed": row.arguments["changed"]} if changed else {}
            wanted = _expected("load", count, shape, json.dumps(what))
            for side in readers:
                self._loads(side, part, count, shape, target, wanted)
        elif verb == "stall":
            # Updates went on meanwhile: the readers must agree.
            wanted = ""
            for side in readers if part.side == OURS else []:
                wanted = self._loads(side, part, count, shape, target, wanted)
        elif verb == "merge":
            inputs, each = cases.MERGE[self.plan.profile]
            i, k = inputs // 2, each // 3
            layer, variable = (i, k) if row.key.endswith("blocked") else (k, i)
            name = f"model/layer_{layer:05d}/variable_{variable:05d}/.ATTRIBUTES/VARIABLE_VALUE"
            wanted = data.digest(np.float32(i * each + k))
            for side in readers:
                call = {"folder": str(target), "name": name, "count": inputs * each}
                worker = self._worker(Part(side))
                got = worker.ask("sample", verb="merged", arguments=call, check=True)
                self._same(f"{row.key}, {side} reads {part.side}", got["digest"], wanted)
        elif "digest" in found:
            loads = verb.startswith("load")
            what = {} if loads else arguments
            if verb in ("load_cast", "load_astype"):
                what = {"dtype": "bfloat16"}
            wanted = _expected("load" if loads else verb, count, shape, json.dumps(what))
            self._same(f"{row.key}, {part.name()}", found["digest"], wanted)

    def _loads(
        self, side: str, part: Part, count: int, shape: tuple[int, ...], folder: Path, wanted: str
    ) -> str:
        worker = self._worker(Part(side, part.tuned and side == part.side))
        if worker.held[:2] != (count, shape):
            worker.hold(count, shape, False)
        call = {"folder": str(folder)}
        got = worker.ask("sample", verb="load", arguments=call, check=True)
        self._same(f"{side} loads what {part.name()} saved", got["digest"], wanted)
        return str(got["digest"])

    def _same(self, what: str, got: str, wanted: str) -> None:
        if wanted and got != wanted:
            self.wrong.append(what)
            raise BenchError(f"{what}: other values")

    # ---- rows

    def _groups(self, row: Row, entries: list[Entry]) -> list[list[Entry]]:
        """Who is sampled together: not more than memory has room for, ours in every group."""
        ours, others = entries[0], entries[1:]
        if (row.verb not in HOLDING) or not others:
            return [entries]
        with open("/proc/meminfo") as file:
            words = [line.split() for line in file]
        free = next(int(word[1]) << 10 for word in words if word[0] == "MemAvailable:")
        room = max(int(free * 0.6 / max(ours.size, 1)) - 1, 3)
        # TensorFlow is first, so that all its forms are in the first group.
        return [[ours, *others[first : first + room]] for first in range(0, len(others), room)]

    def row(self, row: Row) -> list[Entry]:
        """All samples of a row."""
        if row.kind != self.kind:
            shutil.rmtree(self.folder / "saved", ignore_errors=True)
            self.kind = row.kind
        entries = []
        for part in row.parts:
            entries.append(Entry(part, self._count(row, part), self._size(row, part)))
        for number, group in enumerate(self._groups(row, entries)):
            self.sides.drop_others({(e.part.side, e.part.tuned) for e in group})
            for entry in group:
                entry.group = number if entry is not entries[0] else entry.group
            self._sample(row, group, number)
        return entries

    def _patience(self, entry: Entry) -> tuple[int, float]:
        """Samples that one who takes long gets, and the seconds after which it does."""
        if entry.part.side == TENSORFLOW and not entry.part.tuned:
            return 3, 2 * self.plan.budget_seconds
        return 2, self.plan.budget_seconds

    def _sample(self, row: Row, group: list[Entry], number: int) -> None:
        spent: dict[int, float] = {}

        def once(entry: Entry, check: bool, calls: int = 1) -> dict[str, Any] | None:
            try:
                return self._call(row, entry.part, check, calls)
            except UnsupportedError as error:
                entry.word = str(error)
            except BenchError as error:
                entry.word = f"failed: {error}"
                print(f"{row.key}: {error}", file=sys.stderr)
            return None

        for entry in group:
            if not entry.word:
                began = time.perf_counter()
                found = once(entry, True)
                entry.first = entry.first or found or {}
                spent[id(entry)] = 0.0
                if time.perf_counter() - began > 60:
                    print(f"{row.key}: {entry.part.name()} is slow", file=sys.stderr)
        starts = row.new_process or row.verb == "first"
        for turn in range(1 if starts and self.plan.profile == "smoke" else self.plan.rounds):
            for entry in group if turn % 2 == 0 else reversed(group):
                if entry.word:
                    continue
                ours = entry is group[0]
                least, budget = self._patience(entry)
                late = turn >= least and spent[id(entry)] > budget
                late = late or (entry.part.side in cases.PEERS and turn >= self.plan.peer_rounds)
                if late and not ours:
                    continue
                repeats = row.files in ("own", "keys") and not (row.cold or row.new_process)
                calls = int(SAMPLE_SECONDS / entry.first["seconds"]) if repeats else 1
                found = once(entry, False, min(max(calls, 1), CALLS_MAX))
                if found is not None:
                    found["group"] = number
                    entry.samples.append(found)
                    spent[id(entry)] += found["seconds"] * found.get("calls", 1)
