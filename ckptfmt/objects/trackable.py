# SPDX-License-Identifier: Apache-2.0
"""Trackable: objects whose attributes are saved, and the values that wait for attributes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Mapping
from typing import Any, Protocol, cast

# Types whose properties are cached.
TYPES_CACHED = 512


class Expected(Protocol):
    """A value of a checkpoint that waits for an object."""

    def fill(self, holder: Any, name: str, value: Any) -> None:
        """Restore the object that was just attached under the expected name."""


_Names = dict[str | None, tuple[int, Expected]]


class _Waiting:
    """Deferred values by holder (not kept alive) and attribute name; None means any name."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], _Names]] = {}

    def wait(self, holder: Any, name: str | None, number: int, expected: Expected) -> None:
        """Defer a value until `holder.name` is set, unless a later restore (one with a higher
        number) already has one for that name."""
        key = id(holder)
        if key not in self._found:
            gone = weakref.ref(holder, lambda _: self._found.pop(key, None))
            self._found[key] = gone, {}
        names = self._found[key][1]
        if name not in names or names[name][0] <= number:
            names[name] = number, expected

    def attached(self, holder: Any, name: str, value: Any) -> None:
        """Restore an attribute that was just set, if a value waits for it."""
        if id(holder) not in self._found or value is None:
            return
        names = self._found[id(holder)][1]
        own, any_name = names.pop(name, None), names.get(None)
        found = sorted((one for one in (own, any_name) if one is not None), key=lambda one: one[0])
        for one in found:
            try:
                one[1].fill(holder, name, value)
            except BaseException:
                if one is own:  # keep it for the next object, which may fit
                    names.setdefault(name, one)
                raise


waiting = _Waiting()


class Trackable:
    """Base class of objects whose attributes are saved with a checkpoint; as `tf.train.Checkpoint`
    saves the attributes of a `tf.Module`.

    An attribute that did not exist when a checkpoint was restored gets its value from the
    checkpoint when it is set. Attributes are arrays, Python scalars, texts, containers of these,
    other Trackables, or other objects that a `Checkpoint` takes.

    An object with or without this base class may define `trackable_children` to choose its
    children, `serialize_to_tensors` and `restore_from_tensors` to save and restore tensors that it
    names itself, `may_be_missing` for those of them that a checkpoint may lack, `serialize` and
    `deserialize` for a state that is a text or bytes, and `get_slot_names` and `get_slot` for the
    arrays that an optimizer keeps for each variable.

    >>> class Dense(ckptfmt.Trackable):
    ...     untracked = ("activation",)
    ...
    ...     def __init__(self):
    ...         self.activation = np.tanh
    ...         self.kernel = np.zeros((2, 3), np.float32)
    >>> ckptfmt.Checkpoint(model=Dense()).write("model")
    'model'
    >>> list(ckptfmt.load_tree("model")["model"])
    ['kernel']

    Attributes:
        untracked: names of attributes that are not saved.
    """

    # Without an annotation, which tools would look for in the module that users import.
    untracked = cast("Collection[str]", ())

    def trackable_children(self) -> Mapping[str, Any]:
        """Return the attributes that are saved: those in `__slots__`, then the others in the order
        in which they were first set."""
        kind: Any = type(self)  # for mypy, types are not hashable
        found = {name: getattr(self, name, None) for name in _slot_names(kind)}
        found.update(vars(self))
        return {name: value for name, value in found.items() if _is_tracked(self, name)}

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if _is_tracked(self, name):
            waiting.attached(self, name, value)


Trackable.__module__ = "ckptfmt"


def _is_tracked(holder: Trackable, name: str) -> bool:
    """Return whether an attribute is saved; one name need not be in a tuple, as in `__slots__`."""
    names = holder.untracked
    return name != "untracked" and (name != names if isinstance(names, str) else name not in names)


@functools.lru_cache(TYPES_CACHED)
def _slot_names(kind: Any) -> tuple[str, ...]:
    """Return the names in `__slots__` of a type and its bases, without those of this package."""
    found = []
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    own = ("_ckptfmt_", "__")
    return tuple(name for name in found if not name.startswith(own))
