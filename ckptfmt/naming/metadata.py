# SPDX-License-Identifier: Apache-2.0
"""Metadata that name tensors, of a checkpoint whose tensors are renamed, dropped or cast.

`ckptfmt.torch` stores a tree whose leaves name tensors (state_tree.py), `ckptfmt.jax` and
`ckptfmt.convert` the paths of optimizer states, and `ckptfmt.jax` the implementations of PRNG keys
by name. The metadata are not trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ckptfmt._base.arguments import invalid
from ckptfmt._base.casting import dtype_text
from ckptfmt._base.hints import some
from ckptfmt._base.renaming import Rename, renamed
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import KEY, OPTIMIZER, Path, below, path_key, stored_name
from ckptfmt.errors import InvalidError, UnsupportedError, warn
from ckptfmt.naming.roles import OPTIMIZER_STATES, below_paths

_GONE = object()  # in place of what is removed


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
        are_values: whether tensors are what their bits stand for, which may be cast.

    Raises:
        InvalidError: the tree of `ckptfmt.torch` is damaged.
        UnsupportedError: a later version wrote it.
    """

    def __init__(
        self,
        names: Iterable[str],
        stored: Mapping[str, Any],
        path: str,
        given: Mapping[str, Any] | None = None,
        *,
        way_out: str = "",
        are_values: bool = False,
    ) -> None:
        self._way_out = way_out
        self._prefix = path
        self._all = dict(stored if given is None else given)
        # Members that describe the stored tensors.
        self._own = {name: one for name, one in self._all.items() if stored.get(name) == one}
        self._names = list(names)
        self._whole: dict[str, Any] = {}
        self._leaves: list[state_tree.Place] = []
        if KEY in self._own:
            self._whole = self._reading(lambda: state_tree.parse(self._own[KEY]))
            self._leaves = self._reading(lambda: [*state_tree.leaves(self._whole["state"])])
        self._tensors = {one.name for one in self._leaves}
        keys = self._own.get(PRNG_KEYS)
        pairs = filter(_is_pair, keys) if isinstance(keys, list) else ()
        self._keys = {name for name, _ in pairs}
        self._fixed = {
            one.name
            for one in self._leaves
            if one.is_part or (len(one.node) > 1 and not are_values)
        }
        self._arrays = {one.name for one in self._leaves if "$tensor" not in one.node}

    def _reading(self, function: Callable[[], Any]) -> Any:
        """Call a function that reads the tree; refuse one that is damaged."""
        try:
            return function()
        except InvalidError:
            raise
        except (UnsupportedError, *state_tree.DAMAGED) as error:
            kind = UnsupportedError if isinstance(error, UnsupportedError) else InvalidError
            reason = getattr(error, "message", str(error))
            raise kind(
                f"the metadata {KEY!r} describe the state by the names of its tensors, and "
                f"cannot be edited with them: {reason or type(error).__name__:.200}. "
                f"{self._remedy(KEY)} removes them: ckptfmt.torch.load then "
                "returns the tensors by their names",
                path=self._prefix,
            ) from None

    def _remedy(self, member: str) -> str:
        return self._way_out or f"metadata={{}} (--set-metadata {member}=)"

    @property
    def missing(self) -> list[str]:
        """Names in the tree of `ckptfmt.torch` that no stored tensor has."""
        present = set(self._names) if self._leaves else set()
        return list(dict.fromkeys(one.name for one in self._leaves if one.name not in present))

    def stays_as_it_is(self, name: str) -> bool:
        """Return whether a cast of all floating-point tensors leaves out this one."""
        return name in self._fixed or name in self._arrays or name in self._keys

    def check_change(self, argument: str, name: str, before: Any, to: np.dtype[Any]) -> None:
        """Refuse a cast or transform of a tensor after which `ckptfmt.torch` or `ckptfmt.jax` would
        not load its values."""
        member = KEY
        if name in self._keys:
            why, member = "it is a PRNG key of JAX", PRNG_KEYS
        elif name in self._fixed:
            why = "the metadata say which tensor of another dtype its bits are"
        elif name in self._arrays and to.isbuiltin != 1:
            why = f"it is an array of NumPy, which has no {dtype_text(to)}"
        elif name in self._tensors and dtype_text(to) not in state_tree.PLAIN_DTYPES:
            why = f"torch has no {dtype_text(to)}"
        else:
            return
        raise invalid(
            argument,
            f"from {dtype_text(before)} to {dtype_text(to)}, a load would return other values, or "
            f"fail: {why}; {self._remedy(member)} removes the metadata",
            tensor=name,
        )

    def noted(self, notes: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the metadata after tensors became the bits of these dtypes of torch, or for None
        their own values; without a state, those of a dict of all tensors.

        Raises:
            InvalidError: the state has no place for a tensor with a dtype.
        """
        if self._whole:
            whole, found = self._whole, self._leaves
        elif KEY not in self._all and any(notes.values()):
            pairs = [[name, {"$tensor": True}] for name in self._names]
            whole = {"state": state_tree.dict_node(pairs)}
            found = [*state_tree.leaves(whole["state"])]
        else:
            return self._all
        lacking = dict(notes)
        for one in found:
            if one.name in notes and not one.is_part:
                tag, content = next(iter(one.node.items()))
                dtype = lacking.pop(one.name, None) or notes[one.name]
                one.node.clear()
                one.node.update({tag: content}, **({} if dtype is None else {"dtype": dtype}))
        if outside := [name for name, dtype in lacking.items() if dtype is not None]:
            raise InvalidError(
                f"the torch state in the metadata has no place for its dtype, {notes[outside[0]]}; "
                f"{self._remedy(KEY)} removes the metadata",
                tensor=outside[0],
            )
        more = {key: one for key, one in whole.items() if key != "version"}
        return {**self._all, KEY: state_tree.text_of(**more)}

    def edited(
        self,
        new_names: Mapping[str, str | None],
        *,
        cut: bool,
        rename: Rename | None = None,
    ) -> dict[str, Any] | None:
        """Return the metadata after tensors were renamed and dropped; None if nothing changes.

        In a state of `ckptfmt.torch`, a dropped tensor is removed from its dict or set, and is None
        in a list that has other elements. The key of a renamed tensor changes with its name if the
        new name is at the same place but for the key; else the tensor keeps its place.

        Args:
            new_names: new name of every stored tensor, and of missing ones that are dropped; None
                for those that are dropped.
            rename: what gave the names, which gives new ones to tied paths.
            cut: whether to remove "state" and "param_groups" also of optimizers that had no tensor
                before, as they are of those that lose all.

        Raises:
            InvalidError: a quantized tensor would stay without its scales; no paths have the
                renamed state of optimizers, and only that, below them; a new name is one of a tied
                tensor. Tied names that go with a dropped tensor cause a CkptfmtWarning.
        """
        changed = dict(self._all)
        if self._whole:
            ties = self.ties
            tied = dict(zip(ties, renamed([*ties], rename)[0], strict=True))
            gone = _gone_with_others(ties, new_names, tied)
            if gone and not cut:
                warn(f"names of dropped tensors that are tied go with them: {gone}")
            outside = {one.name for one in self._leaves if not one.where}
            tree = _Tree(new_names, tied, cut=cut, outside=outside)
            state = self._reading(lambda: tree.edit(self._whole["state"]))
            if state != self._whole["state"]:
                whole = {**self._whole, "state": state}
                if isinstance(named := whole.get(state_tree.PARAMETERS), dict):
                    whole[state_tree.PARAMETERS] = _renamed(named, new_names)
                changed[KEY] = state_tree.text_of(**whole)
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

    @property
    def parts(self) -> list[list[str]]:
        """The names of each value of the state that is stored in several tensors."""
        found: list[list[str]] = []
        for one in self._leaves:
            if not one.is_part:
                found.append([])
            found[-1].append(one.name)
        return [names for names in found if len(names) > 1]

    @property
    def ties(self) -> dict[str, str]:
        """The paths of tensors of the state that are stored under the name of another path, with
        that name."""
        leaves = [one for one in self._leaves if not one.is_part]
        counts = Counter(one.name for one in leaves)
        tied = [one for one in leaves if counts[one.name] > 1 and one.path != one.name]
        return {one.path: one.name for one in tied}

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


def _gone_with_others(
    ties: Mapping[str, str], new_names: Mapping[str, str | None], tied: Mapping[str, str | None]
) -> str:
    """Return in words which tied names go with dropped tensors. Refuse one for another tensor."""
    taken = {tied[path]: of for path, of in ties.items()}
    for old, new in new_names.items():
        if new is not None and taken.get(new, old) != old:
            message = f"{new!r} is a name of the tied tensor {taken[new]!r}"
            raise invalid("rename", message, tensor=old)
    gone = [f"{path!r} ({of!r})" for path, of in ties.items() if new_names.get(of, of) is None]
    return some(gone, quote="") if gone else ""


class _Tree:
    """An edit of the tree of `ckptfmt.torch`, which can be read."""

    def __init__(
        self,
        new_names: Mapping[str, str | None],
        tied: Mapping[str, str | None],
        *,
        cut: bool,
        outside: Iterable[str],
    ) -> None:
        self._new_names, self._tied = new_names, tied
        self._cut = cut
        self._outside = outside
        self._seen = self._stays = 0  # leaves that only optimizers have, and those that stay

    def edit(self, state: Any) -> Any:
        """Return the tree after the edit."""
        found = self._node(state, None, None)
        return {} if found is _GONE else found

    def _node(self, value: Any, path: Path, new_path: Path) -> Any:
        """Return a node after the edit.

        Args:
            value: the node.
            path: where it is.
            new_path: where it is after the edit.
        """
        tag, row = state_tree.tag_of(value)
        if row.kind == "value":
            return value
        if row.kind == "leaf":
            return self._leaf(tag, value, path, new_path)
        pairs = state_tree.children(value)
        keys = self._new_keys(pairs, path, new_path) if row.kind == "dict" else {}
        is_optimizer = isinstance(value, dict) and value.keys() >= OPTIMIZER
        found: list[Any] = []
        stays = seen = 0
        for key, one in pairs:
            new_key = keys.get(key, key) if isinstance(key, str) else key
            new_key = len(found) if row.kind == "set" else new_key
            before = self._stays, self._seen
            made = self._node(one, below(path, path_key(key)), below(new_path, path_key(new_key)))
            if is_optimizer and key in OPTIMIZER:
                stays, seen = stays + self._stays - before[0], seen + self._seen - before[1]
            if made is not _GONE or row.kind == "list":
                found.append([new_key, made])
        if row.kind != "dict":
            values = [None if one is _GONE else one for _, one in found]
            values = [] if all(one is _GONE for _, one in found) else values
            return {**value, tag: values} if tag else values
        if tag == "$state_dict":
            versions = self._node(value["versions"], path, new_path)
            names = self._leaf_keys(pairs, keys, path)
            more = {} if versions is _GONE else moved_versions(versions, names)
            return {**value, tag: found, "versions": more}
        if tag or not is_optimizer or stays or not (self._cut or seen):
            return {**value, tag: found} if tag else dict(found)
        return {key: one for key, one in found if key not in OPTIMIZER} or _GONE

    def _leaf(self, tag: str, value: dict[str, Any], path: Path, new_path: Path) -> Any:
        name = stored_name(value, path)
        assert name is not None
        new = self._new_names.get(name, name)
        found = {**value, tag: True if new == new_path else new}
        for part, one in state_tree.children(value):
            found[part] = self._node(one, below(path, part), below(new_path, part))
            if found[part] is _GONE and new is not None:
                of_part = stored_name(one, below(path, part))
                raise InvalidError(
                    f"{name!r} cannot be read without {of_part!r}: drop or keep both", tensor=name
                )
        self._seen += name not in self._outside
        if new is None:
            return _GONE
        self._stays += name not in self._outside
        return found

    def _new_keys(self, pairs: list[tuple[Any, Any]], path: Path, new_path: Path) -> dict[str, str]:
        """Return the new keys in a dict by key, of renamed leaves whose new names are below the
        dict's own path."""
        start = "" if new_path is None else f"{new_path}."
        found: dict[str, str] = {}
        for key, one in pairs:
            name = below(path, key) if isinstance(key, str) else None
            stored = None if name is None else stored_name(one, name)
            if name is None or stored is None:
                continue
            new = self._new_names.get(name, name) if stored == name else self._tied.get(name, name)
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
        self, pairs: list[tuple[Any, Any]], keys: dict[str, str], path: Path
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
        self, pairs: Iterable[tuple[Any, Any]], keys: Mapping[str, str], path: Path
    ) -> dict[str, str]:
        """Return the new keys of all leaves of a dict that stay, by the old ones."""
        found = {}
        for key, one in pairs:
            name = stored_name(one, below(path, key)) if isinstance(key, str) else None
            if name is not None and self._new_names.get(name, name) is not None:
                found[key] = keys.get(key, key)
        return found


def renamed_metadata(reader: Reader, new: Callable[[str], str]) -> Mapping[str, Any]:
    """Return the metadata of a checkpoint after an edit that renames its tensors; as they are
    stored if an edit refuses that."""
    try:
        named = NamedInMetadata(reader, reader.metadata, reader.prefix)
        edited = named.edited({name: new(name) for name in reader}, cut=False, rename=new)
    except InvalidError:
        return reader.metadata
    return reader.metadata if edited is None else edited
