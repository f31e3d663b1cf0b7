# SPDX-License-Identifier: Apache-2.0
"""Readers and verifiers beside a writer: `python -m races.overwriting ROUNDS SEED DIRECTORY
[in-place]`.

A writer overwrites one checkpoint again and again, beside eight readers and four verifiers of it.
Every tensor of a checkpoint carries its version, so that a mixture of two shows. A reader never
sees an older version than before, an open reader keeps its version, and there is always a
checkpoint.

With "in-place" the writer copies its files over the old ones, as a plain program would: that must
be noticed.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import ckptfmt

from .processes import Counts, MixedError, Role, Steps, race, tensors, version_of

# "replaced": a verification that gives up, as documented, because the checkpoint was replaced too
# often meanwhile.
COUNTED = ("save", "merge", "load", "read", "list", "latest", "verify", "replaced")


def write(root: Path, counts: Counts) -> Steps:
    """Save, in every way there is."""
    model, parts = root / "model", [root / "parts" / "0", root / "parts" / "1"]
    kinds: list[dict[str, Any]] = [
        {},
        {"shards": 3},
        {"compression": "zstd"},
        {"base": model},
        {"level": "v2"},
    ]
    for version in itertools.count(2):
        kind = version % (len(kinds) + 1)
        durability = "full" if version % 10 == 0 else "rename"
        values = tensors(version)
        if kind < len(kinds):
            ckptfmt.save(model, values, durability=durability, **kinds[kind])
            counts.add("save")
        else:
            halves = [{"a": values["a"]}, {name: values[name] for name in ("b", "c", "same")}]
            for place, half in zip(parts, halves, strict=True):
                ckptfmt.save(place, half, durability=durability)
            keeps = random.random() < 0.5
            ckptfmt.merge(
                parts, model, inputs="keep" if keeps else "consume", durability=durability
            )
            counts.add("merge")
        yield


def write_in_place(root: Path, counts: Counts) -> Steps:
    """The canary."""
    other = root / "aside" / "model"
    for version in itertools.count(2):
        ckptfmt.tf.remove_checkpoint(other)
        ckptfmt.save(other, tensors(version), durability="none")
        for file in other.parent.iterdir():
            shutil.copyfile(file, root / file.name)
        counts.add("save")
        yield


def read(root: Path, counts: Counts) -> Steps:
    """Load whole versions, never an older one than before."""
    model, newest = root / "model", 0
    mine = tensors(0)
    while True:
        version = version_of(ckptfmt.load(model))
        assert version >= newest, f"version {version} after {newest}"
        newest = version
        counts.add("load")
        yield
        with ckptfmt.open(model) as reader:
            version = int(reader["c"].read())
            first = reader["a"][5:9].tolist()
            yield  # the open reader keeps its version
            found = {name: reader[name].read() for name in mine}
            if version_of(found) != version or first != [version] * 4:
                raise MixedError("an open reader changed its version")
            if not reader["a"].slices and not reader["a"].compressed:
                assert (reader["a"].map() == version).all()
        counts.add("read")
        yield
        ckptfmt.load_into(model, mine)
        assert version_of(mine) >= newest
        assert version_of(ckptfmt.load(model, ["b", "c"])) >= newest
        counts.add("load")
        yield
        listed = dict(ckptfmt.tf.list_variables(str(model)))
        assert listed.keys() >= mine.keys(), listed
        counts.add("list")
        yield
        found = ckptfmt.latest_checkpoint(root)
        assert found == str(model), found
        counts.add("latest")
        yield


def verify(root: Path, counts: Counts) -> Steps:
    while True:
        problems = ckptfmt.verify(root / "model").problems
        if problems and problems[0].failure == "GENERATION_GONE":
            counts.add("replaced")
        else:
            assert not problems, problems
            counts.add("verify")
        yield


def main(rounds: int, seed: str, root: Path, writer: Role) -> int:
    warnings.simplefilter("error", ckptfmt.CkptfmtWarning)
    random.seed(seed)
    ckptfmt.save(root / "model", tensors(1))
    ckptfmt.tf.update_checkpoint_state(root, str(root / "model"))
    processes: list[list[Role]] = [[writer], *[[read] * 2] * 4, *[[verify] * 2] * 2]
    counts = Counts(COUNTED, len(processes))
    needed = {"save"} if writer is write_in_place else set(COUNTED) - {"replaced"}
    race("overwriting", processes, root, counts, rounds, needed)
    if writer is write:
        assert ckptfmt.verify(root / "model").ok
        version_of(ckptfmt.load(root / "model"))
        left = [str(path) for path in root.rglob("*") if "temp" in path.name]
        assert not left, left
    return counts.total("mixed") + counts.total("error")


if __name__ == "__main__":
    in_place = sys.argv[4:] == ["in-place"]
    bad = main(
        int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), write_in_place if in_place else write
    )
    sys.exit(bad > 0)
