# SPDX-License-Identifier: Apache-2.0
"""Mutants of checkpoints through the whole Python interface:
`python -m border.run SEED EXECUTIONS DIRECTORY [FIRST [PLANTED]]`.

Each mutant is made from the seed and its number. It is opened, listed, read, mapped, verified and
merged, and the reference decoder does the same: both accept it with equal contents, or both refuse
it. Only documented errors may come out, in little memory and time; a signal (SIGPROF: five seconds
of processor time) ends the process, and `Board` holds the number of the mutant that did it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support import vectors
from support.arrays import random_key
from support.process import SANITIZED, open_files

import ckptfmt
from border.mutants import Mutant, mutant
from border.samples import samples
from border.states import state_text
from ckptfmt import CkptfmtError
from ckptfmt._base.names import SHARD_STAND_IN
from ckptfmt.bundle.graph_keys import graph_of, reachable
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.verify import verify_prefix
from ckptfmt.cli import main as cli

MEMORY = 256 << 20  # bytes of address space beyond what the process has at the start
SECONDS = 5  # of processor time that one mutant may take
MESSAGE_MAX = 2000  # characters of an error
FINDINGS_MAX = 20
READ_MAX = 8  # tensors of one mutant that are read


class Refused(NamedTuple):
    """An error that is documented: its failure class."""

    failure: str


class FindingError(AssertionError):
    """What must not happen."""


class Border:
    """Runs mutants in a directory. `open` opens a checkpoint: the planted bugs replace it."""

    def __init__(
        self, seed: int, directory: Path, opener: Callable[[str], Reader] = Reader
    ) -> None:
        self.seed, self.directory, self.open = seed, directory, opener
        self.reference = vectors.load_reference()
        (directory / "samples").mkdir(parents=True)
        self.samples = samples(directory / "samples")
        self.place = directory / "mutant"
        self.place.mkdir()
        self.outcomes: Counter[str] = Counter()
        self.files = 0
        gc.collect()
        gc.freeze()  # collecting what the reference decoder leaves is then fast

    # ---- one mutant

    def run(self, number: int) -> None:
        """Runs one mutant; raises a FindingError."""
        chance = random.Random(f"{self.seed}/{number}")
        for name in os.listdir(self.place):
            os.unlink(self.place / name)
        made = mutant(chance.choice(self.samples), chance)
        made.write(self.place, "m")
        try:
            self._run(made, chance)
        except Exception as error:
            told = f"{number} ({made.sample.name}: {', '.join(made.done)}): {error!r}"
            raise FindingError(told) from error

    def _run(self, made: Mutant, chance: random.Random) -> None:
        path = str(self.place / "m")
        listed = self._attempt("list", lambda: self._listed(path, chance))
        wanted = self._of_reference(lambda: self._reference_listed(path))
        if isinstance(listed, Refused) or isinstance(wanted, Refused):
            self._need(isinstance(listed, Refused) == isinstance(wanted, Refused), listed, wanted)
        else:
            self._compare(listed[0], wanted[0], listed[1], wanted[1])
        if chance.randrange(2) == 0:
            self._verify(path, listed)
        if chance.randrange(8) == 0:
            self._merge(path, chance)
        if chance.randrange(8) == 0:
            self._find(path, made.chance)
        if chance.randrange(8) == 0:
            self._load(path, listed)
        if chance.randrange(128) == 0:
            self._command(path, chance)
        found = open_files()
        if found != self.files:
            gc.collect()  # the reference decoder closes its files when it is collected
            found = open_files()
        self.files = self.files or found
        self._need(found == self.files, "open files", found, self.files)

    def _attempt(self, step: str, act: Callable[[], Any]) -> Any:
        """What a call gives, or the documented error that it raised."""
        try:
            found = act()
        except CkptfmtError as error:
            text = str(error)
            self._need(text.isprintable() and len(text) < MESSAGE_MAX, "message", text)
            found = Refused(error.failure)
        self.outcomes[f"{step}: {found[0] if isinstance(found, Refused) else 'accepted'}"] += 1
        return found

    def _of_reference(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except self.reference.Violation as violation:
            return Refused(violation.failure)

    @staticmethod
    def _need(condition: object, *what: Any) -> None:
        if not condition:
            raise FindingError(" / ".join(f"{one!r:.300}" for one in what))

    # ---- reading

    def _listed(self, path: str, chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """Codes and shapes by name, and what reading gives: of tensors, metadata and objects."""
        with self.open(path) as reader:
            table = reader.table(reserved=True)
            shapes = {row["name"]: (int(row["dtype_code"]), list(row["shape"])) for row in table}
            values: dict[str, Any] = {}
            for name in list(shapes)[:READ_MAX]:
                handle = reader[name]
                code, shape = shapes[name]
                self._need((handle.dtype_code, list(handle.shape)) == (code, shape), name)
                whole = self._attempt("read", handle.read)
                values[name] = self._value(code, shape, whole)
                self._parts(handle, whole, chance)
            values["metadata"] = self._attempt("metadata", lambda: reader.metadata)
            values["objects"] = self._attempt("objects", lambda: self._objects(reader))
            digest = self._attempt("digest", reader.digest)
            if any(
                isinstance(one, Refused)
                for name, one in values.items()
                if name in shapes and not name.startswith(SHARD_STAND_IN)
            ):
                self._need(isinstance(digest, Refused), "digest", digest)
        return shapes, values

    def _parts(self, handle: ckptfmt.types.TensorHandle, whole: Any, chance: random.Random) -> None:
        """Boxes and maps agree with the whole."""
        key = random_key(chance, handle.shape)
        with contextlib.suppress(IndexError):
            part = self._attempt("box", lambda: handle[key])
            if not isinstance(whole, Refused) and handle.dtype is not None:
                # Only partial reads look at the checksums of chunks.
                chunked = isinstance(part, Refused) and part.failure == "CHECKSUM"
                chunked = chunked and bool(handle.chunk_size or handle.slices)
                self._need(chunked or not isinstance(part, Refused), "box", key, part)
                self._need(chunked or same(part, whole[key]), "box", key, part)
        if chance.randrange(4) == 0:
            mapped = self._attempt("map", handle.map)
            if not isinstance(mapped, Refused):
                self._need(same(mapped, whole), "map", mapped)
        if chance.randrange(4) == 0 and not isinstance(whole, Refused):
            target = np.empty_like(whole)
            self._need(same(handle.read_into(target), whole), "read_into")

    @staticmethod
    def _value(code: int, shape: list[int], array: Any) -> Any:
        return array if isinstance(array, Refused) else vectors.array_value(code, shape, array)

    @staticmethod
    def _objects(reader: Reader) -> Any:
        graph = graph_of(reader)
        if graph is None:
            return None
        reachable(graph)
        return [
            (
                [(child, name) for name, child in node.children],
                [(one.name, one.full_name, one.checkpoint_key) for one in node.attributes],
                [
                    (one.original_variable_node_id, one.slot_name, one.slot_variable_node_id)
                    for one in node.slot_variables
                ],
            )
            for node in graph.nodes
        ]

    def _reference_listed(self, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = self.reference.Bundle(path)
        try:
            shapes: dict[str, Any] = {}
            for raw in bundle.names():
                entry, _ = bundle.entry(raw)
                shapes[raw.decode("utf-8", "surrogateescape")] = (entry.dtype, list(entry.shape))
            values = {}
            for name in list(shapes)[:READ_MAX]:
                raw = name.encode("utf-8", "surrogateescape")
                array = self._of_reference(lambda raw=raw: bundle.read(raw))
                values[name] = self._value(*shapes[name], array)
            values["metadata"] = self._of_reference(lambda: bundle.metadata)
            values["objects"] = self._of_reference(lambda: self._reference_objects(bundle))
            return shapes, values
        finally:
            bundle.close()

    @staticmethod
    def _reference_objects(bundle: Any) -> Any:
        nodes = bundle.objects()
        slot = ("original_variable_node_id", "slot_name", "slot_variable_node_id")
        return nodes and [
            (
                [(one["node_id"], one["local_name"]) for one in node["child"]],
                [(x["name"], x["full_name"], x["checkpoint_key"]) for x in node["attribute"]],
                [tuple(one[name] for name in slot) for one in node["slot"]],
            )
            for node in nodes
        ]

    @staticmethod
    def _has_numpy(shape: Any) -> bool:
        """Return whether numpy has an array of strings with this shape; only an empty one can be
        too large here, the elements of any other are in the file."""
        if 0 not in shape:
            return True
        try:
            np.empty(shape, object)
        except ValueError:
            return False
        return True

    def _compare(self, shapes: Any, wanted: Any, values: Any, expected: Any) -> None:
        self._need(shapes == wanted, "names", shapes, wanted)
        for name, value in values.items():
            one, other = value, expected[name]
            if isinstance(one, Refused) and isinstance(other, Refused):
                continue
            if one == Refused("UNSUPPORTED") and (
                len(shapes[name][1]) > 64
                or other["shape"] != shapes[name][1]  # a flat array in place of it
                or ("elements" in other and not self._has_numpy(shapes[name][1]))
            ):
                continue  # numpy has no such array
            self._need(repr(one) == repr(other), name, one, other)

    # ---- the rest of the interface

    def _verify(self, path: str, listed: Any) -> None:
        """Both verify alike, and what has no problem can be read."""
        report = verify_prefix(path)
        self.outcomes["verify: " + (report.problems[0].failure if report.problems else "ok")] += 1
        problems, _ = self.reference.verify(path)
        self._need(bool(report.problems) == bool(problems), "verify", report.problems, problems)
        if not report.problems:
            self._need(not isinstance(listed, Refused), "verified, but", listed)
            for name, value in listed[1].items():
                if isinstance(value, Refused) and name not in ("metadata", "objects"):
                    self._need(value.failure == "UNSUPPORTED", "verified, but", name, value)

    def _merge(self, path: str, chance: random.Random) -> None:
        """Merging with a sound one gives the same index, or is refused, by both."""
        other = self.place / "s"
        Mutant(chance.choice(self.samples), random.Random(0)).write(self.place, "s")
        inputs = [path, str(other)][:: chance.choice((1, -1))]
        target, theirs = str(self.place / "merged"), str(self.place / "theirs")
        before = set(os.listdir(self.place))
        merge = partial(ckptfmt.merge, inputs, target, partial=True, durability="none")
        found = self._attempt("merge", merge)
        if isinstance(found, Refused):
            self._need(set(os.listdir(self.place)) <= before, "left by merge", found)
        if found == Refused("LIMIT"):
            return  # the reference has other limits
        wanted = self._of_reference(lambda: self.reference.merge(inputs, theirs))
        self._need(
            isinstance(found, Refused) == isinstance(wanted, Refused), "merge", found, wanted
        )
        if not isinstance(found, Refused):
            one, two = (Path(f"{name}.index").read_bytes() for name in (target, theirs))
            self._need(one == two, "merged indexes", one, two)

    def _find(self, path: str, chance: random.Random) -> None:
        """State files lead to a checkpoint of the directory or to none."""
        state = self.place / "checkpoint"
        state.write_bytes(state_text(chance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            self._attempt("state", lambda: ckptfmt.tf.get_checkpoint_state(self.place))
            found = self._attempt("latest", lambda: ckptfmt.latest_checkpoint(self.place))
        if isinstance(found, str):
            inside = os.path.realpath(os.path.dirname(found)) == os.path.realpath(self.place)
            self._need(inside and os.path.exists(f"{found}.index"), "latest", found)

    def _load(self, path: str, listed: Any) -> None:
        found = self._attempt("load", lambda: ckptfmt.load(f"{path}.index"))
        if isinstance(found, dict):
            self._need(not isinstance(listed, Refused), "loaded, but", listed)
            for name, array in found.items():
                value = listed[1].get(name)
                if value is not None:
                    self._need(self._value(*listed[0][name], array) == value, "load", name)
        self._attempt("tree", lambda: ckptfmt.load_tree(f"{path}.index"))

    def _command(self, path: str, chance: random.Random) -> None:
        """The command prints something, and returns 0, 1 or 2."""
        words = chance.choice(
            (["inspect"], ["inspect", "--json"], ["inspect", "--tree"], ["verify"])
        )
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = cli([*words, f"{path}.index"])
        self._need(status in (0, 1, 2) and out.getvalue(), words, status)
        self.outcomes[f"{' '.join(words)}: {status}"] += 1


def same(one: Any, other: Any) -> bool:
    """Whether two arrays or elements hold the same bits."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype == np.dtype(object) or other.dtype == np.dtype(object):
        return one.shape == other.shape and one.tolist() == other.tolist()
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


class Board:
    """The number of the mutant that runs, where another process finds it."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, 8)
        with open(path, "r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), 8)

    def begin(self, number: int) -> None:
        struct.pack_into("<q", self._memory, 0, number)


def run(border: Border, board: Board, first: int, executions: int) -> list[str]:
    """Runs `executions` mutants; returns the findings."""
    found: list[str] = []
    for number in range(first, first + executions):
        if len(found) >= FINDINGS_MAX:
            break
        board.begin(number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            border.run(number)
        except FindingError as finding:
            found.append(str(finding))
        border.outcomes["executions"] += 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    return found


def _dies(path: str) -> Reader:
    if os.path.getsize(f"{path}.index") % 7 == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    return Reader(path)


def _leaks(path: str) -> Reader:
    os.open(f"{path}.index", os.O_RDONLY)
    return Reader(path)


# Wrong on purpose, to see that it is noticed.
PLANTED: dict[str, Callable[[str], Reader]] = {
    "none": Reader,
    "dies": _dies,
    "leaks": _leaks,
    "unchecked": partial(Reader, verify=False),
}


def limit_memory() -> None:
    """What a claim in a file makes the process take is a MemoryError, which is a finding."""
    if not SANITIZED:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        more = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (more, more))


def main() -> None:
    seed, executions, directory, first, planted = (*sys.argv[1:], "0", "none")[:5]
    place = Path(directory)
    border = Border(int(seed), place, PLANTED[planted])
    board = Board(place / "board")
    for number in range(-50, 0):  # what is loaded when it is first used is there
        with contextlib.suppress(FindingError):
            border.run(number)
    border.outcomes.clear()
    limit_memory()
    found = run(border, board, int(first), int(executions))
    print(json.dumps({"outcomes": border.outcomes, "findings": found}))


if __name__ == "__main__":
    main()
