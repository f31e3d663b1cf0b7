# SPDX-License-Identifier: Apache-2.0
"""Options of loading, drawn, and what they mean: for each call that loads, the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import ckptfmt
from ckptfmt import InvalidError, TensorNotFoundError

STORED: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(3, dtype=np.float64) / 4,
    "c/d": np.arange(4, dtype=np.int32),
    "c/e": np.arange(4, dtype=np.float16) / 8,
}
FILTERS: dict[str, Callable[[str], object]] = {
    "c/*": lambda name: name.startswith("c/"),
    "/a|b/": lambda name: "a" in name or "b" in name,
    "z*": lambda name: False,
}


def transposed(array: Any) -> Any:
    """Rounded, so that a cast before it and one after it differ."""
    return array.T / array.dtype.type(3) if array.dtype.kind == "f" else array.T


RENAMES: list[tuple[Any, Callable[[str], Any]]] = [
    ({"a": "x", "c/d": "c/new"}, lambda name: {"a": "x", "c/d": "c/new"}.get(name, name)),
    ({"a": "b"}, lambda name: {"a": "b"}.get(name, name)),
    ({"a": ("a", transposed)}, lambda name: ("a", transposed) if name == "a" else name),
    (("^a$", "a", transposed), lambda name: ("a", transposed) if name == "a" else name),
    (("^c/", "k/"), lambda name: name.replace("c/", "k/")),
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
        return {name: np.full(shape, 99, dtype) for name, (shape, dtype) in self.targets.items()}


def grid() -> Iterator[Options]:
    """Every filter with every rename and cast, and targets that fit."""
    renames = [(None, lambda name: name), *RENAMES]
    for filtered, (rename, rule), cast in itertools.product(
        [None, *FILTERS], renames, [None, *CASTS]
    ):
        found = Options(filter=filtered, rename=rename, rule=rule, cast=cast)
        for old, array in STORED.items():
            new, fits = rule(old), array.astype(cast_to(cast, old, array.dtype))
            if isinstance(new, tuple):
                new, fits = new[0], new[1](fits)
            if new is not None:
                found.targets[new] = fits.shape, fits.dtype
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
        cast=draw(st.none() | st.sampled_from(CASTS)),
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


def cast_to(cast: Any, name: str, dtype: Any) -> Any:
    if isinstance(cast, dict):
        return np.dtype(cast.get(name, dtype))
    return np.dtype(cast) if cast not in (None, True) and dtype.kind == "f" else dtype


def not_meant(cast: Any, arrays: list[Any]) -> bool:
    """Return whether `cast` is a dtype of floating-point numbers, and only others are there."""
    is_dtype = cast not in (None, True) and not isinstance(cast, dict)
    return is_dtype and bool(arrays) and all(array.dtype.kind != "f" for array in arrays)


def is_changed(array: Any, dtype: Any) -> bool:
    """Return whether fractions become integers."""
    return dtype.kind == "i" and array.dtype.kind == "f" and bool((array % 1).any())


def meant(  # noqa: PLR0912 (one rule after the other)
    given: Options, *, with_targets: bool
) -> tuple[set[type], dict[str, Any]]:
    """What a load must do: the errors of which it raises one, if there are any; what it loads, or
    what the targets hold."""
    errors: set[type] = set()
    if given.cast is True and not with_targets:
        errors.add(InvalidError)
    if any(name not in STORED for name in given.names or ()):
        errors.add(TensorNotFoundError)
    if isinstance(given.cast, dict) and "z" in given.cast and given.strict:
        errors.add(InvalidError)
    passes = FILTERS.get(given.filter, lambda _: True)
    chosen = [name for name in STORED if given.names is None or name in given.names]
    kept = [name for name in chosen if passes(name)]
    if given.filter is not None and not kept and (given.names is None or given.names):
        errors.add(TensorNotFoundError)
    loaded: dict[str, Any] = {}
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
    if not_meant(given.cast, [STORED[name] for name in found]):
        errors.add(InvalidError)
    if not with_targets:
        return errors, loaded
    held = given.blanks()
    is_missing = any(name not in present for name in held)
    is_other = False
    for name, array in loaded.items():
        target = held.get(name)
        if target is None or target.shape != array.shape:
            is_other = True
        elif target.dtype == array.dtype or given.cast is True:
            if is_changed(array, target.dtype):
                errors.add(InvalidError)
            held[name] = array.astype(target.dtype)
        else:
            is_other = True
    if given.strict and (is_missing or is_other):
        errors.add(InvalidError if is_other else TensorNotFoundError)
    return errors, held


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


@dataclass(frozen=True)
class Call:
    """A call that loads.

    Attributes:
        load: returns name to array: what it loaded, or what the targets hold.
        graph: whether it is for a checkpoint with an object graph, without one, or both.
        in_place: whether it reads into the targets, so that they are unspecified after a loss.
    """

    load: Callable[[Path, dict[str, Any], dict[str, Any]], dict[str, Any]]
    with_targets: bool = True
    graph: tuple[bool, ...] = (False,)
    lacks: tuple[str, ...] = ()
    in_place: bool = False


def _load(path: Path, _targets: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return ckptfmt.load(path, **given)


def _load_into(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    ckptfmt.load_into(path, targets, **given)
    return targets


def _load_tree(path: Path, _targets: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return flat(ckptfmt.load_tree(path, **given))


def _load_tree_into(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    tree = nested(targets)
    ckptfmt.load_tree_into(path, tree, **given)
    return flat(tree)


def _checkpoint(path: Path, targets: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    tree = nested(targets)
    ckptfmt.Checkpoint(tree).read(path, **({"strict": True} | given), partial=True)
    return flat(tree)


CALLS = {
    "load": Call(_load, with_targets=False, lacks=("strict",)),
    "load_into": Call(_load_into, in_place=True),
    "load_tree": Call(_load_tree, with_targets=False),
    "load_tree of a graph": Call(_load_tree, with_targets=False, graph=(True,), lacks=("rename",)),
    "load_tree_into": Call(_load_tree_into, graph=(False, True), in_place=True),
    "Checkpoint.read": Call(_checkpoint, graph=(False, True)),
}


def check(call: Call, given: Options, prefixes: Mapping[bool, Path]) -> str:
    """Load by one call, and compare with what the options mean. Return what came of it."""
    if "strict" in call.lacks:
        given.strict = True
    if "rename" in call.lacks:
        given.rename, given.rule = None, lambda name: name
    word = ""
    for graph in call.graph:
        errors, wanted = meant(given, with_targets=call.with_targets)
        targets = given.blanks()
        try:
            found = call.load(prefixes[graph], targets, given.given())
        except (InvalidError, TensorNotFoundError) as error:
            assert type(error) in errors, (error, errors)
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
        word = "loaded"
    return word
