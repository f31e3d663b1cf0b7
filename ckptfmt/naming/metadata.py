# SPDX-License-Identifier: Apache-2.0
"""Metadata that name tensors, of a checkpoint whose tensors are renamed, dropped or cast.

`ckptfmt.torch` stores a tree whose leaves name tensors (see ckptfmt.torch.structure, which needs
torch; nothing here does), `ckptfmt.jax` and `ckptfmt.convert` the paths of optimizer states, and
`ckptfmt.jax` the implementations of PRNG keys by name. The metadata are not trusted.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ckptfmt._base.casting import dtype_text
from ckptfmt.errors import InvalidError
from ckptfmt.naming.roles import OPTIMIZER_STATES, below_paths

# Members of the metadata: of ckptfmt.torch with the version that is known, and of ckptfmt.jax.
TORCH, VERSION, PRNG_KEYS = "ckptfmt.torch", 1, "jax_prng_impls"

# Beside the state of ckptfmt.torch: by path of an optimizer, the names of its parameters.
PARAMETERS = "parameters"

# Dtypes that torch reads; numpy's own are those that its arrays can have.
_OF_TORCH = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
}
_LEAVES = {"$tensor", "$array", "$scalar"}
# Tensors that belong to the quantizer of another.
_PARTS = ("scales", "zero_points")
_DICTS = {"$dict", "$ordered_dict", "$counter", "$defaultdict", "$state_dict"}
_LISTS, _SETS = {"$tuple", "$size", "$deque"}, {"$set", "$frozenset"}
_VALUES = {"$float", "$complex", "$bytes", "$bytesio", "$dtype", "$device", "$path"}
_OPTIMIZER = {"state", "param_groups"}

_GONE = object()  # in place of what is removed
_Path = str | None  # the keys joined by dots; None is the root


def _renamed(named: dict[str, Any], new_names: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the names of the parameters of optimizers after tensors were renamed; none for
    optimizers whose own tensors were, which are then loaded by position."""
    moved = [old for old, new in new_names.items() if new is not None and new != old]
    return {
        path: [
            [[new_names.get(name) or name for name in names] for names in group] for group in groups
        ]
        for path, groups in named.items()
        if not any(old.startswith(f"{path}.") for old in moved)
    }


class NamedInMetadata:
    """What the metadata of a checkpoint say of its tensors by name.

    Args:
        names: of its tensors.
        stored: its metadata; {} if no tensor changes.
        path: of the checkpoint, for errors.
        given: metadata that replace the stored ones, None for none. Members that are as stored are
            edited as well; the caller answers for others.
        way_out: what removes the metadata, for errors; default an option of `edit`.

    Raises:
        InvalidError: the tree of `ckptfmt.torch` cannot be read.
    """

    def __init__(
        self,
        names: Iterable[str],
        stored: Mapping[str, Any],
        path: str,
        given: Mapping[str, Any] | None = None,
        *,
        way_out: str = "",
    ) -> None:
        self._way_out = way_out
        self._prefix = path
        self._all = dict(stored if given is None else given)
        # Members that describe the stored tensors.
        self._own = {name: one for name, one in self._all.items() if stored.get(name) == one}
        self._names = list(names)
        self._whole: dict[str, Any] = {}
        self._leaves: list[tuple[str, str, bool]] = []
        if TORCH in self._own:
            self._reading(self._read)
        self._fixed = {name for name, _, is_fixed in self._leaves if is_fixed}
        self._arrays = {name for name, tag, _ in self._leaves if tag != "$tensor"}
        self._tensors = {name for name, *_ in self._leaves}

    def _reading(self, function: Callable[[], Any]) -> Any:
        """Call a function that reads the tree; refuse one that is damaged."""
        try:
            return function()
        except InvalidError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidError(
                f"the metadata {TORCH!r} describe the state by the names of its tensors, and "
                f"cannot be edited with them: {str(error) or type(error).__name__:.200}. "
                f"{self._remedy(TORCH)} removes them: ckptfmt.torch.load then "
                "returns the tensors by their names",
                path=self._prefix,
            ) from None

    def _remedy(self, member: str) -> str:
        return self._way_out or f"metadata={{}} (--set-metadata {member}=)"

    def _read(self) -> None:
        whole = json.loads(self._own[TORCH])
        if whole["version"] != VERSION:
            raise ValueError(f"their version is {whole['version']!r}, not {VERSION}")
        tree = _Tree({}, cut=False)
        tree.edit(whole["state"])
        self._whole, self._leaves = whole, tree.leaves

    @property
    def missing(self) -> list[str]:
        """Names in the tree of `ckptfmt.torch` that no stored tensor has."""
        present = set(self._names) if self._leaves else set()
        return list(dict.fromkeys(name for name, *_ in self._leaves if name not in present))

    def stays_as_it_is(self, name: str) -> bool:
        """Return whether a cast of all floating-point tensors leaves out this one."""
        return name in self._fixed or name in self._arrays

    def why_not_cast(self, name: str, to: np.dtype[Any]) -> str | None:
        """Return why a tensor cannot have a dtype; None if it can."""
        if name in self._fixed:
            return "the metadata say which tensor of another dtype its bits are"
        if name in self._arrays and to.isbuiltin != 1:
            return f"it is an array of NumPy, which has no {dtype_text(to)}"
        if name in self._tensors and dtype_text(to) not in _OF_TORCH:
            return f"torch has no {dtype_text(to)}"
        return None

    def edited(self, new_names: Mapping[str, str | None], *, cut: bool) -> dict[str, Any] | None:
        """Return the metadata after tensors were renamed and dropped; None if nothing changes.

        In a state of `ckptfmt.torch`, a dropped tensor is removed from its dict or set, and is None
        in a list that has other elements. The key of a renamed tensor changes with its name if the
        new name is at the same place but for the key; else the tensor keeps its place.

        Args:
            new_names: new name of every stored tensor, and of missing ones that are dropped; None
                for those that are dropped.
            cut: whether to remove "state" and "param_groups" of every optimizer of which no tensor
                stays.

        Raises:
            InvalidError: a quantized tensor would stay without its scales; no paths have the
                renamed state of optimizers, and only that, below them.
        """
        changed = dict(self._all)
        if self._whole:
            outside = {name for name, *_ in self._outside()} if cut else set()
            tree = _Tree(new_names, cut=cut, outside=outside)
            state = self._reading(lambda: tree.edit(self._whole["state"]))
            if state != self._whole["state"]:
                whole = {**self._whole, "state": state}
                if isinstance(named := whole.get(PARAMETERS), dict):
                    whole[PARAMETERS] = _renamed(named, new_names)
                changed[TORCH] = json.dumps(whole, separators=(",", ":"))
        paths = self._own.get(OPTIMIZER_STATES)
        if isinstance(paths, list):
            found = self._paths(paths, new_names)
            changed[OPTIMIZER_STATES] = found
            if not found and paths:
                del changed[OPTIMIZER_STATES]
        keys = self._own.get(PRNG_KEYS)
        if isinstance(keys, list) and all(map(_is_pair, keys)):
            pairs = [[new_names.get(name, name), impl] for name, impl in keys]
            changed[PRNG_KEYS] = [pair for pair in pairs if pair[0] is not None]
            if keys and not changed[PRNG_KEYS]:
                del changed[PRNG_KEYS]
        return changed if changed != self._all else None

    def _outside(self) -> list[tuple[str, str, bool]]:
        """Return the leaves that are not in an optimizer."""
        tree = _Tree({}, cut=False, skip_optimizers=True)
        self._reading(lambda: tree.edit(self._whole["state"]))
        return tree.leaves

    def _paths(self, paths: list[Any], new_names: Mapping[str, str | None]) -> list[Any]:
        """Return paths that have the new names of the state of optimizers below them, and no other
        names."""
        state = below_paths(self._names, paths)
        after = {name: new_names.get(name, name) for name in self._names}
        wanted = {new for name in state if (new := after[name]) is not None}
        rest = [new for new in after.values() if new is not None]
        found: list[Any] = []
        before = list(dict.fromkeys(one for one in paths if isinstance(one, str)))
        for path in before:
            below = below_paths(state, [path])
            stays = {name: new for name in below if (new := after[name]) is not None}
            if stays or not below:
                found += _new_paths(path, stays)
        if below_paths(rest, found) == wanted:
            return found if set(found) != set(before) else paths
        found = sorted({name.rpartition("/")[0] for name in wanted})
        if below_paths(rest, found) != wanted:
            raise InvalidError(
                f"the metadata {OPTIMIZER_STATES!r} list paths that only the state of optimizers "
                "is below: no paths do so with the new names. Rename the state of each optimizer "
                f"below a path of its own; {self._remedy(OPTIMIZER_STATES)} "
                "removes the list: it is then unknown which tensors are state",
                path=self._prefix,
            )
        return found


def moved_modules(new_names: Mapping[str, str]) -> dict[str, str]:
    """Return the new names of modules by the old ones, of those with all values of which, at any
    depth, moved in the same way, and to where no value of another module stays.

    Args:
        new_names: new name of every value that stays, by its old name.
    """
    ways: dict[str, set[str | None]] = {}
    for old, new in new_names.items():
        before, after = old.split(".")[:-1], new.split(".")[:-1]
        is_same = True  # below the module
        while True:
            ways.setdefault(".".join(before), set()).add(".".join(after) if is_same else None)
            if not before:
                break
            is_same = is_same and before[-1:] == after[-1:]
            before, after = before[:-1], after[:-1]
    stay = {name for name, several in ways.items() if name in several}
    only = {name: next(iter(several)) for name, several in ways.items() if len(several) == 1}
    return {name: new for name, new in only.items() if new is not None and new not in stay}


def moved_versions(versions: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the versions of the modules of a torch state, by name, after values were renamed."""
    moved = moved_modules(new_names).items()
    return {**versions, **{new: versions[old] for old, new in moved if old in versions}}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _new_paths(path: str, stays: Mapping[str, str]) -> Iterable[str]:
    """Return the paths of what was below one path."""
    start = f"{path}/" if path else ""
    if all(new.startswith(start) for new in stays.values()):
        return [path]
    found = set()
    for name, new in stays.items():
        rest = f"/{name.removeprefix(start)}"
        found.add(new.removesuffix(rest) if new.endswith(rest) else new.rpartition("/")[0])
    return sorted(found)


class _Tree:
    """An edit of the tree of `ckptfmt.torch`.

    Attributes:
        leaves: of the tree before: stored name, tag, and whether another dtype would be another
            value.
    """

    def __init__(
        self,
        new_names: Mapping[str, str | None],
        *,
        cut: bool,
        outside: Iterable[str] = (),
        skip_optimizers: bool = False,
    ) -> None:
        self.leaves: list[tuple[str, str, bool]] = []
        self._new_names = new_names
        self._cut = cut
        self._outside = outside
        self._skip = skip_optimizers
        self._stays = 0  # leaves that stay and that only optimizers have

    def edit(self, state: Any) -> Any:
        """Return the tree after the edit."""
        found = self._node(state, None, None)
        return {} if found is _GONE else found

    def _node(self, value: Any, path: _Path, new_path: _Path) -> Any:
        """Return a node after the edit.

        Args:
            value: the node.
            path: where it is.
            new_path: where it is after the edit.
        """
        if isinstance(value, list):
            return self._list(value, path, new_path)
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not tag.startswith("$"):
            return self._plain_dict(value, path, new_path)
        content = value[tag]
        if tag in _LEAVES:
            return self._leaf(tag, value, path, new_path)
        if tag in _DICTS:
            found = {**value, tag: self._items(content, path, new_path)}
            if tag == "$state_dict":
                versions = self._node(value["versions"], path, new_path)
                keys = self._new_keys(list(content), path, new_path)
                names = self._leaf_keys(content, keys, path)
                found["versions"] = {} if versions is _GONE else moved_versions(versions, names)
            return found
        if tag in _LISTS:
            return {**value, tag: self._list(content, path, new_path)}
        if tag in _SETS:
            return {tag: self._set(content, path, new_path)}
        if tag not in _VALUES:
            raise ValueError(f"{tag!r} is unknown")
        return value

    def _leaf(self, tag: str, value: dict[str, Any], path: _Path, new_path: _Path) -> Any:
        name = _stored_name(value[tag], path)
        is_fixed = len(value) > 1
        self.leaves.append((name, tag, is_fixed))
        new = self._new_names.get(name, name)
        found = {**value, tag: True if new == new_path else new}
        for part in _PARTS:
            if part not in value:
                continue
            if not _is_leaf(value[part]):
                raise ValueError(f"the {part} of {name!r} are not a tensor")
            found[part] = self._node(value[part], _below(path, part), _below(new_path, part))
            of_part, part_tag, _ = self.leaves[-1]
            self.leaves[-1] = of_part, part_tag, True
            if found[part] is _GONE and new is not None:
                raise InvalidError(
                    f"{name!r} cannot be read without {of_part!r}: drop or keep both", tensor=name
                )
        if new is None:
            return _GONE
        self._stays += name not in self._outside
        return found

    def _list(self, values: list[Any], path: _Path, new_path: _Path) -> list[Any]:
        """Elements keep their positions."""
        found = [
            self._node(one, _below(path, number), _below(new_path, number))
            for number, one in enumerate(values)
        ]
        if all(one is _GONE for one in found):
            return []
        return [None if one is _GONE else one for one in found]

    def _set(self, values: list[Any], path: _Path, new_path: _Path) -> list[Any]:
        found: list[Any] = []
        for number, one in enumerate(values):
            made = self._node(one, _below(path, number), _below(new_path, len(found)))
            if made is not _GONE:
                found.append(made)
        return found

    def _plain_dict(self, value: dict[str, Any], path: _Path, new_path: _Path) -> Any:
        is_optimizer = value.keys() >= _OPTIMIZER
        if is_optimizer and self._skip:
            value = {key: one for key, one in value.items() if key not in _OPTIMIZER}
        keys = self._new_keys(list(value.items()), path, new_path)
        found: dict[str, Any] = {}
        stays = 0
        for key, one in value.items():
            before = self._stays
            made = self._node(one, _below(path, key), _below(new_path, keys.get(key, key)))
            stays += self._stays - before if key in _OPTIMIZER else 0
            if made is not _GONE:
                found[keys.get(key, key)] = made
        if not (is_optimizer and self._cut) or stays:
            return found
        found = {key: one for key, one in found.items() if key not in _OPTIMIZER}
        return found or _GONE

    def _items(self, items: list[Any], path: _Path, new_path: _Path) -> list[Any]:
        """Edit the pairs of a dict."""
        pairs = [(key, one) for key, one in items]
        keys = self._new_keys(pairs, path, new_path)
        found: list[Any] = []
        for key, one in pairs:
            new_key = keys.get(key, key) if isinstance(key, str) else key
            text, new_text = str(_key(key)), str(_key(new_key))
            made = self._node(one, _below(path, text), _below(new_path, new_text))
            if made is not _GONE:
                found.append([new_key, made])
        return found

    def _new_keys(
        self, pairs: list[tuple[Any, Any]], path: _Path, new_path: _Path
    ) -> dict[str, str]:
        """Return the new keys in a dict by key, of renamed leaves whose new names are below the
        dict's own path."""
        start = "" if new_path is None else f"{new_path}."
        found: dict[str, str] = {}
        for key, one in pairs:
            if not (isinstance(key, str) and _is_leaf(one)):
                continue
            name = _below(path, key)
            if _stored_name(one[next(iter(one))], name) != name:
                continue
            new = self._new_names.get(name, name)
            if new is not None and new != name and new.startswith(start):
                found[key] = new.removeprefix(start)
        counts = Counter(found.get(key, key) for key, _ in pairs if isinstance(key, str))
        if (
            any(key.startswith("$") for key in found.values())
            or max(counts.values(), default=0) > 1
        ):
            return {}
        return found | self._extra_keys(pairs, found, path)

    def _extra_keys(
        self, pairs: list[tuple[Any, Any]], keys: dict[str, str], path: _Path
    ) -> dict[str, str]:
        """Return the new keys of the extra states of modules that moved, where no other value has
        that key."""
        every = [key for key, _ in pairs if isinstance(key, str)]
        found: dict[str, str] = {}
        for old, new in moved_modules(self._leaf_keys(pairs, keys, path)).items():
            key, new_key = (f"{one}._extra_state".removeprefix(".") for one in (old, new))
            if key in every and key not in keys:
                found[key] = new_key
        while True:
            after = Counter(keys.get(key, found.get(key, key)) for key in every)
            taken = [key for key, new in found.items() if after[new] > 1]
            if not taken:
                return found
            for key in taken:
                del found[key]

    def _leaf_keys(
        self, pairs: Iterable[tuple[Any, Any]], keys: Mapping[str, str], path: _Path
    ) -> dict[str, str]:
        """Return the new keys of all leaves of a dict that stay, by the old ones."""
        found = {}
        for key, one in pairs:
            if isinstance(key, str) and _is_leaf(one):
                name = _stored_name(one[next(iter(one))], _below(path, key))
                if self._new_names.get(name, name) is not None:
                    found[key] = keys.get(key, key)
        return found


def _is_leaf(value: Any) -> bool:
    return isinstance(value, dict) and next(iter(value), "") in _LEAVES


def _stored_name(content: Any, path: _Path) -> str:
    """Return the name that a leaf has with this content at this path."""
    return (path or "") if content is True else str(content)


def _below(path: _Path, key: Any) -> str:
    return str(key) if path is None else f"{path}.{key}"


def _key(packed: Any) -> Any:
    """Return the key of a dict, which is a part of the path of what is below."""
    if packed is None or isinstance(packed, (str, int, float)):
        return packed
    if not isinstance(packed, dict) or len(packed) != 1:
        raise ValueError(f"{packed!r:.80} is a key of a dict")
    ((tag, content),) = packed.items()
    if tag == "$tuple":
        return tuple(map(_key, content))
    make: dict[str, Callable[[Any], Any]] = {
        "$float": float,
        "$complex": complex,
        "$path": str,
        "$device": str,
        "$dtype": "torch.{}".format,
        "$bytes": lambda text: base64.b64decode(text, validate=True),
    }
    if tag not in make:
        raise ValueError(f"{tag!r} is a key of a dict")
    return make[tag](content)
