# SPDX-License-Identifier: Apache-2.0
"""Options that choose, rename, transform and cast tensors mean the same for every source and in
every result: names, dtypes, values, what casts lose, and what is refused."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import recipes
from support.arrays import bits
from support.drawn_edits import named_in_tree
from support.files import contents
from support.recipes import FORMS, LEVELS, Expected, Recipe, Source, drawn_recipe, expected
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.editing import average, edit
from ckptfmt.safetensors import load_file

ENDS = {"safetensors": ".safetensors", "several": ".safetensors", "npz": ".npz", "hdf5": ".h5"}
OUTLETS = (
    ["edit"] * 5 + ["v2", "v2+", "ckptfmt", *ENDS, "load", "load", "load_into"] + ["average"] * 3
)
# What is written, compared and averaged at once.
LIMITS = [("recipe.values", "HELD_MAX"), ("recipe.values", "STEP_BYTES")]
LIMITS += [
    ("recipe.values", "BATCH_BYTES"),
    ("recipe.average", "STEP_BYTES"),
    ("bundle.comparing", "PIECE_BYTES"),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("recipes")
    return functools.cache(functools.partial(recipes.made_source, folder=folder))


@property_test(300, 40_000, seed=SEEDS)
def test_recipes_mean_the_same_everywhere(seed: int, sources: Any) -> None:
    chance = random.Random(seed)
    outlet = chance.choice(OUTLETS)
    form = chance.choice([*LEVELS] if outlet.startswith(("edit", "load")) else FORMS)
    if form == "graph" and outlet.startswith("load"):
        form = "v2"  # a load takes the object graph for one more tensor: test_choices.py
    number = chance.randrange(4)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for module, what in LIMITS if chance.random() < 0.3 else ():
            patch.setattr(f"ckptfmt.{module}.{what}", 64)
        if outlet == "average":
            several = [sources(form, number, values=seed) for seed in range(chance.choice([2, 3]))]
            check_average(chance, several, Path(name))
        else:
            check_recipe(chance, sources(form, number, values=0), outlet, Path(name))


def check_recipe(chance: random.Random, source: Source, outlet: str, folder: Path) -> None:
    """Draw a recipe and compare what comes of it with the model."""
    recipe = drawn_recipe(chance, source, outlet)
    right = expected(source, outlet, recipe)
    target = folder / f"b{ENDS.get(outlet, '')}"
    if source.is_ours and outlet in ("edit", *LEVELS.values()) and chance.random() < 0.2:
        target = copied(source, folder)
        source = source._replace(path=target)
    before, calls = contents(folder), list[tuple[int, int]]()
    recipe.more["progress"] = lambda *call: calls.append(call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        opened = stack.enter_context(ckptfmt.open(source.path)) if source.is_ours else None
        try:
            found, done = ways(outlet)(chance, source, target, recipe, right)
        except (ckptfmt.InvalidError, ckptfmt.TensorNotFoundError) as error:
            counted("recipes", **{f"refused {error.argument}": 1})
            assert (type(error), error.argument) in right.refusals, (error, recipe)
            assert contents(folder) == before
            return
        for name, array in source.arrays.items() if opened else ():  # its files may be replaced
            assert bits(opened.read(name)) == bits(array)
    counted("recipes", **{outlet: 1})
    assert not list(folder.glob("*temp*"))
    assert not right.refusals, recipe
    assert calls or outlet not in ENDS or not sum(one.nbytes for one in right.arrays.values())
    assert not calls or calls[-1][0] == calls[-1][1] == max(calls)[0]
    check_arrays(found, right)
    if done is not None:
        check_done(source, outlet, recipe, right, done)
    if outlet == "edit" or outlet in LEVELS.values():
        check_checkpoint(source, target, outlet, recipe, right)


def copied(source: Source, folder: Path) -> Path:
    """Copy a checkpoint, and return its path there."""
    for path in source.path.parent.glob(f"{source.path.name}.*"):
        shutil.copy(path, folder / path.name)
    return folder / source.path.name


def ways(outlet: str) -> Any:
    return {"edit": _edit, "load": _load, "load_into": _load_into}.get(
        outlet, functools.partial(_convert, outlet)
    )


def _edit(
    chance: random.Random, source: Source, target: Path, recipe: Recipe, right: Expected
) -> Any:
    recipe.more |= {"drop_weights": True, "compact": chance.random() < 0.3, "durability": "none"}
    if recipe.more.get("level") == "v2" and recipe.more.get("metadata", source.metadata):
        right.refusals.add((ckptfmt.InvalidError, "level"))
    if recipe.more.get("metadata") and "ckptfmt.torch" in source.metadata:
        right.refusals.add((ckptfmt.InvalidError, "metadata"))
    given = recipe.given()
    if chance.random() < 0.2:
        dry = edit(source.path, target, dry_run=True, **given)
        done = edit(source.path, target, **given)
        assert (dry.casts, dry.losses, dry.zeros) == (done.casts, done.losses, done.zeros)
    else:
        done = edit(source.path, target, **given)
    return ckptfmt.load(target), done


def _convert(
    outlet: str,
    chance: random.Random,
    source: Source,
    target: Path,
    recipe: Recipe,
    right: Expected,
) -> Any:
    recipe.more |= {"durability": "none", "drop_metadata": outlet == "v2"}
    if outlet == "v2" and source.metadata and chance.random() < 0.2:
        recipe.more["drop_metadata"] = False
        right.refusals.add((ckptfmt.InvalidError, "level"))
    if outlet in LEVELS.values():
        recipe.more |= {"level": outlet, "shards": chance.choice([1, 1, 3])}
        recipe.more |= {"compression": "zstd"} if outlet == "ckptfmt" else {}
    if outlet == "several":
        recipe.more["max_shard_bytes"] = chance.choice([1, 40, 100])
    done = ckptfmt.convert(source.path, target, **recipe.given())
    return read_back(outlet, target), done


def read_back(outlet: str, target: Path) -> dict[str, Any]:
    if outlet == "npz":
        with np.load(target) as found:
            return dict(found)
    if outlet in ("safetensors", "several"):
        files = target.parent.glob("*.safetensors")
        return {name: one for file in files for name, one in load_file(file).items()}
    if outlet == "hdf5":
        ckptfmt.convert(target, target.with_suffix(""), durability="none")
    return ckptfmt.load(target.with_suffix(""))


def _load(_: Any, source: Source, __: Path, recipe: Recipe, ___: Any) -> Any:
    return ckptfmt.load(source.path, **recipe.given()), None


def _load_into(
    chance: random.Random, source: Source, _: Path, recipe: Recipe, right: Expected
) -> Any:
    targets = {name: np.empty_like(array) for name, array in right.arrays.items()}
    report = ckptfmt.load_into(source.path, targets, **recipe.given())
    assert report.complete
    return targets, report


def check_arrays(found: dict[str, Any], right: Expected) -> None:
    found.pop(OBJECT_GRAPH_KEY, None)
    assert {*found} == {*right.arrays}
    for name, array in right.arrays.items():
        if right.is_free:
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        else:
            assert bits(found[name]) == bits(array), name


def has_graph(source: Source, outlet: str) -> bool:
    return source.form == "graph" and outlet in ("edit", "average", *LEVELS.values())


def check_done(source: Source, outlet: str, recipe: Recipe, right: Expected, done: Any) -> None:
    """The result says what casts did, and what was renamed and dropped."""
    by = right.new_names if isinstance(done, ckptfmt.types.Conversion) else {}
    if outlet != "load_into":
        assert done.tensors == len(right.arrays) + has_graph(source, outlet)
    if isinstance(done, ckptfmt.types.Conversion):
        is_dropped = source.form == "graph" and not has_graph(source, outlet)
        assert ("TensorFlow's object graph" in done.dropped) == is_dropped
        has_place = outlet not in ("v2", "npz", "hdf5")
        assert ("the metadata" in done.dropped) == (bool(source.metadata) and not has_place)
    assert done.losses == {by.get(name, name): one for name, one in right.losses.items()}
    assert done.zeros == {by.get(name, name): one for name, one in right.zeros.items()}
    assert sorted(done.uncast) == sorted(by.get(name, name) for name in right.uncast)
    if outlet != "load_into":
        assert {*done.casts} == {by.get(name, name) for name in right.casts}
    if outlet == "edit":
        names = right.new_names
        assert done.renamed == {old: new for old, new in names.items() if old != new}
        assert {*done.dropped} == source.arrays.keys() - names.keys()
        fresh = {"level", "compression", "alignment"} & recipe.more.keys()
        made = right.casts or done.dropped or fresh
        made = made or (recipe.rename and any(recipe.rename.of(name)[1] for name in names))
        assert not done.copied_nbytes or made, "only the index is written"


def check_checkpoint(
    source: Source, target: Path, outlet: str, recipe: Recipe, right: Expected
) -> None:
    """It is sound, slices stay, and its metadata and object graph follow the names."""
    assert ckptfmt.verify(target).ok
    with ckptfmt.open(target) as reader:
        level = "ckptfmt" if "compression" in recipe.more else recipe.more.get("level")
        levels = [*dict.fromkeys(LEVELS.values())]
        assert level is None or levels.index(reader.level) <= levels.index(level)
        table = reader.table(reserved=True)
        unaligned = table["offset"] % recipe.more.get("alignment", 1)
        assert not unaligned.any()
        metadata = dict(reader.metadata)
        if "ckptfmt.torch" in metadata:
            tree = json.loads(metadata.pop("ckptfmt.torch"))["state"]
            assert {*named_in_tree(tree)} == {*reader}
        kept = recipe.more.get("metadata", source.metadata if outlet != "v2" else {})
        assert metadata == {name: kept[name] for name in kept if name != "ckptfmt.torch"}
        new = right.new_names.get("part")
        if new and source.form in ("v2", "v2+", "zstd"):
            is_made = recipe.rename is not None and recipe.rename.of("part")[1]
            assert reader[new].partitioned != bool(is_made)
    if has_graph(source, outlet):
        ckptfmt.load_tree(target)


@np.errstate(all="ignore")
def check_average(chance: random.Random, several: list[Source], folder: Path) -> None:
    """A dry run says what the call does; all but the means is of the first source."""
    first, paths = several[0], [one.path for one in several]
    outlet = chance.choice(["average", "average", "npz", "hdf5", "safetensors"])
    target = folder / "new" / f"b{ENDS.get(outlet, '')}"
    means, differ = dict(first.arrays), set()
    for name, array in first.arrays.items():
        arrays = [one.arrays[name] for one in several]
        if recipes.kind_of(array.dtype) in "fc":
            wide = np.dtype("D" if array.dtype.kind == "c" else "d")
            parts = [np.atleast_1d(one).astype(wide).view("d") for one in arrays]
            mean = sum(parts[1:], parts[0]) / len(parts)
            means[name] = mean.view(wide).astype(array.dtype).reshape(array.shape)
        else:
            differ |= {name} if any(bits(array) != bits(one) for one in arrays) else set()
    source = first._replace(arrays=means)
    recipe = drawn_recipe(chance, source, outlet) if chance.random() < 0.7 else Recipe()
    right = expected(source, outlet, recipe)
    if first.is_ours and outlet == "average" and chance.random() < 0.2:
        target = paths[0] = copied(first, folder)
        source = source._replace(path=target)
    before, calls = contents(folder), list[tuple[int, int]]()
    with contextlib.suppress(ckptfmt.InvalidError, ckptfmt.TensorNotFoundError):
        dry = average(paths, target, dry_run=True, **recipe.given())
        assert not right.refusals, recipe
    assert contents(folder) == before and not (folder / "new").exists()
    try:
        done = average(paths, target, progress=lambda *call: calls.append(call), **recipe.given())
    except (ckptfmt.InvalidError, ckptfmt.TensorNotFoundError) as error:
        assert (type(error), error.argument) in right.refusals, (error, recipe)
        assert contents(folder) == before
        return
    assert not right.refusals, recipe
    counted("recipes", average=1)
    assert calls[-1][0] == calls[-1][1] and done == dry
    check_arrays(read_back(outlet, target), right)
    kinds = [recipes.kind_of(means[name].dtype) in "fc" for name in right.new_names]
    assert ({*done.taken}, done.averaged) == (differ & {*right.new_names}, sum(kinds))
    by = right.new_names if ENDS.keys() & {outlet} or not first.is_ours else {}
    assert done.losses == {by.get(name, name): one for name, one in right.losses.items()}
    assert done.zeros == {by.get(name, name): one for name, one in right.zeros.items()}
    if first.is_ours and outlet == "average":
        with ckptfmt.open(target) as reader, ckptfmt.open(first.path) as other:
            assert reader.level == other.level or recipe.drop or recipe.keep or recipe.rename
            for name, new in right.new_names.items():
                if not recipe.rename or not recipe.rename.of(name)[1]:
                    assert [one.start for one in reader[new].slices] == [
                        one.start for one in other[name].slices
                    ]
        check_checkpoint(source, target, outlet, recipe, right)
