# SPDX-License-Identifier: Apache-2.0
"""Edits of checkpoints with optimizers, and with what looks like them: each edit does what it must
by how the checkpoint was made, or is refused where it must be."""

from __future__ import annotations

import json
import random
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from support.drawn_edits import Drawn, Expected, drawn_edit, expected_of, named_in_tree
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt._base.renaming import renamed
from ckptfmt.bundle.comparing import changed_metadata
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.graph_keys import graph_of, reachable, wanted_keys
from ckptfmt.naming.graphs import graphs_equal
from ckptfmt.naming.metadata import renamed_metadata


@property_test(100, 60_000, seed=SEEDS)
def test_edits_do_what_they_must(seed: int) -> None:
    chance = random.Random(seed)
    drawn = Drawn(chance)
    given = drawn_edit(chance, drawn)
    expected = expected_of(drawn, given)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "a", Path(folder) / "b"
        drawn.save(source)
        assert ckptfmt.verify(source).ok == (not drawn.missing)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                done = ckptfmt.editing.edit(source, target, durability="none", **given)
        except (ckptfmt.InvalidError, ckptfmt.TensorNotFoundError) as error:
            counted("edits", refused=1)
            assert any(part in str(error) for part in expected.refusals), (error, given)
            assert not list(Path(folder).glob("b*"))
            return
        assert not expected.refusals, given
        counted("edits", **{"stripped" if "strip_optimizer" in given else "others": 1})
        places = named_in_tree(drawn.described).items()
        tied = {name for name, paths in places if len(paths) > 1 and {name} != {*paths}}
        names_go = not expected.dropped.isdisjoint(tied) and not given.get("strip_optimizer")
        assert len(warned) == names_go, (warned, given)
        check(drawn, given, expected, done)
        check_values(drawn, expected, done, ckptfmt.load(target))
        missing = set() if given.get("drop_missing") else drawn.missing
        assert ckptfmt.verify(target).ok == (not missing)
        check_graph(drawn, target, missing)
        if "rename" in given and not done.dropped and not drawn.missing and "metadata" not in given:
            check_rename(source, target, given["rename"])
        check_tree(drawn, target, done)


def check(
    drawn: Drawn, given: dict[str, Any], expected: Expected, done: ckptfmt.types.Edit
) -> None:
    """The edit did what it must, and says so."""
    assert set(done.dropped) == expected.dropped, given
    assert set(done.missing) == drawn.missing
    stays = expected.renamed.keys()
    undecided = drawn.doubtful & stays if given.get("strip_optimizer") else set()
    assert set(done.undecided) == undecided
    drops = bool(expected.dropped)
    assert drops or not done.kept
    for names, said in ((stays, done.kept), (expected.dropped, done.lost)) if drops else ():
        counts = Counter(map(drawn.role, names))
        if names is stays and drawn.graph is not None:
            counts["other"] += 1
        assert {role: count for role, (count, _) in said.items()} == counts, given
        for role, (_, nbytes) in said.items():
            if role in ("weight", "optimizer"):
                sizes = [drawn.values[name].nbytes for name in names if drawn.role(name) == role]
                assert nbytes == sum(sizes)


def check_values(
    drawn: Drawn, expected: Expected, done: ckptfmt.types.Edit, after: dict[str, Any]
) -> None:
    """Each tensor that stays is bit-equal under its new name."""
    after.pop(OBJECT_GRAPH_KEY, None)
    new_names = {name: done.renamed.get(name, name) for name in expected.renamed}
    assert sorted(after) == sorted(new_names.values())
    for name, new in new_names.items():
        value, found = drawn.values[name], after[new]
        # What Keras 3 stores below an optimizer that is stripped moves to its path in the model.
        assert new == expected.renamed[name] or "_variables/" in name
        assert found.dtype == value.dtype and found.shape == value.shape
        assert found.tolist() == value.tolist(), name


def check_graph(drawn: Drawn, target: Path, missing: set[str]) -> None:
    """The graph leads to every tensor, and to no other but those that were missing."""
    with ckptfmt.open(target) as reader:
        graph = graph_of(reader)
        assert (graph is None) == (drawn.graph is None)
        if graph is not None:
            keys = wanted_keys(graph, reachable(graph))
            assert sorted(keys) == sorted(missing.union(reader) - {OBJECT_GRAPH_KEY})
    if not missing:
        ckptfmt.load_tree(target)


def check_rename(source: Path, target: Path, rename: Any) -> None:
    """Graph and metadata differ by the new names alone."""

    def new(name: str) -> str:
        return renamed([name], rename)[0][0] or name

    with ckptfmt.open(source) as a, ckptfmt.open(target) as b:
        assert OBJECT_GRAPH_KEY not in a or graphs_equal(a, b, new)
        assert not changed_metadata(renamed_metadata(a, new), b.metadata)


def check_tree(drawn: Drawn, target: Path, done: ckptfmt.types.Edit) -> None:
    """The tree of a state of PyTorch has each tensor as often as before, those of stripped
    optimizers excepted, and no other."""
    if drawn.described is None:
        return
    with ckptfmt.open(target) as reader:
        text = reader.metadata.get("ckptfmt.torch")
        if text is None:
            return
        after = named_in_tree(json.loads(text)["state"])
        before = named_in_tree(drawn.described)
        assert set(after) == set(reader)
    for name, paths in before.items():
        if name in drawn.state or name in done.dropped:
            continue
        found = after[done.renamed.get(name, name)]
        optimizer = next(key for key in ("opt", "optimizer", "o") if key in drawn.described)
        inside = [path for path in paths if path.startswith(f"{optimizer}.state.3")]
        assert len(paths) - len(inside) <= len(found) <= len(paths)
