# SPDX-License-Identifier: Apache-2.0
"""What `rescue` gives back under its own name is what was stored; after one damage, all that is
whole."""

from __future__ import annotations

import functools
import os
import random
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import recipes
from support.arrays import bits
from support.files import contents
from support.recipes import LEVELS, Source
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt import CorruptError, UnsupportedError
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.editing import rescue
from ckptfmt.formats import safetensors

METADATA = "_CKPTFMT_METADATA"
ONE = ["a bit of the index", "a bit of a data file", "a cut data file", "a missing data file"]
MORE = ["a cut index", "bytes of the index", "bits of the index", "several"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rescue")
    return functools.cache(functools.partial(recipes.made_source, folder=folder))


@property_test(200, 20_000, seed=SEEDS)
def test_what_is_rescued_is_what_was_stored(seed: int, sources: Any) -> None:
    chance = random.Random(seed)
    source = sources(chance.choice([*LEVELS]), chance.randrange(4), values=0)
    damage = chance.choice(ONE + MORE)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        path, stored = copied(source, folder), values_of(source.path)
        lost = damaged(chance, path, damage)
        before, unproven = contents(folder), chance.random() < 0.5
        try:
            done = rescue(path, folder / "out", unproven=unproven)
        except CorruptError:
            counted("rescue", **{f"nothing of {damage}": 1})
            assert contents(folder) == before
            assert damage in MORE or not stored.keys() - lost - {METADATA}
            return
        assert {key: one for key, one in contents(folder).items() if key in before} == before
        counted("rescue", **{f"{damage}, {'some' if done.lost else 'nothing'} lost": 1})
        check(done, stored, folder)
        known = {*done.kept, *done.lost, METADATA}
        assert stored.keys() <= known or "..." in done.lost
        if damage in ONE:
            assert set(done.kept) >= stored.keys() - lost - {METADATA}
            assert done.metadata == (
                "none" if METADATA not in stored else "lost" if METADATA in lost else "whole"
            )
        if unproven and done.unproven:
            assert {*ckptfmt.load(folder / "out-unproven")} == {*done.unproven}
            assert done.unproven.keys() <= done.lost.keys()


@property_test(100, 10_000, seed=SEEDS)
def test_what_is_rescued_of_a_cut_file_is_what_was_stored(seed: int, sources: Any) -> None:
    chance = random.Random(seed)
    form = chance.choice(["safetensors", "several", "npz", "hdf5"])
    source = sources(form, chance.randrange(4), values=0)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        for file in source.path.parent.glob(f"{form}-{source.path.name.split('-')[1]}-*"):
            shutil.copy(file, folder / file.name)
        path = folder / source.path.name
        files = [one for one in folder.iterdir() if one.suffix != ".json"]
        cut = chance.choice(sorted(files))
        size = chance.randrange(cut.stat().st_size)
        whole = {*source.arrays} - ends_after(cut, size)
        os.truncate(cut, size)
        if form == "several" and chance.random() < 0.3:
            cut.unlink()
            whole -= ends_after(source.path.with_name(cut.name), -1)
        try:
            done = rescue(path, folder / "out")
        except (CorruptError, UnsupportedError) as error:
            counted("rescue", **{f"nothing of {form}": 1})
            assert not whole or form == "hdf5" or "header" in str(error), error
            assert not [*folder.glob("out*")]
            return
        counted("rescue", **{f"{form}, {'some' if done.lost else 'nothing'} lost": 1})
        assert {*done.kept} >= whole or form == "hdf5"
        assert source.arrays.keys() <= {*done.kept, *done.lost} or "..." in done.lost
        assert done.kept
        for key, array in ckptfmt.load(folder / "out").items():
            assert bits(array) == bits(source.arrays[key])


@property_test(100, 10_000, seed=SEEDS)
def test_one_bit_of_an_npz_file(seed: int, sources: Any) -> None:
    """Half of them in the directory at its end, which no checksum covers."""
    chance = random.Random(seed)
    source = sources("npz", chance.randrange(4), values=0)
    content = bytearray(source.path.read_bytes())
    with zipfile.ZipFile(source.path) as archive:
        at = chance.randrange(chance.choice([0, archive.start_dir]), len(content))
    content[at] ^= 1 << chance.randrange(8)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "flipped.npz"
        path.write_bytes(content)
        done = rescue(path, Path(name) / "out")
        counted("rescue", **{f"npz bit, {'some' if done.lost else 'nothing'} lost": 1})
        assert source.arrays.keys() <= {*done.kept, *done.lost}
        assert len(done.kept) >= len(source.arrays) - 2
        for key, array in ckptfmt.load(Path(name) / "out").items():
            assert bits(array) == bits(source.arrays[key])


def ends_after(path: Path, size: int) -> set[str]:
    """Return the names of the arrays of a file that have bytes after so many."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            heads = [one.header_offset for one in archive.infolist()]
            ends = [*heads[1:], archive.start_dir]
            names = [one.filename.removesuffix(".npy") for one in archive.infolist()]
            return {name for name, end in zip(names, ends, strict=True) if end > size}
    if path.suffix != ".safetensors":
        return set()
    with safetensors.open_tensors(str(path)) as (tensors, _):
        return {n for n, one in tensors.items() if one.offset + max(one.nbytes, 1) > size}


def check(done: Any, stored: dict[str, Any], folder: Path) -> None:
    """Compare the result with what was stored."""
    assert not done.lost.keys() & {*done.kept}
    if done.path is None:
        assert not done.kept and not list(folder.glob("out.*"))
        return
    assert ckptfmt.verify(done.path).ok
    found = values_of(folder / "out")
    assert {*done.kept} == found.keys() - {METADATA}
    for name, value in found.items():
        if name not in (METADATA, OBJECT_GRAPH_KEY) or not done.lost:
            assert value == stored[name], name


def values_of(path: Path) -> dict[str, Any]:
    with ckptfmt.open(path) as reader:
        found = {name: bits(reader.read(name)) for name in reader}
        return found | ({METADATA: reader.metadata} if METADATA in reader else {})


def copied(source: Source, folder: Path) -> Path:
    for path in source.path.parent.glob(f"{source.path.name}.*"):
        shutil.copy(path, folder / path.name)
    return folder / source.path.name


def damaged(chance: random.Random, path: Path, damage: str) -> set[str]:
    """Damage a checkpoint; return the names of the values that may have lost something."""
    index, data = Path(f"{path}.index"), sorted(path.parent.glob(f"{path.name}.data-*"))
    if damage == "several":
        for _ in range(2):
            damaged(chance, path, chance.choice(ONE))
        return set()
    if damage == "a cut index":
        os.truncate(index, chance.randrange(index.stat().st_size))
        return set()
    if damage == "a bit of the index":
        flipped(chance, index, 1)
        return set()
    if damage.endswith("of the index"):
        flipped(chance, index, chance.choice([2, 3, 8]), close="bytes" in damage)
        return set()
    if not data:
        return set()
    shard = chance.randrange(len(data))
    size = data[shard].stat().st_size
    if damage == "a missing data file" or size == 0:
        first, last = 0, 1 << 62
        places = touched(path, shard, first, last)
        data[shard].unlink()
        return places
    if damage == "a cut data file":
        first, last = chance.randrange(size), 1 << 62
        places = touched(path, shard, first, last)
        os.truncate(data[shard], first)
        return places
    at = chance.randrange(size)
    places = touched(path, shard, at, at + 1)
    content = bytearray(data[shard].read_bytes())
    content[at] ^= 1 << chance.randrange(8)
    data[shard].write_bytes(content)
    return places


def flipped(chance: random.Random, path: Path, count: int, *, close: bool = False) -> None:
    """Flip bits of a file, `close` ones in one byte."""
    content = bytearray(path.read_bytes())
    first = chance.randrange(8 * len(content))
    places = {first}
    while len(places) < count:
        places.add(
            first // 8 * 8 + chance.randrange(8) if close else chance.randrange(8 * len(content))
        )
    for at in places:
        content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)


def touched(path: Path, shard: int, first: int, last: int) -> set[str]:
    """Return the names of the values that have bytes in a part of a data file, or none at all."""
    try:
        with ckptfmt.open(path) as reader:
            rows = reader._listing()
            return {
                name
                for row, name in enumerate(rows.names)
                for one in rows.selection.stored_values(row)
                if not one["size"]
                or (
                    one["shard"] == shard
                    and one["offset"] < last
                    and one["offset"] + one["size"] > first
                )
            }
    except CorruptError:
        return set()
