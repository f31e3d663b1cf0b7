# SPDX-License-Identifier: Apache-2.0
"""What property tests of loads draw: targets of a framework over one block of memory.

The memory is observed as bytes through numpy, so that a write is seen wherever it goes: through an
alias, into a gap, or into a copy that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import ckptfmt
from ckptfmt import InvalidError

__all__ = ["CALLS", "NUMPY", "Call", "Framework", "Place", "check_load", "places"]

MEMORY_BYTES = 96
DTYPES = ("f4", "i2", "f8", "u1")


@dataclass(frozen=True)
class Place:
    """A view of the memory: where it begins, and its shape and strides in elements.

    Attributes:
        kind: how a framework presents it.
        value: the first of the stored values; equal ones are stored in equal bytes.
    """

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: str
    value: int

    def addresses(self, itemsize: int) -> NDArray[np.int64]:
        """Return the offset of each element, in bytes."""
        found = np.full(self.shape, self.first)
        for axis, (size, step) in enumerate(zip(self.shape, self.strides, strict=True)):
            found += (
                np.arange(size).reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
                * step
            )
        return found.reshape(-1) * itemsize

    def stored(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values that are stored for it."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return (np.arange(count) % 7 + self.value).astype(dtype).reshape(self.shape)


class Framework:
    """A framework, and the kinds of targets that it makes.

    Attributes:
        kinds: name of a kind to the function that makes a target of memory and a Place, and what
            becomes of it: "written", "refused", or "replaced" in a container and refused elsewhere.
        negative: whether it has negative strides.
    """

    def __init__(
        self,
        kinds: dict[str, tuple[Callable[[NDArray[Any], Place], Any], str]],
        *,
        negative: bool = True,
    ) -> None:
        self.kinds, self.negative = kinds, negative


@dataclass(frozen=True)
class Call:
    """A way to save arrays by name and to load them into targets.

    Attributes:
        save: called with a prefix and the arrays; returns what `load` opens.
        load: called with that and the targets by name; returns what then is in their places.
        contains: whether it replaces what cannot be written.
    """

    save: Callable[[str, dict[str, Any]], str]
    load: Callable[[str, dict[str, Any]], dict[str, Any]]
    contains: bool = False


def save(prefix: str, stored: dict[str, Any]) -> str:
    ckptfmt.save(prefix, stored, durability="none")
    return prefix


def _load_into(prefix: str, targets: dict[str, Any]) -> dict[str, Any]:
    ckptfmt.load_into(prefix, targets)
    return targets


def _read_into(prefix: str, targets: dict[str, Any]) -> dict[str, Any]:
    (name, target), *others = targets.items()
    if others:
        return _load_into(prefix, targets)
    with ckptfmt.open(prefix) as reader:
        reader[name].read_into(target)
    return targets


def save_objects(prefix: str, stored: dict[str, Any]) -> str:
    options = ckptfmt.tf.CheckpointOptions(durability="none")
    return ckptfmt.Checkpoint(tree=stored).write(prefix, options)


def _restore(path: str, targets: dict[str, Any]) -> dict[str, Any]:
    status = ckptfmt.Checkpoint(tree=targets).read(path)
    status.assert_existing_objects_matched()
    return targets


def _save_tree(prefix: str, stored: dict[str, Any]) -> str:
    ckptfmt.save_tree(prefix, stored, durability="none")
    return prefix


def _load_tree_into(path: str, targets: dict[str, Any]) -> dict[str, Any]:
    ckptfmt.load_tree_into(path, targets)
    return targets


CALLS = {
    "load_into": Call(save, _load_into),
    "read_into": Call(save, _read_into),
    "Checkpoint.restore": Call(save_objects, _restore, contains=True),
    "load_tree_into": Call(_save_tree, _load_tree_into, contains=True),
}


def strided(memory: NDArray[Any], place: Place) -> NDArray[Any]:
    """Return the view of typed memory."""
    item = memory.itemsize
    return np.ndarray(
        place.shape,
        memory.dtype,
        memory,
        place.first * item,
        tuple(s * item for s in place.strides),
    )


def _read_only(memory: NDArray[Any], place: Place) -> NDArray[Any]:
    view = strided(memory, place)
    view.flags.writeable = False
    return view


class Exported:
    """A DLPack object over numpy memory, of a framework that the library does not know."""

    def __init__(
        self, array: NDArray[Any], *, versioned: bool = True, copied: bool = False
    ) -> None:
        self.array, self.versioned, self.copied = array, versioned, copied
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned:
            return self.array.__dlpack__()
        if self.copied:
            return self.array.__dlpack__(max_version=(1, 1), copy=True)
        return self.array.__dlpack__(max_version=(1, 1))


NUMPY = Framework(
    {
        "numpy": (strided, "written"),
        "numpy, read-only": (_read_only, "replaced"),
        "numpy, masked": (lambda m, p: np.ma.masked_array(strided(m, p)), "refused"),
        "memoryview": (lambda m, p: memoryview(strided(m, p)), "written"),
        "memoryview, read-only": (lambda m, p: memoryview(_read_only(m, p)), "replaced"),
        "DLPack": (lambda m, p: Exported(strided(m, p)), "written"),
        "DLPack, read-only": (lambda m, p: Exported(_read_only(m, p)), "refused"),
        "DLPack without a version": (
            lambda m, p: Exported(strided(m, p), versioned=False),
            "refused",
        ),
        "DLPack of a copy": (lambda m, p: Exported(strided(m, p), copied=True), "refused"),
    },
)


@st.composite
def places(draw: st.DrawFn, framework: Framework, elements: int) -> Place:
    """Draw a view that is within so many elements: dense, sliced, transposed, reversed, expanded,
    or with any strides."""
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(rank))
    form = draw(st.sampled_from(["dense", "dense", "any", "expanded"]))
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    order = draw(st.permutations(range(rank))) if form == "any" else range(rank)
    strides = [steps[::-1][i] for i in order]
    if form == "any":
        strides = [s * draw(st.sampled_from([1, 1, 2, 3])) for s in strides]
        if framework.negative:
            strides = [s * draw(st.sampled_from([1, 1, -1])) for s in strides]
    elif form == "expanded" and rank:
        strides[draw(st.integers(0, rank - 1))] = draw(st.sampled_from([0, 0, 1]))
    reach = [(size - 1) * s for size, s in zip(shape, strides, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    if 0 in shape:
        low = high = 0
    if high - low >= elements:  # too long: a dense view of one dimension
        shape, strides, low, high = (elements // 2,), [1], 0, elements // 2 - 1
    first = draw(st.integers(-low, elements - 1 - high))
    writable = [kind for kind, (_, outcome) in framework.kinds.items() if outcome == "written"]
    kinds = writable if writable and draw(st.integers(0, 3)) else list(framework.kinds)
    value = draw(st.integers(1, 2))
    return Place(first, shape, tuple(strides), draw(st.sampled_from(kinds)), value)


def _expected(
    kinds: Sequence[str], chosen: Sequence[Place], dtype: np.dtype[Any], before: NDArray[np.uint8]
) -> NDArray[np.uint8] | None:
    """Return the bytes of the memory after a load; None if it must be refused."""
    after = before.copy()
    written: dict[int, Place] = {}
    for kind, place in zip(kinds, chosen, strict=True):
        if kind == "refused":
            return None
        if kind == "replaced":
            continue
        at, values = place.addresses(dtype.itemsize), place.stored(dtype).reshape(-1)
        if len({*at.tolist()}) < len(at):
            return None
        for start, value in zip(at.tolist(), values, strict=True):
            for byte in range(start, start + dtype.itemsize):
                other = written.setdefault(byte, place)
                if not _is_tied(other, place):
                    return None
            after[start : start + dtype.itemsize] = np.frombuffer(value.tobytes(), np.uint8)
    return after


def _is_tied(one: Place, other: Place) -> bool:
    """Return whether two views are the same elements and get equal values."""

    def key(place: Place) -> Any:
        steps = [s for size, s in zip(place.shape, place.strides, strict=True) if size != 1]
        return place.first, place.shape, steps, place.value

    return bool(key(one) == key(other))


def check_load(
    framework: Framework, chosen: Sequence[Place], dtype: np.dtype[Any], prefix: Path, call: Call
) -> str:
    """Load into these targets. Check that exactly their elements have the stored values and that
    what cannot be written is replaced in its container, or that the call was refused and no byte of
    the memory has changed. Return what happened."""
    by_name = {f"t{number}": place for number, place in enumerate(chosen)}
    stored = {name: place.stored(dtype) for name, place in by_name.items()}
    path = call.save(str(prefix), stored)
    memory = np.frombuffer(bytearray(b"\xa5" * MEMORY_BYTES), dtype)
    seen = memory.view(np.uint8)
    before = seen.copy()
    makers = [framework.kinds[place.kind] for place in chosen]
    targets = {
        name: make(memory, place)
        for (name, place), (make, _) in zip(by_name.items(), makers, strict=True)
    }
    given = dict(targets)
    kinds = ["refused" if kind == "replaced" and not call.contains else kind for _, kind in makers]
    expected = _expected(kinds, chosen, dtype, before)
    try:
        found = call.load(path, targets)
    except InvalidError as error:
        assert expected is None, f"refused: {error}"
        assert (seen == before).all(), "refused after something was written"
        assert all(targets[name] is given[name] for name in given), "refused after a replacement"
        return "refused"
    assert expected is not None, "written, although not every target can be"
    assert (seen == expected).all()
    for (name, values), kind in zip(stored.items(), kinds, strict=True):
        assert (found[name] is given[name]) == (kind == "written")
        if kind == "replaced":
            np.testing.assert_array_equal(np.asarray(found[name]), values)
    return "replaced" if "replaced" in kinds else "written"
