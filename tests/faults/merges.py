# SPDX-License-Identifier: Apache-2.0
"""Kills merges before calls of the operating system, and makes them again: see `main`."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.forking import forked, wait_for
from support.preload import serve

import ckptfmt
from ckptfmt import cli

from .driver import KINDS

ANY, KILL = len(KINDS), -1
LAST, LAST_TAKEN = 10, 3
counts: Counter[str] = Counter()
wrong: list[str] = []
PARTS = {"part-0": {"x": np.arange(9)}, "part-1": {"y": np.ones(5), "z": np.zeros(0)}}
FINISHED = "{} exists and is whole; an earlier call may have finished"


def paths(root: Path) -> tuple[list[str], str]:
    """The inputs and the destination."""
    return [f"{root}/parts/{name}" for name in PARTS], f"{root}/whole"


def merge(root: Path, inputs: Any) -> None:
    parts, destination = paths(root)
    ckptfmt.merge(parts, destination, inputs=inputs, metadata_from=parts[0])


def command(*arguments: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        if cli.main([*arguments, "--quiet", "--overwrite"]) != 0:
            raise ckptfmt.CheckpointNotFoundError(printed.getvalue())


def merge_command(root: Path) -> None:
    inputs, destination = paths(root)
    command("merge", "--consume", *inputs, destination)


def mv_command(root: Path) -> None:
    inputs, destination = paths(root)
    command("mv", inputs[0], destination)


# By name, the call and the parts that the result has.
MERGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "consume": (lambda root: merge(root, "consume"), [*PARTS]),
    "keep": (lambda root: merge(root, "keep"), [*PARTS]),
    "v2": (lambda root: ckptfmt.merge_v2_checkpoints(*paths(root)), [*PARTS]),
    "ckptfmt merge": (merge_command, [*PARTS]),
    "ckptfmt mv": (mv_command, ["part-0"]),
}


def prepare(root: Path, over: bool) -> None:
    for name, tensors in PARTS.items():
        ckptfmt.save(root / "parts" / name, tensors, durability="none", metadata={"by": "me"})
    if over:
        ckptfmt.save(root / "whole", {"x": np.full(2, 7)}, durability="none")


def check(root: Path, parts: list[str]) -> None:
    expected = {name: array for part in parts for name, array in PARTS[part].items()}
    found = ckptfmt.load(root / "whole", verify="full")
    assert found.keys() == expected.keys(), f"the destination has {sorted(found)}"
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def again(root: Path, name: str) -> str:
    """Makes the call again, and returns how it ended."""
    call, parts = MERGES[name]
    try:
        call(root)
    except ckptfmt.CheckpointNotFoundError as error:
        assert FINISHED.format(root / "whole") in error.message, f"raised: {error}"
        assert name != "keep", "no input of it is ever missing"
        check(root, parts)
        return "reported"
    check(root, parts)
    return "finished"


def killed_at(at: int, root: Path, name: str) -> bool:
    library = ctypes.CDLL(None)

    def work() -> None:
        library.fault_arm(ANY, at, 1, KILL, 0)
        MERGES[name][0](root)
        library.fault_disarm()

    status = wait_for(forked(work))
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def kill(at: int, root: Path, name: str, over: bool) -> bool:
    """Whether the merge made so many calls."""
    root.mkdir()
    prepare(root, over)
    killed = killed_at(at, root, name)
    try:
        counts[again(root, name)] += killed
    except (ckptfmt.CkptfmtError, AssertionError) as error:
        wrong.append(f"{name}, over={over}, killed before call {at}: {error}")
    shutil.rmtree(root)
    counts["killed"] += killed
    return killed


def main(scratch: str, step: str) -> None:
    """Of all calls one in `step` is taken, and some of the last ones, where the inputs are gone.
    The file `printed` gets what went wrong, and a last line with the counts."""
    root = Path(scratch) / "root"
    for name in MERGES:  # what is imported late is imported now
        prepare(root, False)
        MERGES[name][0](root)
        with contextlib.suppress(ckptfmt.CheckpointNotFoundError):
            MERGES[name][0](root)
        shutil.rmtree(root)
    chance = random.Random(os.environ["CKPTFMT_TEST_SEED"])
    for name in MERGES:
        for over in (False, True):
            end = 1
            while kill(end, root, name, over):
                end += int(step)
            begin = end - int(step)
            while end - begin > 1:  # find the last call
                middle = (begin + end) // 2
                if kill(middle, root, name, over):
                    begin = middle
                else:
                    end = middle
            late = range(end - LAST, end - 1)
            for last in chance.sample(late, LAST_TAKEN) if step != "1" else ():
                kill(last, root, name, over)
    ends = ", ".join(f"{counts[end]:,} {end}" for end in ("finished", "reported"))
    wrong.append(f"faults: merges: {counts['killed']:,} kills: {ends}")
    Path(scratch, "printed").write_text("\n".join(wrong))


if __name__ == "__main__":
    serve(main)
