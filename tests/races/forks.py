# SPDX-License-Identifier: Apache-2.0
"""Forks beside first calls: `python -m races.forks PROCESSES SEED DIRECTORY`.

Again and again a process that has only imported the package starts threads that load, verify, map,
save and use a manager, and forks children meanwhile. A child does one of these as well: a read, of
which only the name was looked up before the threads started; a save, of which one was made before;
or a read by a reader that was opened before. Every child ends in time, with the right values, and
so do the threads.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from support.forking import forked, in_child, wait_for

import ckptfmt

TIMEOUT = 120
FORKS = 6  # of a process
VALUES = np.arange(60000.0)
TEXT = [b"some", b"text"]


def read(path: Path) -> None:
    found = ckptfmt.load(path)
    assert np.array_equal(found["x"], VALUES) and found["t"].tolist() == TEXT


def verify(path: Path) -> None:
    assert ckptfmt.verify(path).ok


def view(path: Path) -> None:
    with ckptfmt.open(path) as reader:
        assert reader["x"].map()[-1] == VALUES[-1]
        assert reader["x"][3:5].tolist() == [3, 4]


def own(path: Path) -> Path:
    """A path for this thread alone."""
    return path.parent / "own" / f"{os.getpid()}-{threading.get_ident()}"


def save(path: Path) -> None:
    mine = own(path)
    ckptfmt.save(mine, {"x": VALUES, "t": TEXT}, durability="rename")
    read(mine)


def manage(path: Path) -> None:
    values = VALUES.copy()
    checkpoint = ckptfmt.Checkpoint(x=values)
    options = ckptfmt.tf.CheckpointOptions(durability="rename")
    manager = ckptfmt.CheckpointManager(checkpoint, own(path), max_to_keep=1, options=options)
    for _ in range(2):
        manager.save()
    values[...] = 0
    assert manager.restore_latest().path is not None
    assert np.array_equal(values, VALUES)


CALLS: dict[str, Callable[[Path], None]] = {
    "load": read,
    "verify": verify,
    "map": view,
    "save": save,
    "manager": manage,
}
KINDS = (*CALLS, "reader")
MAKES = ("save", "manager")  # calls that import what they need when they are made


def beside(path: Path, kind: str, source: random.Random) -> None:
    """Make first calls in threads, and fork children beside them that make calls of this kind."""
    signal.alarm(3 * TIMEOUT)
    if kind == "reader":
        reader = ckptfmt.open(path)
    elif kind in MAKES:
        CALLS[kind](path)
    else:
        ckptfmt.load, ckptfmt.verify, ckptfmt.open  # noqa: B018 (importing what reads)
    failed: list[BaseException] = []

    def read_open(_path: Path) -> None:
        for _ in range(20):
            assert np.array_equal(reader["x"].read(), VALUES)
            assert reader["x"][3:5].tolist() == [3, 4]

    calls = {**CALLS, "reader": read_open} if kind == "reader" else CALLS

    def run(name: str) -> None:
        try:
            calls[name](path)
        except BaseException as error:
            failed.append(error)

    def work() -> None:
        signal.alarm(TIMEOUT)
        calls[kind](path)

    threads = [threading.Thread(target=run, args=(name,)) for name in [*calls] * 2]
    source.shuffle(threads)
    for thread in threads:
        thread.start()
    children = []
    for _ in range(FORKS):
        children.append(forked(work))
        time.sleep(source.random() * 0.002)
    ended = [wait_for(process) for process in children]
    assert not any(ended), f"children that {kind} ended with {ended}"
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), f"a thread hangs beside children that {kind}"
    if failed:
        raise failed[0]


def main(rounds: int, seed: str, root: Path) -> None:
    source, counts = random.Random(seed), Counter[str]()
    path = root / "model"
    first = {"x": VALUES, "t": TEXT}
    assert in_child(lambda: ckptfmt.save(path, first, durability="rename")) == 0
    kinds: list[str] = []
    while counts["process"] < max(rounds, len(KINDS)):
        kinds = kinds or source.sample(KINDS, len(KINDS))
        kind = kinds.pop()
        status = in_child(partial(beside, path, kind, source))
        assert status == 0, f"first calls beside children that {kind}: {status}"
        assert not [name for name in sys.modules if name.startswith("ckptfmt.bundle")]
        counts["process"] += 1
        counts["child"] += FORKS
        counts[kind] += FORKS
        shutil.rmtree(root / "own", ignore_errors=True)
        source.random()  # the next process draws other pauses
    did = ", ".join(f"{what} {counts[what]:,}" for what in ("process", "child", *KINDS))
    print(f"forks: {did}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
