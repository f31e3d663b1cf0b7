# SPDX-License-Identifier: Apache-2.0
"""Recipes: sources of every format with known arrays, options that change them, drawn, and a model
in NumPy of what each result must be, or by which errors it must be refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import ml_dtypes
import numpy as np

import ckptfmt
from ckptfmt import InvalidError, TensorNotFoundError, safetensors

from .trees import nested

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
BFLOAT16, INT4 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.int4)
DTYPES = [
    BFLOAT16,
    INT4,
    *map(np.dtype, ("f2", "f4", "f4", "f8", "i1", "i4", "i8", "u1", "?", "F", "D")),
]
# Options of an edit that copies everything.
FRESH = [{"level": "v2+"}, {"compression": "zstd"}, {"level": "v2+", "alignment": 512}]
FRESH += [{"alignment": 512}, {"level": "v2"}]
# "n[1]" is a name, and a pattern of "n1".
NAMES = ["a", "b/w", "b/slot", "c/d/w", "n[1]", "n1", "step", "rate", "empty", "part", "words"]
NUMBERS = [0, 1, 2, 0.5, -2.75, 3, 200, -129, 70_000, 16_777_217, 1e30, -1e-9, np.nan, np.inf]
# ---- sources -------------------------------------------------------------------------------------


class Source(NamedTuple):
    """A checkpoint or a file of another format, and its arrays by stored name."""

    form: str
    path: Path
    arrays: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        return self.form in LEVELS

    def names_of(self, name: str) -> set[str]:
        """Return the names that a filter of an edit or a conversion takes for a tensor."""
        return {name, name.removesuffix(VALUE)} if self.form == "graph" else {name}


LEVELS = {"v2": "v2", "v2+": "v2+", "zstd": "ckptfmt", "torch": "v2+", "graph": "v2+"}
FORMS = [*LEVELS, "safetensors", "several", "npz", "hdf5"]


def holds(outlet: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a source or result holds a dtype, of those that are drawn."""
    if outlet == "torch":
        return dtype.kind != "O" and dtype != INT4
    if outlet in ("safetensors", "several"):
        return dtype.kind != "O" and dtype not in ("D", INT4)
    return outlet != "npz" or dtype.kind in "biufc"


@np.errstate(all="ignore")
def drawn_arrays(chance: random.Random, form: str, values: int) -> dict[str, Any]:
    """Arrays whose names, dtypes and shapes `chance` draws, with values by another seed."""
    rng, arrays = np.random.default_rng(values), dict[str, Any]()
    some = chance.sample(NAMES, chance.randint(3, len(NAMES)))
    for name in sorted({*some, "a"} if form == "zstd" else some):
        dtype = chance.choice([one for one in DTYPES if form == "v2" or holds(form, one)])
        shape = {"step": (), "rate": (), "empty": (0, 2), "part": (4, 3)}.get(name, (2, 3))
        if name == "words" and form not in ("v2", "v2+", "zstd", "graph", "hdf5"):
            continue
        if name == "words":
            arrays[name] = np.array([b"one", b"", bytes([97 + values % 26])], object)
            continue
        dtype = np.dtype("i8") if name == "step" else dtype
        shape = (70, 80) if (name, form) == ("a", "zstd") else shape  # gets smaller
        is_real = kind_of(dtype) in "fc"
        pool = NUMBERS if is_real else [0, 1, 2, 3, 100, 7, 50, 16_777_217, -5, 300]
        pool = pool if chance.random() < 0.5 else [0, 1, 2, 3, 0.5]
        array = np.array(rng.choice(pool, shape), "f8" if is_real else "i8")
        arrays[name] = array.astype("f4" if dtype == BFLOAT16 else dtype).astype(dtype)
        if dtype.kind == "c" and chance.random() < 0.5:
            arrays[name].imag = arrays[name].real[::-1] if array.ndim else 2
    return arrays


def made_source(form: str, number: int, folder: Path, values: int = 0) -> Source:
    """Write a source; the same `number` has the same names, dtypes and shapes."""
    chance = random.Random(f"{form} {number}")
    arrays = drawn_arrays(chance, form, values)
    metadata = {} if form not in LEVELS or form == "v2" else {"note": "é", "numbers": [1, 2.5]}
    if form == "torch":
        tree = {name: {"$tensor": True} for name in arrays}
        metadata["ckptfmt.torch"] = json.dumps({"version": 1, "state": tree})
    path = folder / f"{form.replace('+', 'p')}-{number}-{values}"
    if form == "graph":
        ckptfmt.save_tree(path, nested(arrays), metadata=metadata, durability="none")
        arrays = {name + VALUE: array for name, array in arrays.items()}
    elif form in LEVELS:
        options: dict[str, Any] = {"level": LEVELS[form], "metadata": metadata or None}
        options |= {"compression": "zstd"} if form == "zstd" else {}
        shards = chance.randint(1, 3)
        with ckptfmt.Writer(path, durability="none", shards=shards, **options) as writer:
            for name, array in arrays.items():
                row = 2 if values else 3
                for rows in ([row, 4], [0, row]) if name == "part" and form != "torch" else ():
                    part = array[rows[0] : rows[1]]
                    writer.add_slice(name, part, array.shape, (rows[0], 0))
                if name != "part" or form == "torch":
                    writer.add(name, array)
    elif form == "npz":
        path = path.with_suffix(".npz")
        np.savez(path, **arrays)
    elif form == "hdf5":
        path = path.with_suffix(".h5")
        arrays = {name: one for name, one in arrays.items() if one.dtype != BFLOAT16}
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                text = h5py.string_dtype() if array.dtype.kind == "O" else None
                file.create_dataset(name, data=array, dtype=text)
    else:
        stem = path.name
        half = len(arrays) // 2 if form == "several" else 0
        some = dict([*arrays.items()][:half]), dict([*arrays.items()][half:])
        for i, part in enumerate(some[form != "several" :]):
            safetensors.save_file(part, path.with_name(f"{stem}-{i}.safetensors"))
        path = path.with_name(f"{stem}-0.safetensors")
        if form == "several":
            path = path.with_name(f"{path.name}.index.json")
            where = {one: f"{stem}-{i}.safetensors" for i in (0, 1) for one in some[i]}
            path.write_text(json.dumps({"weight_map": where}))
    return Source(form, path, arrays, metadata)


# ---- recipes -------------------------------------------------------------------------------------


class Form(NamedTuple):
    """An argument, and what it means of a name."""

    given: Any
    of: Callable[[str], Any]


def third(array: Any) -> Any:
    """Rounded, so that a cast before it and one after it differ."""
    return array / array.dtype.type(3) if kind_of(array.dtype) in "fc" else array


TRANSFORMS = [np.transpose, third, third, lambda one: one.reshape(-1), np.negative, np.copy]


@dataclass
class Recipe:
    """Options of an outlet."""

    names: list[str] | None = None
    filter: Form | None = None
    keep: list[Form] | None = None
    drop: list[Form] | None = None
    rename: Form | None = None
    cast: Any = None  # a dtype, or pairs of a filter and a dtype
    allow_loss: bool = False
    more: dict[str, Any] = field(default_factory=dict)  # changes nothing of the tensors

    def given(self) -> dict[str, Any]:
        """Return the arguments."""
        found: dict[str, Any] = {**self.more}
        for what in ("names", "filter", "keep", "drop", "rename", "cast"):
            one = getattr(self, what)
            if isinstance(one, list) and what in ("keep", "drop"):
                one = [each.given for each in one]
                one = one[0] if len(one) == 1 else one
            elif isinstance(one, list) and what == "cast":
                one = {key.given: dtype for key, dtype in one}
            if one is not None:
                found[what] = one.given if isinstance(one, Form) else one
        return {**found, "allow_loss": True} if self.allow_loss else found


def drawn_filter(chance: random.Random, names: list[str]) -> Form:
    known = chance.choice(names)
    path = known.removesuffix(VALUE)
    word = chance.choice([one for one in path.split("/") if one])
    kind = chance.random()
    if kind < 0.35:
        return Form(known, lambda name: name == known)
    if kind < 0.45 and path not in names:
        return Form(path, lambda name: name == path)
    if kind < 0.55 and "[" not in word:
        return Form(f"*{word}*", lambda name: word in name)
    if kind < 0.65:
        return Form(f"/{re.escape(word)}$/", lambda name: name.endswith(word))
    if kind < 0.75:
        return Form(re.compile(f"^{re.escape(word[0])}"), lambda name: name[0] == word[0])
    if kind < 0.85:
        return Form(lambda name: word in name, lambda name: word in name)
    if kind < 0.97 and "n1" in names:
        return Form("n[12]", lambda name: name == "n1")
    if kind < 0.95:
        return Form("*", lambda name: True)
    return Form("zzz*", lambda name: False)


def drawn_rename(chance: random.Random, names: list[str]) -> Form:
    """The rule gives the new name, None if it drops the tensor, and the transforms."""
    transform = chance.choice(TRANSFORMS)
    some = chance.sample(names, min(len(names), chance.randint(1, 3)))
    kind = chance.random()
    if kind < 0.4:
        pairs: dict[str, Any] = {old: f"top/{old}" for old in some}
        if chance.random() < 0.3:  # a circle; an object's new path has as many parts
            some = [name for name in some if name.count("/") == some[0].count("/")]
            pairs = dict(zip(some, [*some[1:], some[0]], strict=True))
        others = [name for name in names if name not in pairs]
        if others and chance.random() < 0.25:
            pairs[some[0]] = chance.choice(others)
        if chance.random() < 0.5:
            pairs[some[0]] = (pairs[some[0]], transform)
        if chance.random() < 0.1:
            pairs["zzz"] = "y"
        given = {name.encode() if chance.random() < 0.1 else name: pairs[name] for name in pairs}
        return Form(given, lambda name: as_pair(pairs.get(name, name)))
    word = chance.choice(chance.choice(names).removesuffix(VALUE).split("/"))
    if kind < 0.6:

        def function(name: str) -> Any:
            if word not in name:
                return name
            return {0: None, 1: f"{name}2", 2: (name, transform)}.get(number, name)

        number = chance.choice([0, 1, 2, 2, 3])
        return Form(function, lambda name: as_pair(function(name)))
    rules = []
    for _ in range(chance.choice([1, 2, 2])):
        start = chance.choice(names)[0]
        if rules and rules[-1][1] and chance.random() < 0.5:
            start = rules[-1][1][0]  # of the names that the last rule gives
        new = chance.choice(["x", "top/", "(1)", None, None, ""])
        more = () if new is None or chance.random() < 0.6 else (chance.choice(TRANSFORMS),)
        rules.append((f"^{re.escape(start)}", None if new is None else new + start, *more))

    def rule(name: str) -> tuple[str | None, list[Any]]:
        transforms = []
        for pattern, new, *more in rules:
            start = pattern[-1]
            if name.startswith(start):
                if new is None:
                    return None, []
                name, transforms = new + name[1:], [*transforms, *more]
        return name, transforms

    return Form(rules, rule)


def as_pair(new: Any) -> tuple[str | None, list[Any]]:
    return (new[0], [new[1]]) if isinstance(new, tuple) else (new, [])


def drawn_cast(chance: random.Random, names: list[str], kinds: set[str]) -> Any:
    if chance.random() < 0.5:
        return chance.choice([one for one in DTYPES if kind_of(one) in kinds or one == "f4"])
    pairs: dict[Any, Any] = {}
    for _ in range(chance.randint(1, 3)):
        form = drawn_filter(chance, names)
        pairs.setdefault(form.given, (form, chance.choice([*DTYPES, None])))
    return [*pairs.values()]


def drawn_recipe(chance: random.Random, source: Source, outlet: str) -> Recipe:
    """Options that fit the outlet."""
    names, recipe = sorted(source.arrays), Recipe()
    kinds = {kind_of(array.dtype) for array in source.arrays.values() if array.ndim}
    writes = not outlet.startswith("load")
    if not writes and chance.random() < 0.3:
        recipe.names = chance.sample(names, chance.randint(1, len(names)))
        recipe.names += ["zzz"] * (chance.random() < 0.05)
    if not writes and chance.random() < 0.3:
        recipe.filter = drawn_filter(chance, recipe.names or names)
    for what in ("keep", "drop") if writes else ():
        if chance.random() < 0.25:
            count = chance.choice([1, 1, 2])
            setattr(recipe, what, [drawn_filter(chance, names) for _ in range(count)])
    # What the result cannot hold is mostly left out.
    odd = [name for name in names if not holds(outlet, source.arrays[name].dtype)]
    if odd and chance.random() < 0.8:
        forms = [Form(name, lambda given, name=name: given == name) for name in odd]
        recipe.drop = [*(recipe.drop or []), *forms]
    if chance.random() < 0.5:
        recipe.rename = drawn_rename(chance, names)
    if chance.random() < 0.5:
        recipe.cast = drawn_cast(chance, names, kinds)
        recipe.allow_loss = chance.random() < 0.85
    if chance.random() < 0.15:  # a cast before a transform
        name = chance.choice(names)
        recipe.rename = Form({name: (name, third)}, lambda old: (old, [third] * (old == name)))
        to = chance.choice([BFLOAT16, np.dtype("f2"), np.dtype("f4")])
        recipe.cast = [(Form(name, lambda given: given == name), to)]
    if chance.random() < 0.04:  # nothing but a name that is missing
        pairs = {names[0]: f"{names[0]}2", "zzz": "y"}
        return Recipe(rename=Form(pairs, lambda name: as_pair(pairs.get(name, name))))
    if outlet == "edit" and (recipe == Recipe() or chance.random() < 0.15):
        recipe.more = {"metadata": chance.choice([{"edited": True}, {}])}
    if outlet == "edit" and chance.random() < 0.3:
        recipe.more |= chance.choice(FRESH)
    return recipe


# ---- the model -----------------------------------------------------------------------------------


@dataclass
class Expected:
    """What must come of a recipe.

    Attributes:
        refusals: classes and arguments of the errors, of which one must be raised if there are any.
        new_names: by stored name, of the tensors in the result.
        arrays: by new name.
        casts, losses, zeros, uncast: as in the result of an edit, by stored name.
        is_free: whether a result has elements that no rule gives.
    """

    refusals: set[tuple[type, str | None]] = field(default_factory=set)
    new_names: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    casts: set[str] = field(default_factory=set)
    losses: dict[str, int] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    uncast: list[str] = field(default_factory=list)
    is_free: bool = False


def kind_of(dtype: np.dtype[Any]) -> str:
    special = {BFLOAT16.name: "f", INT4.name: "i"}
    return special.get(dtype.name) or {"u": "i"}.get(dtype.kind, dtype.kind)


def is_lost(before: Any, to: np.dtype[Any], after: Any) -> bool:
    """Return whether one number changed by more than rounding."""
    if isinstance(before, complex):
        if kind_of(to) == "c":
            pairs = (before.real, complex(after).real), (before.imag, complex(after).imag)
            return any(np.isfinite(one) and not np.isfinite(other) for one, other in pairs)
        return before.imag != 0 or is_lost(before.real, to, after)
    if kind_of(to) == "b":
        return before not in (0, 1)
    if kind_of(to) == "i":
        least, most = (-8, 7) if to == INT4 else (np.iinfo(to).min, np.iinfo(to).max)
        return not (np.isfinite(before) and least <= before <= most and before % 1 == 0)
    after = complex(after).real
    if isinstance(before, float):
        return bool(np.isfinite(before) and not np.isfinite(after))
    return not np.isfinite(after) or int(after) != before


@np.errstate(all="ignore")
def cast(array: Any, to: np.dtype[Any]) -> tuple[Any, int, int, bool]:
    """Return an array of another dtype, how many elements are lost and how many became 0, and
    whether some became integers that no rule gives."""
    real = array.real if array.dtype.kind == "c" and to.kind != "c" else array
    result = real.astype(to)
    before, after = array.reshape(-1), result.reshape(-1)
    python: Any = {"c": complex, "f": float}.get(kind_of(array.dtype), int)
    pairs = [(python(one), other) for one, other in zip(before, after, strict=True)]
    lost = [is_lost(one, to, other) for one, other in pairs]
    zeros = sum(
        one != 0 and other == 0 and not gone for (one, other), gone in zip(pairs, lost, strict=True)
    )
    free = any(lost) and kind_of(to) in "ib" and kind_of(array.dtype) not in "ib"
    return result, sum(lost), zeros, free


def matching(source: Source, form: Form, names: Iterable[str]) -> set[str]:
    return {name for name in names if any(form.of(one) for one in source.names_of(name))}


def expected(  # noqa: PLR0912 (one rule after the other)
    source: Source, outlet: str, recipe: Recipe
) -> Expected:
    """Return what must come of a recipe, from the arrays of the source alone."""
    found, names = Expected(), set(source.arrays)
    writes = not outlet.startswith("load")
    missing, invalid = TensorNotFoundError, InvalidError
    left = set(names)
    for what in ("keep", "drop"):
        sets = [matching(source, form, names) for form in getattr(recipe, what) or []]
        if not all(sets):
            found.refusals.add((missing, what))
        if sets:
            left = left & set.union(*sets) if what == "keep" else left - set.union(*sets)
    if recipe.names is not None:
        left &= {*recipe.names}
        if {*recipe.names} - names:
            found.refusals.add((missing, None))
    if recipe.filter is not None:
        left &= matching(source, recipe.filter, left)
        if not left and recipe.names != []:
            found.refusals.add((missing, "filter"))
    # Names.
    rename = recipe.rename or Form(None, as_pair)
    if isinstance(rename.given, dict) and rename.given.keys() & {"zzz", b"zzz"}:
        found.refusals.add((missing, "rename"))
    rules = {name: rename.of(name) for name in sorted(left)}
    if writes and recipe.rename and left and all(rules[name] == (name, []) for name in left):
        found.refusals.add((missing, "rename"))
    new_names = {old: new for old, (new, _) in rules.items() if new is not None}
    if len({*new_names.values()}) < len(new_names):
        found.refusals.add((invalid, "rename"))
    if writes and not new_names:
        whats = [what for what in ("drop", "keep", "rename") if getattr(recipe, what) is not None]
        found.refusals |= {(invalid, what) for what in whats}
    # Dtypes.
    to = _casts(source, recipe, found, {*new_names}, names if not writes else {*new_names})
    found.casts = {name for name, dtype in to.items() if dtype != source.arrays[name].dtype}
    is_fresh = any(recipe.more.items() >= one.items() for one in FRESH)
    if outlet == "edit" and recipe.cast is not None and not found.casts and not is_fresh:
        found.refusals.add((missing, "cast"))
    keeps_state = source.form == "torch" and "metadata" not in recipe.more
    keeps_state &= outlet in ("edit", "average", "v2+", "ckptfmt", "safetensors", "several")
    for old, new in new_names.items():
        array = found.arrays[new] = source.arrays[old]
        if old in found.casts:
            if array.dtype.kind == "O":
                found.refusals.add((invalid, "cast"))
                continue
            if keeps_state and to[old] == INT4:
                found.refusals.add((invalid, "cast"))
            array, lost, zeros, free = cast(array, to[old])
            found.is_free |= free
            found.losses |= {old: lost} if lost else {}
            found.zeros |= {old: zeros} if zeros else {}
        for transform in rules[old][1]:
            try:
                with np.errstate(all="ignore"):
                    array = np.asarray(transform(array))
            except (TypeError, ValueError):
                found.refusals.add((invalid, "rename"))
        if not holds(outlet, array.dtype):
            found.refusals.add((invalid, None))
        found.arrays[new] = array
    if found.losses and not recipe.allow_loss:
        found.refusals.add((invalid, "allow_loss"))
    found.new_names = new_names
    return found


def _casts(
    source: Source, recipe: Recipe, found: Expected, taken: set[str], scope: set[str]
) -> dict[str, np.dtype[Any]]:
    """Return the dtypes that a cast gives tensors that are taken; `scope` has those that keys of a
    mapping may match."""
    if recipe.cast is None:
        return {}
    if isinstance(recipe.cast, list):
        given = dict[str, Any]()
        for form, dtype in recipe.cast:
            matched = matching(source, form, scope)
            if not matched:
                found.refusals.add((TensorNotFoundError, "cast"))
            elif not matched - given.keys():
                found.refusals.add((InvalidError, "cast"))
            given = dict.fromkeys(matched, dtype) | given
        return {name: one for name, one in given.items() if one is not None and name in taken}
    same = [name for name in taken if kind_of(source.arrays[name].dtype) == kind_of(recipe.cast)]
    meant = [name for name in same if source.arrays[name].ndim]
    found.uncast = [
        name
        for name in sorted(same)
        if name not in meant and source.arrays[name].dtype != recipe.cast
    ]
    if taken and not meant:
        found.refusals.add((InvalidError, "cast"))
    return dict.fromkeys(meant, recipe.cast)
