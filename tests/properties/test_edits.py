# SPDX-License-Identifier: Apache-2.0
"""Edits of checkpoints with optimizers, and with what looks like them: each weight is there
afterwards, bit by bit, or it is named, or the edit was refused."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support.drawn_edits import Drawn, drawn_edit
from support.strategies import SEEDS, counted, property_test

import ckptfmt


@property_test(150, 30_000, seed=SEEDS)
def test_weights_are_there_or_named(seed: int) -> None:
    chance = random.Random(seed)
    drawn = Drawn(chance)
    given = drawn_edit(chance, list(drawn.values))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "a", Path(folder) / "b"
        drawn.save(source)
        assert ckptfmt.verify(source).ok
        try:
            done = ckptfmt.edit(source, target, durability="none", **given)
        except (ckptfmt.InvalidError, ckptfmt.TensorNotFoundError):
            counted("edits", refused=1)
            assert not list(Path(folder).glob("b*"))
            return
        counted("edits", **{"stripped" if "strip_optimizer" in given else "others": 1})
        after = ckptfmt.load(target)
        assert ckptfmt.verify(target).ok
        if drawn.graph is not None:
            ckptfmt.load_tree(target)
        check(drawn, given, done, after)


def check(drawn: Drawn, given: dict[str, Any], done: ckptfmt.Edit, after: dict[str, Any]) -> None:
    """What was done is what was said."""
    dropped = set(done.dropped)
    for name, value in drawn.values.items():
        if name in dropped:
            assert name not in drawn.weights or given.get("drop_weights"), (name, given)
            assert name not in done.undecided
            continue
        found = after[done.renamed.get(name, name)]
        if name not in done.casts:
            assert found.dtype == value.dtype and found.tobytes() == value.tobytes(), name
            continue
        with np.errstate(over="ignore"):
            assert found.tobytes() == value.astype(found.dtype).tobytes()
        finite = np.isfinite(found.astype("f8"))
        assert done.overflows.get(name, 0) == int((~finite).sum())
        assert done.zeros.get(name, 0) == int(((value != 0) & (found == 0)).sum())
    if given.get("strip_optimizer"):
        assert not drawn.state & set(after), "the state of known optimizers is gone"
        assert not set(done.undecided) & drawn.state
