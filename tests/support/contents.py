# SPDX-License-Identifier: Apache-2.0
"""The contents of a checkpoint as a model of it: arrays by name, and metadata."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from interop.values import KINDS, STRING

import ckptfmt
from ckptfmt._base import names

from .arrays import NAMES, bits, random_array, random_shape
from .strategies import SEEDS

Tensors = dict[str, Any]

CHUNK = 256 << 10  # bytes under one checksum
CODES = {kind.numpy_type: code for code, kind in KINDS.items()}


class Contents(NamedTuple):
    """What a checkpoint contains."""

    tensors: Tensors
    metadata: dict[str, Any]

    def digest(self) -> str:
        """`Reader.digest`, by its description."""
        stored = {name.encode(): array for name, array in self.tensors.items()}
        if self.metadata:
            text = json.dumps(self.metadata, sort_keys=True, separators=(",", ":"))
            stored[names.METADATA.encode()] = np.array(text.encode(), object)
        total = hashlib.sha256(b"ckptfmt digest 1\n")
        for name, array in sorted(stored.items()):
            total.update(struct.pack("<Q", len(name)) + name)
            total.update(struct.pack("<iI", code_of(array), array.ndim))
            total.update(np.array(array.shape, "<i8").tobytes())
            if array.dtype == np.dtype(object):
                for text in array.reshape(-1).tolist():
                    total.update(struct.pack("<Q", len(text)) + text)
            else:
                total.update(np.ascontiguousarray(array).tobytes())
        return total.hexdigest()


def code_of(array: Any) -> int:
    return STRING if array.dtype == np.dtype(object) else CODES[array.dtype]


def same(one: Contents | None, other: Contents | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.metadata == other.metadata and (
        {name: bits(array) for name, array in one.tensors.items()}
        == {name: bits(array) for name, array in other.tensors.items()}
    )


def read(path: Path | str) -> Contents | None:
    """Contents of the checkpoint at a prefix; None if there is none."""
    try:
        with ckptfmt.open(path) as reader:
            return Contents({name: reader.read(name) for name in reader}, reader.metadata)
    except ckptfmt.CheckpointNotFoundError:
        return None


def exists(path: Path | str) -> bool:
    try:
        ckptfmt.open(path).close()
    except ckptfmt.CheckpointNotFoundError:
        return False
    return True


def mean(one: Any, other: Any) -> Any:
    """The mean of two arrays as `average` has it; the first if they have no fractions."""
    kind = NAMES[code_of(one)]
    if not any(part in kind for part in ("float", "complex")):
        return one
    wide = np.complex128 if "complex" in kind else np.float64
    with np.errstate(all="ignore"):
        total = one.astype(wide) + other.astype(wide)
        # A quotient of complex numbers is NaN where one part is.
        parts = (np.ascontiguousarray(total).view(np.float64) / 2).view(wide)
        return parts.reshape(total.shape).astype(one.dtype)


# ---- what is drawn -------------------------------------------------------------------------------


def small_array(seed: int) -> Any:
    """An array of any dtype, of up to three dimensions and any order of the elements."""
    chance = random.Random(seed)
    array = random_array(chance, chance.choice(list(KINDS)), random_shape(chance, 3, 5))
    if array.ndim and chance.random() < 0.3:
        return chance.choice((array.T, array[::-1], array[..., ::2]))
    return array


def large_array(seed: int) -> Any:
    """An array of up to three chunks, with and without a structure that compresses."""
    chance = random.Random(seed)
    size = chance.randint(1, 3) * CHUNK // 4 + chance.choice((-1, 0, 1))
    if chance.random() < 0.5:
        return (np.arange(size) % chance.randint(1, 5000)).astype(np.float32)
    return np.frombuffer(chance.randbytes(4 * size), np.int32)


TENSORS = st.dictionaries(
    st.sampled_from(["w", "w/b", "é", "layer/kernel", "x y"]),
    st.one_of(SEEDS.map(small_array), SEEDS.map(small_array), SEEDS.map(large_array)),
    min_size=1,
    max_size=4,
)
SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
METADATA = st.dictionaries(
    st.sampled_from(["step", "é", ""]), SCALARS | st.lists(SCALARS, max_size=3), min_size=1
)


@st.composite
def options(draw: st.DrawFn, *, whole: bool = True) -> dict[str, Any]:
    """Options of a save; with `whole` those that only save and Writer have."""
    level = draw(st.sampled_from(["v2", "v2+", "v2+", "ckptfmt"]))
    found: dict[str, Any] = {
        "level": level,
        "alignment": draw(st.sampled_from([None, 1, 8, 4096])),
        "durability": draw(st.sampled_from(["full", "rename", "none", "none"])),
    }
    if level != "v2":
        found["compression"] = draw(st.sampled_from([None, None, "zstd", "zstd:3"]))
        found["metadata"] = draw(st.none() | METADATA)
    if whole:
        found["shards"] = draw(st.integers(1, 4))
    return found
