# SPDX-License-Identifier: Apache-2.0
"""Training state as tensors and JSON: what is not a tensor goes into the checkpoint's metadata, in
the grammar of ckptfmt.bundle.state_tree. Nothing is pickled, and reading runs no code of the
checkpoint."""

from __future__ import annotations

import copy
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt._base.hints import some
from ckptfmt._base.renaming import CastFirst, Transform
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import KEY, PARAMETERS
from ckptfmt.errors import CorruptError, InvalidError, UnsupportedError, about, warn
from ckptfmt.torch import tensors
from ckptfmt.torch.parameters import SEQUENCES, Groups, Parameters

Path = tuple[str, ...]
# Called as the `default` of `json.dump`: returns a value to store in the place of one that cannot
# be stored, or raises TypeError.
Default = Callable[[Any], Any]


def path_name(path: Path) -> str:
    """Return the name of what is stored at a path: the keys, as torch.distributed.checkpoint joins
    them."""
    return ".".join(path)


def is_stateful(value: Any) -> bool:
    """Return whether a value has a state that it can load: a module, an optimizer, ... A class or
    a module of Python has none."""
    return not isinstance(value, (type, ModuleType)) and all(
        callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")
    )


@dataclass(eq=False)
class Stored(state_tree.Leaf):
    """A tensor of the checkpoint, which may be transformed.

    Attributes:
        transform: a function of the array that is read, whose result the tensor has.
    """

    transform: Transform | CastFirst | None = None


# ---- packing -------------------------------------------------------------------------------------


class Packed:
    """A state, taken apart.

    Attributes:
        tensors: name to what is stored under it.
        text: the JSON of everything else.
        is_plain: whether the names and dtypes of the tensors say it all.
    """

    def __init__(
        self, state: Any, default: Default | None = None, *, takes_default: bool = True
    ) -> None:
        if default is not None and not callable(default):
            raise wrong("default", "a function", default)
        self._default, self._takes_default = default, takes_default
        self.tensors: dict[str, Any] = {}
        self._seen: dict[Any, str] = {}
        # Tensors that must live as long as their identities are compared.
        self._owners: list[Any] = []
        given = state
        if is_stateful(state):
            state = state.state_dict()
        if not isinstance(state, dict):
            raise invalid(
                "state",
                "save(state, prefix): state must be a module, a state dict or a dict of these, "
                f"not {type(state).__name__}",
            )
        try:
            packed = self._pack(state, ())
            recorded = Parameters(given).recorded()
        except RecursionError:
            raise invalid("state", "the state contains itself, or is nested too deeply") from None
        self.is_plain = self.tensors.keys() == state.keys() and all(
            isinstance(one, torch.Tensor) and one.dtype in tensors.PLAIN for one in state.values()
        )
        more = {PARAMETERS: recorded} if recorded else {}
        self.text = state_tree.text_of(state=packed, **more)

    def _pack(self, value: Any, path: Path) -> Any:
        if isinstance(value, torch.Tensor):
            with about(path_name(path)):
                return self._tensor(value, path)
        pack = _PACKERS.get(type(value))
        if pack is not None:
            return pack(self, value, path)
        # A subclass of arrays would come back as another type: masked arrays without their masks.
        is_array = type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic)
        if is_array and _has_numbers(value.dtype):
            self._add(np.asarray(value), path)
            return {"$array" if isinstance(value, np.ndarray) else "$scalar": True}
        if is_stateful(value):
            state = value.state_dict()
            # A module without a state is a value, such as an activation among hyperparameters.
            if state or not isinstance(value, torch.nn.Module):
                return self._pack(state, path)
        return self._unknown(value, path)

    def _unknown(self, value: Any, path: Path) -> Any:
        """Pack what `default` returns for a value; refuse it without one."""
        reason, ways = "", _DEFAULT if self._takes_default else ""
        if self._default is not None:
            try:
                given = self._default(value)
            except TypeError as error:
                reason = f" ({error})"
            else:
                if given is not value:
                    return self._pack(given, path)
                reason = " (default returns it as it is)"
        raise InvalidError(
            f"{path_name(path)}: {_what(value)} cannot be stored{reason}: {_WAYS}{ways}"
        )

    def _generator(self, generator: torch.Generator, path: Path) -> Any:
        if not self._takes_default:  # DCP would look for a value where a tensor is stored
            raise InvalidError(
                f"{path_name(path)}: DCP cannot load a torch.Generator: pass its get_state()"
            )
        return self._pack(generator.get_state(), path)

    def _tensor(self, tensor: torch.Tensor, path: Path) -> dict[str, Any]:
        note = tensors.note_of(tensor)
        key = tensors.identity(tensor)
        for part in state_tree.PARTS:
            if part in note:
                note[part] = self._tensor(note[part], (*path, part))
        name = self._seen.get(key)
        if name is None:
            self._owners.append(tensor)
            self._seen[key] = self._add(tensors.carrier(tensor), path, note.get("dtype"))
        return {"$tensor": True if name is None else name, **note}

    def _add(self, array: Any, path: Path, dtype: str | None = None) -> str:
        name = path_name(path)
        if name in self.tensors:
            raise InvalidError("two values of the state have this name", tensor=name)
        if isinstance(array, torch.Tensor) and array.device.type != "cpu":
            array = _staged(array)
        if dtype in dtypes.QUANTIZED:
            array = array.numpy().view([(dtype, dtypes.QUANTIZED[dtype])])
        self.tensors[name] = array
        return name

    def _dict(self, value: dict[Any, Any], path: Path) -> Any:
        items = self._items(value, path)
        versions = getattr(value, "_metadata", None)
        if isinstance(versions, dict):
            return {"$state_dict": items, "versions": self._pack(dict(versions), path)}
        if type(value) is dict and all(type(key) is str for key in value):
            return state_tree.dict_node(items)
        packed: dict[str, Any] = {_TAGS[type(value)]: items}
        if isinstance(value, defaultdict):
            names = [
                key for key, one in state_tree.FACTORIES.items() if one is value.default_factory
            ]
            if not names:
                return self._unknown(value, path)
            packed["factory"] = names[0]
        return packed

    def _items(self, value: dict[Any, Any], path: Path) -> list[Any]:
        # Keys of NumPy are stored as equal ones of Python, which have the same hash.
        pairs = [(_plain_key(key), one) for key, one in value.items()]
        return [[self._key(k, path), self._pack(one, (*path, str(k)))] for k, one in pairs]

    def _key(self, key: Any, path: Path) -> Any:
        parts = [key]
        for one in parts:
            parts += one if isinstance(one, tuple) else ()
            is_long = type(one) is int and one.bit_length() > _INT_BITS
            if type(one) not in _KEYS or is_long:
                raise InvalidError(
                    f"{path_name(path)}: a key of a dict must be text, a number, None, bytes or a "
                    f"tuple of these, not {'a long ' * is_long}{_full_name(type(one))}"
                )
        return self._pack(key, path)

    def _list(self, value: Any, path: Path) -> list[Any]:
        return [self._pack(one, (*path, str(index))) for index, one in enumerate(value)]

    def _tagged(self, value: Any, path: Path) -> dict[str, Any]:
        tag = _TAGS[type(value)]
        row = state_tree.TAGS[tag]
        if row.kind == "value":
            return {tag: row.write(value)}
        return {tag: self._list(value, path), **{key: getattr(value, key) for key in row.more}}


def _plain_key(key: Any) -> Any:
    is_plain = isinstance(key, np.generic) and key.dtype.kind in "biufcSU"
    return key.item() if is_plain else key


def _has_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether torch reads arrays of a dtype, and returns them with it."""
    code = dtypes.code_of_array(dtype)
    return code is not None and dtype.fields is None and tensors.dtype_of(code[0]) is not None


def _what(value: Any) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, type):
        return f"class {_full_name(value)}"
    if isinstance(value, torch.nn.Module):
        return f"module {_full_name(type(value))}, which has no state,"
    more = ""
    if isinstance(value, (np.ndarray, np.generic)):
        more = f" of dtype {value.dtype}"
        # Lists of dates and long doubles cannot be stored either.
        if isinstance(value, np.ndarray) and value.dtype.char not in "mMgG":
            more += " (array.tolist() is a list)"
    elif isinstance(value, defaultdict):
        more = f" with the factory {value.default_factory!r}"
    return f"type {_full_name(type(value))}{more}"


def _full_name(kind: type) -> str:
    """Return the name that users import a type by."""
    modules = [one for one in kind.__module__.split(".") if one[0] != "_" and one != "builtins"]
    return ".".join([*modules, kind.__qualname__])


def _staged(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in memory of the CPU. From a GPU it is made in the background, into pinned
    memory; `synchronize` waits for it."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    staging = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return staging.copy_(tensor, non_blocking=True)


def _int(packed: Packed, value: int, path: Path) -> Any:
    # JSON's decimal digits are limited by Python.
    return value if value.bit_length() <= _INT_BITS else packed._unknown(value, path)


_INT_BITS = 2048
_WAYS = (
    "pass tensors, numbers, text, None, lists, tuples, dicts, or objects with state_dict and "
    "load_state_dict"
)
_DEFAULT = ", or give default= a function that returns one of these in its place"
_OF_TORCH = {"$size": torch.Size, "$dtype": torch.dtype, "$device": torch.device}
# The tags of values, by type.
_TAGS = {
    kind: tag
    for tag, row in state_tree.TAGS.items()
    if (kind := _OF_TORCH.get(tag, row.type)) is not None
}
_KEYS = {
    *(str, int, bool, float, complex, bytes, tuple, type(None), type(pathlib.Path())),
    *_OF_TORCH.values(),
}
_PACKERS: dict[type, Callable[[Packed, Any, Path], Any]] = {
    **dict.fromkeys(_TAGS, Packed._tagged),
    **dict.fromkeys((dict, OrderedDict, Counter, defaultdict), Packed._dict),
    **dict.fromkeys((str, bool, type(None)), lambda _packed, value, _path: value),
    float: lambda packed, value, path: (
        value if math.isfinite(value) else packed._tagged(value, path)
    ),
    int: _int,
    np.str_: lambda _packed, value, _path: str(value),
    list: Packed._list,
    torch.Generator: Packed._generator,
}


# ---- unpacking -----------------------------------------------------------------------------------


def structure_of(reader: Reader) -> Any:
    """Return the state of a checkpoint, with `Stored` for its tensors. A checkpoint that another
    program wrote is a dict of its tensors."""
    return structure_and_names(reader)[0]


def structure_and_names(reader: Reader) -> tuple[Any, dict[str, Groups]]:
    """Return `structure_of` a checkpoint, and the names of the parameters of its optimizers, by the
    paths of these."""
    text = reader.metadata.get(KEY)
    if text is None:
        return {name: Stored(name) for name in reader}, {}
    try:
        whole = state_tree.parse(text)
        names = {
            str(path): [[[str(one) for one in names] for names in group] for group in groups]
            for path, groups in whole.get(PARAMETERS, {}).items()
        }
        state = state_tree.decode(whole["state"], _stored, _MAKE)
        named = {one.name for one in state_tree.leaves(whole["state"])}
        # Such as those of an input of a merge that had no metadata.
        if left := [name for name in reader if name not in named]:
            warn(f"{reader.prefix}: tensors that the state does not name: {some(left)}")
        return state, names
    except state_tree.DAMAGED as error:
        raise CorruptError(
            f"the structure of the torch state is damaged: {error!r}",
            failure="BAD_ENTRY",
            path=reader.prefix,
        ) from None


def _stored(name: str, kind: str, note: dict[str, Any]) -> Stored:
    if note and tensors.dtype_named(note["dtype"]) is None:
        raise UnsupportedError(f"this torch has no dtype {note['dtype']}", tensor=name)
    return Stored(name, kind, note)


def _dtype(name: str) -> torch.dtype:
    found = tensors.dtype_named(name)
    if found is None:
        raise ValueError(f"torch has no dtype {name}")
    return found


_MAKE = {"$size": torch.Size, "$dtype": _dtype, "$device": torch.device}


def leaves(
    value: Any, path: Path = (), *, extra: bool = False, values: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Yield the tensors of a value of `structure_of`, as `Stored`, with their paths. With `extra`,
    the extra state of a module is one leaf, whatever it has. With `values`, so are other values,
    and empty containers."""
    is_extra = extra and bool(path) and path[-1].rpartition(".")[2] == "_extra_state"
    is_dict = isinstance(value, dict)
    if isinstance(value, Stored) or is_extra:
        yield path, value
    elif value and (is_dict or isinstance(value, SEQUENCES)):
        for key, one in value.items() if is_dict else enumerate(value):
            yield from leaves(one, (*path, str(key)), extra=extra, values=values)
    elif values:
        yield path, value


def holds(value: Any) -> bool:
    """Return whether a value has objects or tensors to load into; others are replaced whole."""
    if isinstance(value, Mapping):
        return any(map(holds, value.values()))
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes, memoryview)):
        return any(map(holds, value))
    return isinstance(value, (torch.Tensor, torch.Generator)) or is_stateful(value)


def alike(value: Any, content: Any) -> Any:
    """Return a container of the type of `value` with other content: a dict with its default or the
    versions of a module, a deque with its length."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.clear()
        made.update(content)
        return made
    return deque(content, value.maxlen) if isinstance(value, deque) else type(value)(content)


def versions_of(value: Any, path: Path = ()) -> dict[str, Any]:
    """Return the versions of all modules in a value of `structure_of`, by their whole names."""
    found: dict[str, Any] = {}
    if isinstance(value, dict):
        for name, version in getattr(value, "_metadata", {}).items():
            found[path_name((*path, name) if name else path)] = version
        for key, one in value.items():
            found |= versions_of(one, (*path, str(key)))
    elif isinstance(value, SEQUENCES):
        for index, one in enumerate(value):
            found |= versions_of(one, (*path, str(index)))
    return found


def build(value: Any, of: Callable[[Stored], Any]) -> Any:
    """Return a value of `structure_of` with every `Stored` replaced by what `of` makes of it."""
    if isinstance(value, Stored):
        return of(value)
    if isinstance(value, dict):
        return alike(value, {key: build(one, of) for key, one in value.items()})
    if type(value) in (*SEQUENCES, set, frozenset):
        return alike(value, [build(one, of) for one in value])
    return value
