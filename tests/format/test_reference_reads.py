# SPDX-License-Identifier: Apache-2.0
"""What ckptfmt writes, at all levels and in all the ways there are to save, the reference decoder
reads whole: to what was saved, and to what the C core reads.

Each case is one checkpoint, made from the seed. Every dtype, level and way occurs often.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interop.generate import fresh_name, random_shape, sliced_save
from interop.trees import Ours, random_tree
from interop.values import KINDS
from support.arrays import CODES, random_array
from support.both import assert_both_read
from support.strategies import LONG
from support.team import all_good, run_team
from support.vectors import array_value, load_reference

import ckptfmt
from ckptfmt._base.names import RESERVED
from ckptfmt.objects.trees import load_tree, save_tree
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import save as sharded_save

LEVELS = ("v2", "v2+", "ckptfmt")
CASES = max(6, round(160 * LONG))
CHUNK = 256 << 10
Tensors = dict[bytes, Any]


class Maker:
    """Random tensors and options."""

    def __init__(self, folder: Path, chance: random.Random, level: str) -> None:
        self.folder, self.chance, self.level = folder, chance, level
        self.prefix = folder / "ck"
        self.generator = np.random.default_rng(chance.getrandbits(64))

    def name(self, taken: set[bytes]) -> bytes:
        while True:
            name = fresh_name(self.chance, taken, Counter())
            if not name.startswith(RESERVED.encode()):
                return name

    def large(self, code: int) -> Any:
        """Repeated elements, which compress; at times of several chunks."""
        few = random_array(self.chance, code, (self.chance.randint(1, 60),))
        size = max(few.dtype.itemsize, 1)
        most = self.chance.choice((6 << 10, 6 << 10, 30 << 10, CHUNK + 5000))
        count = self.chance.randint(4 << 10, most) // size + 1
        array = few[self.generator.integers(0, len(few), count)]
        columns = self.chance.choice((1, 3, 16))
        array = array[: count // columns * columns].reshape(-1, columns)
        return array.T if self.chance.random() < 0.2 else array

    def weights(self) -> Any:
        """Numbers whose exponents alone compress."""
        kinds = [code for code in CODES if code in (1, 2, 14, 19, 8)]
        shape = (self.chance.randint(5, 90), self.chance.randint(40, 700))
        array = self.generator.normal(0, 0.02, shape)
        first = random_array(self.chance, self.chance.choice(kinds), (1,))
        return array.astype(first.dtype)

    def array(self, code: int) -> Any:
        roll = self.chance.random()
        if roll < 0.06:
            return self.large(code)
        if roll < 0.1:
            return self.weights()
        return random_array(self.chance, code, random_shape(self.chance, Counter()))

    def tensors(self, codes: Any = CODES) -> Tensors:
        taken: set[bytes] = set()
        found = [(self.name(taken), self.array(code)) for code in codes]
        self.chance.shuffle(found)
        return dict(found)

    def some(self) -> Tensors:
        return self.tensors(self.chance.choices(CODES, k=self.chance.randint(0, 8)))

    def options(self, **more: Any) -> dict[str, Any]:
        """Arguments of a save at this level."""
        found: dict[str, Any] = {"level": self.level, "durability": "none", **more}
        if self.level == "ckptfmt":
            found["compression"] = self.chance.choice(("zstd", "zstd:3", "zstd:12", None))
        if self.level != "v2":
            found["alignment"] = self.chance.choice((None, 1, 8, 4096))
            if self.chance.random() < 0.5:
                found["metadata"] = {"step": self.chance.getrandbits(60), "\u00e4": ["b", [1.5]]}
        return found


def save_all(make: Maker) -> Tensors:
    tensors = make.tensors()
    ckptfmt.save(make.prefix, tensors, **make.options())
    return tensors


def save_slices(make: Maker) -> Tensors:
    """Slices by hand: of the text form at level v2, else of the writer, some of them large."""
    if make.level == "v2":
        save = sliced_save(make.chance, make.chance.choices(CODES, k=6))
        arrays = [value.array() for value in save.values]
        ckptfmt.save_v2(make.prefix, save.names, save.specs, arrays)
        return {one.name: one.full.array() for one in save.tensors if one.complete}
    tensors = make.some()
    cut = {b"cut%d" % i: make.large(make.chance.choice(CODES)) for i in range(3)}
    with ckptfmt.Writer(make.prefix, **make.options()) as writer:
        for name, array in {**tensors, **cut}.items():
            if name in tensors:
                writer.add(name, array)
                continue
            at = sorted({0, len(array), *(make.chance.randint(0, len(array)) for _ in "ab")})
            for first, last in pairwise(at):
                writer.add_slice(name, array[first:last], array.shape, (first, 0))
    return {**tensors, **cut}


def save_shards(make: Maker) -> Tensors:
    """Two processes, each with half the rows of some tensors."""
    count = 2
    mesh = Mesh({"x": count})
    wholes = {f"w{i}": make.large(code) for i, code in enumerate(make.chance.choices(CODES, k=3))}
    wholes = {name: array[: len(array) // count * count] for name, array in wholes.items()}
    wholes = {name: array for name, array in wholes.items() if len(array)}
    layouts = {name: Layout(["x", None], mesh) for name in wholes}
    plain = {f"p{i}": make.array(code) for i, code in enumerate(make.chance.choices(CODES, k=4))}
    options = make.options()

    def work(team: Any) -> None:
        (device,) = mesh.local_devices(team.rank, count)
        given: dict[str, Any] = dict(plain)
        for name, array in wholes.items():
            half = len(array) // count
            given[name] = {device: array[team.rank * half : (team.rank + 1) * half]}
        sharded_save(make.prefix, given, layouts, team, **options)

    all_good(run_team(count, work))
    return {name.encode(): array for name, array in {**plain, **wholes}.items()}


def save_and_merge(make: Maker) -> Tensors:
    """Several checkpoints, some of them empty, made one by name."""
    inputs, held = [], {}
    options = make.options()
    options.pop("metadata", None)
    for number in range(make.chance.randint(1, 4)):
        tensors = {b"%d%s" % (number, name): array for name, array in make.some().items()}
        inputs.append(make.folder / f"in{number}")
        ckptfmt.save(inputs[-1], tensors, **options)
        held |= tensors
    ckptfmt.merge_v2_checkpoints(inputs, make.prefix, delete_old_dirs=False)
    return held


def save_upon(make: Maker) -> Tensors:
    """A chain, of which each save has other tensors than the one before."""
    tensors, base = make.tensors(), None
    for step in range(3):
        prefix = make.prefix if step == 2 else make.folder / f"before{step}"
        ckptfmt.save(prefix, tensors, base=base, **make.options())
        base = prefix
        if step < 2:
            kept = {name: array for name, array in tensors.items() if make.chance.random() < 0.7}
            tensors = {**kept, **make.some()}
    return tensors


def save_objects(make: Maker) -> Tensors:
    tree = Ours(random_tree(make.chance), tuples=True).root
    save_tree(make.prefix, tree, **make.options())
    load_tree(make.prefix)
    with ckptfmt.open(make.prefix) as reader:
        return {name.encode(): handle.read() for name, handle in reader.items()}


def save_converted(make: Maker) -> Tensors:
    """From another level."""
    first, tensors = make.folder / "first", make.tensors()
    level = make.chance.choice(LEVELS)
    ckptfmt.save(first, tensors, level=level, durability="none")
    ckptfmt.convert(first, make.prefix, level=make.level, durability="none")
    return tensors


WAYS = (save_all, save_slices, save_shards, save_and_merge, save_upon, save_objects, save_converted)


def value_of(array: Any) -> Any:
    """As `array_value` of what was given to a save."""
    found = np.asarray(array)
    (code,) = (code for code, kind in KINDS.items() if kind.numpy_type == found.dtype)
    return array_value(code, list(found.shape), found)


def cases(seed: int, level: str, way: Any) -> Iterator[random.Random]:
    for number in range(20 * CASES):
        yield random.Random(f"{seed} {level} {way.__name__} {number}")


@pytest.mark.properties
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_reads_all(tmp_path: Path, seed: int, level: str, way: Any) -> None:
    # Of the objects few are large enough to be worth it.
    compressed, wants = 0, level == "ckptfmt" and way is not save_objects
    for number, chance in enumerate(cases(seed, level, way)):
        if number >= CASES and (compressed or not wants):
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        make = Maker(folder, chance, level)
        tensors = way(make)
        found = assert_both_read(make.prefix)
        for name, array in tensors.items():
            assert found[name] == value_of(array), (number, name)
        bundle = load_reference().Bundle(make.prefix)
        compressed += any(bundle.entry(name)[0].compressed for name in bundle.names())
        if level != "v2" and way is not save_objects:
            deviations = {deviation for deviation, _ in bundle.deviations}
            assert not deviations, (number, deviations)
    assert compressed == 0 or level == "ckptfmt"
    assert compressed > 0 or not wants
