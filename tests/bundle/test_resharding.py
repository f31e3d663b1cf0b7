# SPDX-License-Identifier: Apache-2.0
"""Whatever mesh a tensor was saved from, each device of any other mesh gets its slice of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.arrays import CODES, bits, random_array
from support.process import Spent
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded.sharded import sharded_restore, sharded_save

CHUNK = 256 << 10


class Job(NamedTuple):
    """A mesh and the process of each of its devices."""

    mesh: Mesh
    owners: list[int]
    world_size: int

    def devices(self, rank: int) -> list[str]:
        pairs = zip(self.mesh.devices, self.owners, strict=True)
        return [device for device, owner in pairs if owner == rank]


def random_job(chance: random.Random, world_size: int | None = None) -> Job:
    dims = [(name, chance.choice((1, 2, 2, 3))) for name in "xyz"[: chance.randint(1, 3)]]
    mesh = Mesh(dims)
    world_size = world_size or chance.randint(1, 4)
    if chance.random() < 0.5:
        owners = [chance.randrange(world_size) for _ in mesh.devices]
    else:
        owners = [
            next(r for r in range(world_size) if device in mesh.local_devices(r, world_size))
            for device in mesh.devices
        ]
    return Job(mesh, owners, world_size)


def random_layout(chance: random.Random, mesh: Mesh, rank: int) -> Layout:
    names: list[str | None] = [*mesh.dim_names, *[None] * chance.randint(0, 3)]
    chance.shuffle(names)
    return Layout([*names, None, None, None, None][:rank], mesh)


def expected_slice(whole: np.ndarray[Any, Any], layout: Layout, device: str) -> Any:
    """By numpy's slices, which end where the array ends."""
    where = dict(zip(layout.mesh.dim_names, layout.mesh.coordinates(device), strict=True))
    sizes = dict(zip(layout.mesh.dim_names, layout.mesh.shape, strict=True))
    key = []
    for size, name in zip(whole.shape, layout.sharding_specs, strict=True):
        block = size if name is None else -(-size // sizes[name])
        first = 0 if name is None else where[name] * block
        key.append(slice(first, first + block))
    return whole[(*key, ...)]


def local_parts(
    whole: dict[str, Any], layouts: dict[str, Layout | None], job: Job, rank: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, array in whole.items():
        layout = layouts[name]
        if layout is None:
            found[name] = array
            continue
        devices = job.devices(rank)
        found[name] = {device: expected_slice(array, layout, device) for device in devices}
    return found


def check(found: dict[str, Any], whole: dict[str, Any], layouts: dict[str, Layout | None]) -> int:
    """Compares what one process got; gives the number of arrays."""
    count = 0
    assert list(found) == list(layouts)
    for name, layout in layouts.items():
        if layout is None:
            assert bits(found[name]) == bits(whole[name]), name
            count += 1
            continue
        for device, array in found[name].items():
            assert bits(array) == bits(expected_slice(whole[name], layout, device)), (name, device)
            count += 1
    return count


def test_any_layout_to_any_other(tmp_path: Path, seed: int) -> None:
    """At least 2,000 pairs of layouts that both cut the tensor; many tensors share a save."""
    chance = random.Random(seed)
    pairs = sharded = 0
    codes_seen: set[int] = set()
    for number in range(75):
        whole = {
            f"t{i}": random_array(
                chance,
                chance.choice(CODES),
                tuple(chance.choices(range(8), k=chance.randint(0, 4))),
            )
            for i in range(40)
        }
        source = random_job(chance)
        layouts = {
            name: random_layout(chance, source.mesh, array.ndim) if chance.random() < 0.9 else None
            for name, array in whole.items()
        }
        prefix = tmp_path / "ck" if number % 2 else tmp_path / f"{number}" / "ck"
        level = chance.choice(("v2", "v2+"))

        def save(
            coordinator: Any,
            whole: dict[str, Any] = whole,
            layouts: dict[str, Layout | None] = layouts,
            source: Job = source,
            prefix: Path = prefix,
            level: str = level,
        ) -> None:
            tensors = local_parts(whole, layouts, source, coordinator.rank)
            sharded_save(prefix, tensors, layouts, coordinator, level=level, durability="none")

        all_good(run_team(source.world_size, save))
        assert not list(prefix.parent.glob("*_temp_*"))
        for _ in range(2):
            target = random_job(chance)
            wanted = {
                name: random_layout(chance, target.mesh, array.ndim)
                if chance.random() < 0.95
                else None
                for name, array in whole.items()
            }

            def restore(
                coordinator: Any,
                wanted: dict[str, Layout | None] = wanted,
                target: Job = target,
                prefix: Path = prefix,
            ) -> Any:
                devices = target.devices(coordinator.rank)
                return sharded_restore(prefix, wanted, coordinator, devices=devices)

            results = all_good(run_team(target.world_size, restore))
            counts = [check(found, whole, wanted) for found in results]
            outside = sum(layout is None for layout in wanted.values())
            assert sum(counts) == (
                (len(wanted) - outside) * target.mesh.size + outside * target.world_size
            )
            pairs += len(wanted)
            sharded += sum(
                1
                for name, layout in wanted.items()
                if layout and layouts[name] and not layout.is_replicated
            )
        codes_seen.update(reader_codes(prefix))
        assert ckptfmt.verify(prefix).ok
    print("pairs of layouts:", pairs, "sharded:", sharded)
    assert sharded >= 2000
    assert codes_seen == set(CODES)


def reader_codes(prefix: Path) -> set[int]:
    with ckptfmt.open(prefix) as reader:
        return {handle.dtype_code for handle in reader.values()}


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_bytes_read(tmp_path: Path, level: str, seed: int) -> None:
    """Of stored slices above 1 MiB at most the bytes asked for and one chunk at each end of each
    run of them."""
    chance = random.Random(seed)
    whole = np.arange(3 * 1000 * 512, dtype=np.float64).reshape(3000, 512)
    source = Mesh({"x": 3})
    layout = Layout(["x", None], source)
    locals_ = {device: expected_slice(whole, layout, device) for device in source.devices}

    def save(coordinator: Any) -> None:
        sharded_save(tmp_path / "ck", {"w": locals_}, {"w": layout}, coordinator, level=level)

    all_good(run_team(1, save))
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert all(part.nbytes > 1 << 20 for part in reader["w"].slices)
        assert reader["w"].partial_reads_verified == (level == "v2+")
    with Spent() as index_only:
        ckptfmt.open(tmp_path / "ck").close()
    index = index_only.bytes_read + (tmp_path / "ck.index").stat().st_size
    for _ in range(40):
        rows, columns = chance.choice(((4, 1), (7, 1), (2, 2), (1, 2), (50, 1), (16, 4)))
        target = Mesh({"r": rows, "c": columns})
        wanted = Layout(["r" if rows > 1 else None, "c" if columns > 1 else None], target)
        device = chance.choice(target.devices)

        def restore(
            coordinator: Any, wanted: Layout = wanted, device: str = device
        ) -> tuple[int, Any]:
            with Spent() as spent:
                found = sharded_restore(
                    tmp_path / "ck", {"w": wanted}, coordinator, devices=[device]
                )
            return spent.bytes_read, found["w"][device]

        [(read, array)] = all_good(run_team(1, restore))
        assert bits(array) == bits(expected_slice(whole, wanted, device))
        box = wanted.slice_of(whole.shape, device)
        # A run of whole rows is one piece in each stored slice that it meets.
        first, last = box.start[0] // 1000, (box.start[0] + box.shape[0] - 1) // 1000
        runs = last - first + 1 if columns == 1 else box.shape[0]
        assert read <= array.nbytes + 2 * CHUNK * runs + index, (box, read)
        # And of narrow columns never more than the stored slices themselves.
        assert read <= (last - first + 1) * (1000 * 512 * 8) + index + CHUNK
        if level == "v2" and columns == 1:
            assert read <= array.nbytes + index


def test_a_process_reads_only_its_part(tmp_path: Path) -> None:
    """Four processes together read a tensor once, and a replicated one once each."""
    whole = {
        "cut": np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024),
        "same": np.arange(1 << 18, dtype=np.float32),
    }
    ckptfmt.save(tmp_path / "ck", whole, durability="none")
    mesh = Mesh({"x": 8})
    layouts = {"cut": Layout(["x", None], mesh), "same": Layout.replicated(mesh, 1)}
    with Spent() as spent:
        results = all_good(
            run_team(4, lambda team: sharded_restore(tmp_path / "ck", layouts, team))
        )
    for rank, found in enumerate(results):
        devices = list(mesh.local_devices(rank, 4))
        assert [list(part) for part in found.values()] == [devices, devices]
        check(found, whole, {**layouts})
        assert found["same"][devices[0]] is found["same"][devices[1]]
        assert found["cut"][devices[0]] is not found["cut"][devices[1]]
    assert spent.bytes_read <= whole["cut"].nbytes + 4 * whole["same"].nbytes + (64 << 10)


def test_name_based_checkpoints(tmp_path: Path) -> None:
    """A tensor stored whole, one in slices under TensorFlow's names, and one of strings."""
    words = np.array([b"a", b"", b"long " * 20, b"d", b"e"], object)
    full = np.arange(24, dtype=np.float16).reshape(4, 6)
    ckptfmt.save_v2(
        tmp_path / "ck",
        ["plain", "part", "part", "words"],
        ["", "4 6 0,1:-", "4 6 1,3:-", ""],
        [full, full[:1], full[1:], words],
    )
    mesh = Mesh({"x": 3})
    layouts = {
        "plain": Layout(["x", None], mesh),
        "part": Layout([None, "x"], mesh),
        "words": Layout(["x"], mesh),
    }
    whole = {"plain": full, "part": full, "words": words}
    for world_size in (1, 2, 5):
        results = all_good(
            run_team(world_size, lambda team: sharded_restore(tmp_path / "ck", layouts, team))
        )
        assert sum(check(found, whole, {**layouts}) for found in results) == 9


def test_unknown_dtypes_come_whole(tmp_path: Path) -> None:
    """What numpy has no dtype for is given as it is stored, and not cut."""
    payload = np.array([b"x"], object)
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("v", payload, dtype="variant")
    found = all_good(run_team(2, lambda team: sharded_restore(tmp_path / "ck", {"v": None}, team)))
    assert [one["v"].tolist() for one in found] == [[b"x"]] * 2
    mesh = Mesh({"x": 2})
    [got, _] = all_good(
        run_team(
            2,
            lambda team: sharded_restore(tmp_path / "ck", {"v": Layout(["x"], mesh)}, team),
        )
    )
    assert got["v"][mesh.devices[0]].tolist() == [b"x"]
