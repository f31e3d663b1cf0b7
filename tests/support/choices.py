# SPDX-License-Identifier: Apache-2.0
"""Options of loading, drawn, and what they mean: for each call that loads, the same."""

from __future__ import annotations

import fnmatch
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ckptfmt
from ckptfmt import InvalidError, TensorNotFoundError
from ckptfmt.types import MatchReport

STORED: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(3, dtype=np.float64) / 4,
    "c/d": np.arange(4, dtype=np.int32),
    "c/e": np.arange(4, dtype=np.float16) / 8,
    "n[1]": np.arange(2, dtype=np.float32),
    "n1": np.arange(2, dtype=np.float32) / 2,
    "0d": np.array(0.1),
}
FILTERS: dict[str, Callable[[str], object]] = {
    "c/*": lambda name: name.startswith("c/"),
    "/a|b/": lambda name: "a" in name or "b" in name,
    "c/d": lambda name: name == "c/d",
    "0d": lambda name: name == "0d",
    "z*": lambda name: False,
}


def transposed(array: Any) -> Any:
    """Rounded, so that a cast before it and one after it differ."""
    return array.T / array.dtype.type(3) if array.dtype.kind == "f" else array.T


RENAMES: list[tuple[Any, Callable[[str], Any]]] = [
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


@dataclass
class Options:
    """Options of a load, and the targets: name to shape and dtype."""

    names: list[str] | None = None
    filter: Any = None
    rename: Any = None
    rule: Callable[[str], Any] = field(default=lambda name: name)
    cast: Any = None
    strict: bool = True
    targets: dict[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """The options that are not defaults."""
        every = {
            "names": self.names,
            "filter": self.filter,
            "rename": self.rename,
            "cast": self.cast,
            "strict": self.strict,
        }
        defaults = {"strict": True}
        return {name: one for name, one in every.items() if one is not defaults.get(name)}

    def blanks(self) -> dict[str, Any]:
        def blank(shape: tuple[int, ...], dtype: Any) -> Any:
            return np.full(shape, 99, dtype, order="F")

        return {name: blank(*one) for name, one in self.targets.items()}


def grid() -> Iterator[Options]:
    """Filters with every rename and cast, every kind of key in a cast, dtypes that mean nothing,
    and targets that fit, but for one that is missing and one too many where that is allowed."""
    same = (None, lambda name: name)
    every = [
        *itertools.product([None, "c/*", "/a|b/", "z*"], [same, *RENAMES], [None, *CASTS], [True]),
        *itertools.product([None], [same], KEYED, [True, False]),
        *itertools.product([None], RENAMES, [None], [False]),
        *itertools.product(["c/d", "0d"], [same], ["float16"], [True, False]),
    ]
    for filtered, (rename, rule), cast, strict in every:
        found = Options(filter=filtered, rename=rename, rule=rule, cast=cast, strict=strict)
        for old, array in STORED.items():
            new, fits = rule(old), array.astype(cast_to(cast, old, array.dtype))
            if isinstance(new, tuple):
                new, fits = new[0], new[1](fits)
            if new is not None:
                found.targets[new] = fits.shape, fits.dtype
        if not strict:
            found.targets["more"] = found.targets.pop(next(iter(found.targets)))
        yield found


@st.composite
def options(draw: st.DrawFn) -> Options:
    """Options, and targets that mostly fit them."""
    names = st.none() | st.lists(st.sampled_from([*STORED, *STORED, "z"]), unique=True)
    rename, rule = draw(st.sampled_from([(None, lambda name: name), *RENAMES]))
    found = Options(
        names=draw(names),
        filter=draw(st.none() | st.sampled_from(sorted(FILTERS))),
        rename=rename,
        rule=rule,
        cast=draw(st.none() | st.sampled_from([*CASTS, *KEYED])),
        strict=draw(st.booleans()),
    )
    for old, array in STORED.items():
        new = rule(old)
        new, shape = (new[0], array.T.shape) if isinstance(new, tuple) else (new, array.shape)
        kind = draw(st.sampled_from(["fits", "fits", "fits", "fits", "lacks", "dtype", "shape"]))
        if new is None or kind == "lacks":
            continue
        dtype = cast_to(found.cast, old, array.dtype)
        if kind == "dtype":
            dtype = np.dtype(np.int64)
        found.targets[new] = ((7,) if kind == "shape" else shape, dtype)
    if draw(st.integers(0, 7)) == 0:
        found.targets["more"] = (1,), np.dtype(np.float32)
    return found


def is_match(key: Any, name: str) -> bool:
    """Return whether a key of a cast matches a name: as one, or as a pattern if none has it."""
    if key in STORED:
        return bool(key == name)
    if isinstance(key, str) and not key.startswith("/"):
        return fnmatch.fnmatchcase(name, key)
    return re.search(key.strip("/") if isinstance(key, str) else key, name) is not None


def keys_of(cast: Any) -> dict[Any, tuple[list[str], list[str]]]:
    """Return the names that each key of a mapping matches, and those that no earlier one does."""
    found: dict[Any, tuple[list[str], list[str]]] = {}
    taken = set[str]()
    for key in cast if isinstance(cast, dict) else ():
        matched = [name for name in STORED if is_match(key, name)]
        found[key] = matched, [name for name in matched if name not in taken]
        taken.update(matched)
    return found


def cast_to(cast: Any, name: str, dtype: Any) -> Any:
    if isinstance(cast, dict):
        to = next((cast[key] for key, (_, own) in keys_of(cast).items() if name in own), None)
        return np.dtype(dtype if to is None else to)
    is_meant = cast not in (None, True) and dtype.kind == "f" and STORED[name].ndim
    return np.dtype(cast) if is_meant else dtype


def not_meant(cast: Any, arrays: list[Any]) -> bool:
    """Return whether `cast` is a dtype of floating-point numbers, and only others are there."""
    is_dtype = cast not in (None, True) and not isinstance(cast, dict)
    return is_dtype and bool(arrays) and all(a.dtype.kind != "f" or not a.ndim for a in arrays)


def is_changed(array: Any, dtype: Any) -> bool:
    """Return whether fractions become integers."""
    return dtype.kind == "i" and array.dtype.kind == "f" and bool((array % 1).any())


# What a report has names in.
TOLD = ("matched", "shape_mismatch", "dtype_mismatch", "missing", "unexpected", "filtered")


def meant(  # noqa: PLR0912 (one rule after the other)
    given: Options, *, with_targets: bool
) -> tuple[set[type], dict[str, Any], dict[str, set[str]]]:
    """What a load must do: the errors of which it raises one, if there are any; what it loads, or
    what the targets hold; and the names in its report."""
    errors: set[type] = set()
    if given.cast is True and not with_targets:
        errors.add(InvalidError)
    if any(name not in STORED for name in given.names or ()):
        errors.add(TensorNotFoundError)
    for matched, own in keys_of(given.cast).values():
        if not matched and given.strict:
            errors.add(TensorNotFoundError)
        if matched and not own:
            errors.add(InvalidError)
    passes = FILTERS.get(given.filter, lambda _: True)
    chosen = [name for name in STORED if given.names is None or name in given.names]
    kept = [name for name in chosen if passes(name)]
    if given.filter is not None and not kept and (given.names is None or given.names):
        errors.add(TensorNotFoundError)
    loaded: dict[str, Any] = {}
    told: dict[str, set[str]] = {name: set() for name in TOLD}
    found: list[str] = []
    present = set()
    for old, stored in STORED.items():
        new = given.rule(old)
        transform = new[1] if isinstance(new, tuple) else (lambda array: array)
        new = new[0] if isinstance(new, tuple) else new
        if new is None:
            continue
        present.add(new)
        if old not in kept:
            continue
        if new in loaded:
            errors.add(InvalidError)
        if not with_targets or new in given.targets:
            found.append(old)
        loaded[new] = transform(stored.astype(cast_to(given.cast, old, stored.dtype)))
        if new not in given.targets:
            told["unexpected"].add(old)
    if not_meant(given.cast, [STORED[name] for name in found]):
        errors.add(InvalidError)
    if not with_targets:
        return errors, loaded, told
    held = given.blanks()
    told["missing"] = {*held} - present
    told["filtered"] = {*held} & present - {*loaded}
    for name in [name for name in loaded if name in held]:
        array, target = loaded[name], held[name]
        wrong = [target.shape != array.shape]
        wrong += [target.dtype != array.dtype and given.cast is not True]
        for key in itertools.compress(TOLD, [not any(wrong), *wrong]):
            told[key].add(name)
        if not any(wrong):
            if is_changed(array, target.dtype):
                errors.add(InvalidError)
            held[name] = array.astype(target.dtype)
    is_other = any(told[key] for key in ("unexpected", *TOLD[1:3]))
    if given.strict and (told["missing"] or is_other):
        errors.add(InvalidError if is_other else TensorNotFoundError)
    return errors, held, told


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of the paths."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = value
    return tree


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """The leaves by their paths."""
    if not isinstance(tree, dict):
        return {path: tree}
    found = {}
    for key, value in tree.items():
        found |= flat(value, f"{path}/{key}" if path else key)
    return found


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


def unused_of(given: Options) -> list[str]:
    """Return the keys that match nothing."""
    unused = [str(key) for key, (matched, _) in keys_of(given.cast).items() if not matched]
    if isinstance(given.rename, dict):
        unused += [key for key in given.rename if key not in STORED]
    return unused


def check_names(told: Mapping[str, set[str]], report: MatchReport) -> None:
    """Compare the names in a report."""
    for key, names in told.items():
        found = [getattr(one, "name", one) for one in getattr(report, key)]
        assert sorted(found) == sorted(names), (key, report)


def check_report(given: Options, report: MatchReport) -> None:
    """Compare what a report says of the keys that match nothing, and of what a dtype leaves."""
    assert [*report.unused] == unused_of(given) and (report.complete or not given.strict)
    is_dtype = given.cast not in (None, True) and not isinstance(given.cast, dict)
    loaded = is_dtype and "0d" in report.matched
    assert [*report.uncast] == ["0d"] * (loaded and np.dtype(given.cast) != np.float64)
    assert report.losses == report.zeros == {}


def check(call: Call, given: Options, prefixes: Mapping[bool, Path]) -> str:
    """Load by one call, and compare with what the options mean. Return what came of it."""
    if "strict" in call.lacks:
        given.strict = True
    if "rename" in call.lacks:
        given.rename, given.rule = None, lambda name: name
    word = ""
    for graph in call.graph:
        errors, wanted, told = meant(given, with_targets=call.with_targets)
        targets = given.blanks()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", ckptfmt.CkptfmtWarning)
                found, report = call.load(prefixes[graph], targets, given.given())
        except (InvalidError, TensorNotFoundError) as error:
            assert type(error) in errors, (error, errors)
            if error.report is not None:
                check_names(told, error.report)
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
        assert len(warned) == (report is None and bool(unused_of(given)))
        if report is not None:
            check_report(given, report)
            check_names(told, report)
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
