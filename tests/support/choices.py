# SPDX-License-Identifier: Apache-2.0
"""Options of loading, drawn, and what they mean: for each call that loads, the same."""

from __future__ import annotations

import fnmatch
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import InvalidError, TensorNotFoundError
from ckptfmt.types import MatchReport

from .recipes import Expected, Form, Recipe, Source, as_pair, expected
from .trees import flat, nested

STORED: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(3, dtype=np.float64) / 4,
    "c/d": np.arange(4, dtype=np.int32),
    "c/e": np.arange(4, dtype=np.float16) / 8,
    "n[1]": np.arange(2, dtype=np.float32),
    "n1": np.arange(2, dtype=np.float32) / 2,
    "0d": np.array(0.1),
}
SOURCE = Source("v2", Path(), STORED, {})
FILTERS = ["0d", "c/*", "/a|b/", "c/d", "z*"]


def transposed(array: Any) -> Any:
    """Rounded, so that a cast before it and one after it differ."""
    return array.T / array.dtype.type(3) if array.dtype.kind == "f" else array.T


RENAMES = [
    Form(given, lambda name, rule=rule: as_pair(rule(name)))
    for given, rule in [
        ({"a": "x", "c/d": "c/new"}, lambda name: {"a": "x", "c/d": "c/new"}.get(name, name)),
        ({"a": "b"}, lambda name: {"a": "b"}.get(name, name)),
        ({"a": ("a", transposed)}, lambda name: ("a", transposed) if name == "a" else name),
        ([("^a$", "a", transposed)], lambda name: ("a", transposed) if name == "a" else name),
        ([("^c/", "k/")], lambda name: name.replace("c/", "k/")),
        (
            [("^c/", "k/"), ("^b$", None)],
            lambda name: None if name == "b" else name.replace("c/", "k/"),
        ),
        (lambda name: None if name == "a" else name, lambda name: None if name == "a" else name),
    ]
]
CASTS: list[Any] = [
    True,
    np.float64,
    "float16",
    {"a": "float16"},
    {"a": "int32", "c/d": np.float32},
    {"a": "float32", "z": "float32"},
]
# Mappings whose keys are patterns, or names that are patterns as well.
KEYED: list[Any] = [
    {"c/*": "float32", "b": np.float32},
    {"/^[ab]$/": "float64"},
    {re.compile("^c.*d$"): "int64", "b": None},
    {"c/d": "int64", "c/*": "float32"},
    {"c/*": "float32", "c/d": "int64"},
    {"c/d": None, "0d": None, "*": "float64"},
    {"n[1]": "float64"},
    {"n[1]": "float64", "n[12]": "float16", "n?": "float16"},
    {"n[12]": "float64"},
    {"z*": "float32", "n1": "float16"},
    {"0*": "float16"},
]


def form_of(given: Any) -> Form:
    """A filter, or a key of a cast: a name, or a pattern if none has it."""
    if given in STORED:
        return Form(given, lambda name: name == given)
    if isinstance(given, str) and not given.startswith("/"):
        return Form(given, lambda name: fnmatch.fnmatchcase(name, given))
    pattern = given.strip("/") if isinstance(given, str) else given
    return Form(given, lambda name: re.search(pattern, name) is not None)


@dataclass
class Options:
    """Options of a load, and the targets: name to shape and dtype."""

    names: list[str] | None = None
    filter: Any = None
    rename: Form | None = None
    cast: Any = None
    strict: bool = True
    targets: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)

    @property
    def is_dtype(self) -> bool:
        return not (self.cast in (None, True) or isinstance(self.cast, dict))

    def given(self) -> dict[str, Any]:
        """The options that are not defaults."""
        rename = self.rename and self.rename.given
        every = {"names": self.names, "filter": self.filter, "rename": rename, "cast": self.cast}
        every["strict"] = None if self.strict else False
        return {name: one for name, one in every.items() if one is not None}

    def expected(self, *, chooses: bool = True) -> Expected:
        """What a load of all must give; without `chooses`, of the tensors that are left out too."""
        recipe = Recipe(rename=self.rename)
        if chooses:
            recipe.names = self.names
            recipe.filter = None if self.filter is None else form_of(self.filter)
        if isinstance(self.cast, dict):
            recipe.cast = [(form_of(key), to and np.dtype(to)) for key, to in self.cast.items()]
        elif self.is_dtype:
            recipe.cast = np.dtype(self.cast)
        return expected(SOURCE, "load", recipe)

    def blanks(self) -> dict[str, Any]:
        def blank(shape: tuple[int, ...], dtype: Any) -> Any:
            return np.full(shape, 99, dtype, order="F")

        return {name: blank(*one) for name, one in self.targets.items()}


def grid() -> Iterator[Options]:
    """Filters with every rename and cast, every kind of key in a cast, dtypes that mean nothing,
    and targets that fit, but for one that is missing and one too many where that is allowed."""
    every = [
        *itertools.product([None, "c/*", "/a|b/", "z*"], [None, *RENAMES], [None, *CASTS], [True]),
        *itertools.product([None], [None], KEYED, [True, False]),
        *itertools.product([None], RENAMES, [None], [False]),
        *itertools.product(["c/d", "0d"], [None], ["float16"], [True, False]),
    ]
    for filtered, rename, cast, strict in every:
        found = Options(filter=filtered, rename=rename, cast=cast, strict=strict)
        for name, fits in found.expected(chooses=False).arrays.items():
            found.targets[name] = fits.shape, fits.dtype
        if not strict:
            renamed = min(found.targets, key=STORED.__contains__)
            found.targets["more"] = found.targets.pop(renamed)
        yield found


def drawn_options(chance: random.Random) -> Options:
    """Options, and targets that mostly fit them."""
    found = Options(
        filter=chance.choice([None, None, *FILTERS]),
        rename=chance.choice([None] * 3 + RENAMES),
        cast=chance.choice([None] * 9 + [True] * 3 + [*CASTS, *KEYED]),
        strict=chance.random() < 0.5,
    )
    if chance.random() < 0.3:
        found.names = chance.sample([*STORED], chance.randint(0, len(STORED)))
        found.names += ["z"] * (chance.random() < 0.2)
    for name, fits in found.expected(chooses=False).arrays.items():
        kind = chance.choice(["fits"] * 15 + ["lacks", "dtype", "dtype", "dtype", "shape"])
        if kind != "lacks":
            dtype = np.dtype(chance.choice(["i8", "f8", "f4"])) if kind == "dtype" else fits.dtype
            found.targets[name] = ((7,) if kind == "shape" else fits.shape, dtype)
    if chance.random() < 0.1:
        found.targets["more"] = (1,), np.dtype(np.float32)
    return found


# What a report has names in.
TOLD = ("matched", "shape_mismatch", "dtype_mismatch", "missing", "unexpected", "filtered")


def meant(
    given: Options, *, with_targets: bool
) -> tuple[set[type], dict[str, Any], dict[str, set[str]]]:
    """What a load must do: the errors of which it raises one, if there are any; what it loads, or
    what the targets hold; and the names in its report."""
    right = given.expected()
    refused, loaded = right.refusals, right.arrays
    told: dict[str, set[str]] = {name: set() for name in (*TOLD, "uncast", "unused")}
    keys = given.cast if isinstance(given.cast, dict) else ()
    told["unused"] = {str(key) for key in keys if not any(map(form_of(key).of, STORED))}
    if given.cast is True and not with_targets:
        refused.add((InvalidError, "cast"))
    if not given.strict:
        refused.discard((TensorNotFoundError, "cast"))
    if not with_targets:
        return {kind for kind, _ in refused}, loaded, told
    held, new_names = given.blanks(), right.new_names
    present = {given.rename.of(name)[0] if given.rename else name for name in STORED}
    told["missing"] = {*held} - present
    told["filtered"] = {*held} & present - {*loaded}
    told["unexpected"] = {old for old, new in new_names.items() if new not in held}
    if given.is_dtype:  # of the tensors that have a target
        refused.discard((InvalidError, "cast"))
        found = [STORED[name] for name in new_names.keys() - told["unexpected"]]
        if found and all(array.dtype.kind != "f" or not array.ndim for array in found):
            refused.add((InvalidError, "cast"))
    for name in loaded.keys() & held.keys():
        array, target = loaded[name], held[name]
        wrong = [target.shape != array.shape]
        wrong += [target.dtype != array.dtype and given.cast is not True]
        for key in itertools.compress(TOLD, [not any(wrong), *wrong]):
            told[key].add(name)
        if not any(wrong):
            if target.dtype.kind == "i" and (array % 1).any():
                refused.add((InvalidError, "allow_loss"))
            held[name] = array.astype(target.dtype)
    told["uncast"] = {*right.uncast} & told["matched"]
    is_other = any(told[key] for key in ("unexpected", *TOLD[1:3]))
    if given.strict and (told["missing"] or is_other):
        refused.add((InvalidError if is_other else TensorNotFoundError, None))
    return {kind for kind, _ in refused}, held, told


Loaded = tuple[dict[str, Any], MatchReport | None]


@dataclass(frozen=True)
class Call:
    """A call that loads.

    Attributes:
        load: returns name to array, what it loaded or what the targets hold; and the report.
        graph: whether it is for a checkpoint with an object graph, without one, or both.
        in_place: whether it reads into the targets, so that they are unspecified after a loss.
    """

    load: Callable[[Path, dict[str, Any], dict[str, Any]], Loaded]
    with_targets: bool = True
    graph: tuple[bool, ...] = (False,)
    lacks: tuple[str, ...] = ()
    in_place: bool = False


def _load(path: Path, _targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    return ckptfmt.load(path, **given), None


def _load_into(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    return targets, ckptfmt.load_into(path, targets, **given)


def _load_tree(path: Path, _targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    return flat(ckptfmt.load_tree(path, **given)), None


def _load_tree_into(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    tree = nested(targets)
    report = ckptfmt.load_tree_into(path, tree, **given)
    return flat(tree), report


def _checkpoint(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> Loaded:
    tree = nested(targets)
    status = ckptfmt.Checkpoint(tree).read(path, **({"strict": True} | given), partial=True)
    return flat(tree), status.report


CALLS = {
    "load": Call(_load, with_targets=False, lacks=("strict",)),
    "load_into": Call(_load_into, in_place=True),
    "load_tree": Call(_load_tree, with_targets=False),
    "load_tree of a graph": Call(_load_tree, with_targets=False, graph=(True,), lacks=("rename",)),
    "load_tree_into": Call(_load_tree_into, graph=(False, True), in_place=True),
    "Checkpoint.read": Call(_checkpoint, graph=(False, True)),
}


def check_names(told: Mapping[str, set[str]], report: MatchReport, names: Iterable[str]) -> None:
    """Compare the names in a report. What has another shape may be of another dtype as well, and
    what does not fit may be left by a cast."""
    may_be = {"dtype_mismatch": told["shape_mismatch"]}
    may_be["uncast"] = told["shape_mismatch"] | told["dtype_mismatch"]
    for key in names:
        either = may_be.get(key, set())
        found = [str(getattr(one, "name", one)) for one in getattr(report, key)]
        assert sorted({*found} - either) == sorted(told[key] - either), (key, report)
        assert len({*found}) == len(found)


def check(call: Call, given: Options, prefixes: Mapping[bool, Path]) -> str:
    """Load by one call, and compare with what the options mean. Return what came of it."""
    if "strict" in call.lacks:
        given.strict = True
    if "rename" in call.lacks:
        given.rename = None
    word = ""
    for graph in call.graph:
        errors, wanted, told = meant(given, with_targets=call.with_targets)
        targets = given.blanks()
        if call.with_targets and given.is_dtype and not (given.strict or told["matched"]):
            continue  # calls differ in whether a dtype means something if no target fits
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", ckptfmt.CkptfmtWarning)
                found, report = call.load(prefixes[graph], targets, given.given())
        except (InvalidError, TensorNotFoundError) as error:
            assert type(error) in errors, (error, errors)
            if error.report is not None:
                check_names(told, error.report, TOLD)
                assert isinstance(error, InvalidError) or error.tensor in told["missing"]
            word = "refused"
            if not (call.in_place and error.argument == "allow_loss"):
                kept = all((array == 99).all() for array in targets.values())
                assert kept, "nothing is written"
            continue
        assert not errors, (errors, found)
        assert {*found} == {*wanted}
        for name, array in found.items():
            assert np.asarray(array).dtype == wanted[name].dtype, name
            np.testing.assert_array_equal(np.asarray(array), wanted[name])
        assert len(warned) == (report is None and bool(told["unused"]))
        if report is not None:
            check_names(told, report, told)
            assert (report.complete or not given.strict) and report.losses == report.zeros == {}
        word = "loaded"
    return word


LOSSY = {"w": np.array([1.0, 1e30, 1e-9, 0]), "s": np.array(1e30)}


def check_losses(call: Call, path: Path) -> None:
    """Cast what float16 does not hold: refused, or allowed and in the result; a warning only where
    there is none."""
    for cast in ("float16", {"w*": "float16"}):
        targets = {"w": np.zeros(4, "f2"), "s": np.zeros(())}
        with pytest.raises(InvalidError, match=r"changes 1 element .* 1e\+30, at \[1\]") as caught:
            call.load(path, targets, {"cast": cast})
        assert caught.value.argument == "allow_loss"
        assert call.in_place or not any(array.any() for array in targets.values())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ckptfmt.CkptfmtWarning)
            found, report = call.load(path, targets, {"cast": cast, "allow_loss": True})
        assert found["w"].tolist() == [1, np.inf, 0, 0] and found["s"] == 1e30
        assert len(warned) == (report is None)
        if report is not None:
            left = ("s",) * (cast == "float16")
            assert (report.losses, report.zeros, report.uncast) == ({"w": 1}, {"w": 1}, left)
