# SPDX-License-Identifier: Apache-2.0
"""Managers, cleaners and pruners in one directory: `python -m races.managing ROUNDS SEED DIRECTORY
[greedy]`.

    kept      a manager retains three checkpoints, beside a program that overwrites another
              checkpoint there and one that cleans
    pruned    a manager retains all, beside `prune`, which retains two, and one that cleans
    shared    two managers save even and odd numbers, and retain three

Beside them, others restore the newest checkpoint and load those that are retained. The newest one
that is finished can always be restored, and what is retained is there.

With "greedy" the manager retains one less than the others expect: that must be noticed.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt.errors import GenerationGoneError
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.manager.pruning import prune

from .processes import Counts, MixedError, Role, Steps, race, tensors, version_of

KEPT, PRUNED = 3, 2  # checkpoints that are retained
PAUSE = 0.01  # between two saves of the program that overwrites: each takes the directory's lock
RETAINED = {"kept": KEPT, "pruned": PRUNED}
# "retained" checkpoints were loaded; "removed" ones were so old that they may be removed. Of a
# folder with one manager, it is counted how many saves were begun and how many are done.
COUNTED = (
    *("kept begun", "kept done", "pruned begun", "pruned done"),
    *("shared", "overwrite", "restore", "latest", "retained", "removed", "prune", "clean"),
)


def manager(root: Path, folder: str, values: Any, most: int | None = KEPT) -> Any:
    checkpoint = ckptfmt.Checkpoint(x=values, y=np.arange(7.0))
    options = ckptfmt.tf.CheckpointOptions(durability="rename")
    return ckptfmt.CheckpointManager(checkpoint, root / folder, max_to_keep=most, options=options)


def number_in(values: Any) -> int:
    """The number that all values are."""
    if not (values == values[0]).all():
        raise MixedError("the values are not of one checkpoint")
    return int(values[0])


def load_number(prefix: Path | str) -> int:
    (values,) = (value for name, value in ckptfmt.load(prefix).items() if name.startswith("x/"))
    return number_in(values)


# ---- who saves -----------------------------------------------------------------------------------


def save_alone(root: Path, counts: Counts, folder: str, most: int | None) -> Steps:
    """Save numbers one after the other, two of three in the background and at once."""
    values = np.zeros(2000)
    mine = manager(root, folder, values, most)
    mine.restore_latest()
    pending: list[Any] = []
    try:
        for number in itertools.count(counts.total(f"{folder} begun") + 1):
            values[...] = number
            counts.add(f"{folder} begun")
            if number % 3:
                pending.append(mine.save_async(number))
                values[...] = -1
            else:
                while pending:
                    pending.pop(0).result(600)
                    counts.add(f"{folder} done")
                mine.save(number)
                counts.add(f"{folder} done")
                for one in range(max(1, number - RETAINED[folder] + 1), number + 1):
                    assert load_number(root / folder / f"ckpt-{one}") == one
            yield
    finally:
        for future in pending:
            future.result(600)


def manage(root: Path, counts: Counts) -> Steps:
    return save_alone(root, counts, "kept", KEPT)


def manage_greedily(root: Path, counts: Counts) -> Steps:
    """The canary."""
    return save_alone(root, counts, "kept", KEPT - 1)


def manage_all(root: Path, counts: Counts) -> Steps:
    return save_alone(root, counts, "pruned", None)


def manage_shared(root: Path, counts: Counts) -> Steps:
    """Two managers: one saves even numbers, the other odd ones."""
    values = np.zeros(2000)
    mine = manager(root, "shared", values)
    mine.restore_latest()
    number = 0
    while True:
        values += 1
        # The newest of the state file may have a lower number than one that the other removes now.
        number = max(mine.latest_step() or 0, number) + 1
        number += (number + counts.row) % 2
        mine.save(number)
        counts.add("shared")
        yield


def overwrite(root: Path, counts: Counts) -> Steps:
    """Save and merge beside the cleaner, which must leave the files of a save that goes on."""
    prefix, parts = root / "kept" / "model", [root / "kept" / f"part{which}" for which in (0, 1)]
    for version in itertools.count(1):
        values = tensors(version)
        if version % 2:
            ckptfmt.save(prefix, values, durability="rename", shards=3)
        else:
            halves = [{"a": values.pop("a")}, values]
            for place, half in zip(parts, halves, strict=True):
                ckptfmt.save(place, half, durability="rename")
            ckptfmt.merge(parts, prefix, inputs="consume", durability="rename")
        found = version_of(ckptfmt.load(prefix))
        assert found == version, f"version {found}, saved was {version}"
        counts.add("overwrite")
        yield
        time.sleep(PAUSE)


# ---- who restores --------------------------------------------------------------------------------


def restore(root: Path, counts: Counts) -> Steps:
    values = np.zeros(2000)
    folders = ["kept", "pruned", "shared"]
    managers = {folder: manager(root, folder, values) for folder in folders}
    for folder in itertools.cycle(folders):
        alone = folder in RETAINED
        least = counts.total(f"{folder} done") if alone else 1
        result = managers[folder].restore_latest()
        assert result.path is not None and not result.rejected, result.rejected
        found = number_in(values)
        assert found >= least, f"{folder}: {found} is restored, {least} was done before"
        assert not alone or found <= counts.total(f"{folder} begun")
        counts.add("restore")
        yield


def latest(root: Path, counts: Counts) -> Steps:
    for folder in itertools.cycle(["kept", "pruned", "shared"]):
        least = counts.total(f"{folder} done") if folder in RETAINED else 1
        prefix = ckptfmt.latest_checkpoint(root / folder)
        assert prefix is not None, f"{folder}: no checkpoint"
        counts.add("latest")
        try:
            found = load_number(prefix)
        except (ckptfmt.CheckpointNotFoundError, GenerationGoneError):
            counts.add("removed")  # after it was named
        else:
            assert found >= least, f"{folder}: {found} is the latest, {least} was done before"
        yield


def retained(root: Path, counts: Counts) -> Steps:
    """Load checkpoints that are finished. One may be missing only if as many newer ones as are
    retained have been begun."""
    for folder, most in itertools.cycle(RETAINED.items()):
        number = max(1, counts.total(f"{folder} done") - random.randrange(most))
        try:
            found = load_number(root / folder / f"ckpt-{number}")
        except (ckptfmt.CheckpointNotFoundError, GenerationGoneError):
            newest = counts.total(f"{folder} begun")
            assert newest - number >= most, f"{folder}: {number} is missing, {newest} is the newest"
            counts.add("removed")
        else:
            assert found == number, f"{folder}: {found} is in ckpt-{number}"
            counts.add("retained")
        yield


# ---- who removes ---------------------------------------------------------------------------------


def prune_old(root: Path, counts: Counts) -> Steps:
    while True:
        place = root / "pruned"
        least = min(PRUNED, len(list(place.glob("ckpt-*.index"))))
        done = prune(str(place), PRUNED)
        assert not done.damaged, done.damaged
        left = list(place.glob("ckpt-*.index"))  # nothing else removes any
        assert len(left) >= least, left
        counts.add("prune")
        yield


def clean(root: Path, counts: Counts) -> Steps:
    """As `ckptfmt clean`. No writer has died, so only a file that a writer has made and not locked
    yet may be removed; the writer makes another."""
    for folder in itertools.cycle(["kept", "pruned", "shared"]):
        with LocalFolder(str(root / folder)).opened() as place, place.lock(600):
            gone = place.sweep(None)
        assert all(".tempstate" in name for name in gone), gone
        counts.add("clean")
        yield


def main(rounds: int, seed: str, root: Path, saver: Role) -> int:
    warnings.simplefilter("error", ckptfmt.CkptfmtWarning)
    random.seed(seed)
    processes: list[list[Role]] = [
        [saver],
        [manage_all],
        *[[manage_shared]] * 2,
        [overwrite],
        [restore, latest],
        [retained, retained],
        [prune_old, clean],
    ]
    counts = Counts(COUNTED, len(processes))
    for folder in ("kept", "pruned", "shared"):
        manager(root, folder, np.ones(2000)).save()
    for folder in RETAINED:
        counts.add(f"{folder} begun")
        counts.add(f"{folder} done")
    race("managing", processes, root, counts, rounds, set(COUNTED) - {"removed"})
    if saver is manage:
        for folder in ("kept", "pruned", "shared"):
            mine = manager(root, folder, np.zeros(2000))
            assert mine.checkpoints
            assert folder == "pruned" or len(mine.checkpoints) <= KEPT
            for prefix in mine.checkpoints:
                assert ckptfmt.verify(prefix).ok
        left = [str(path) for path in root.rglob("*") if "temp" in path.name]
        assert not left, left
    return counts.total("mixed") + counts.total("error")


if __name__ == "__main__":
    greedy = sys.argv[4:] == ["greedy"]
    bad = main(
        int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), manage_greedily if greedy else manage
    )
    sys.exit(bad > 0)
