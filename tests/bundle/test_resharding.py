# SPDX-License-Identifier: Apache-2.0
"""Whatever mesh a tensor was saved from, each device of any other mesh gets its slice of it."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.arrays import bits
from support.process import Spent
from support.strategies import count_share, expected_slice, property_test, sharded_tensors, shares
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save

CHUNK = 256 << 10


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


@property_test(25, 5000, st.data(), sharded_tensors(), st.sampled_from(["v2", "v2+"]))
def test_any_layout_to_any_other(
    tmp_path: Path, data: st.DataObject, whole: dict[str, Any], level: str
) -> None:
    source = data.draw(shares(whole), label="saved")
    count_share(source, whole)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        prefix = Path(folder) / "ck"
        if data.draw(st.booleans(), label="over another"):
            ckptfmt.save(prefix, {"older": np.arange(3)}, durability="none")

        def save(team: Any) -> None:
            tensors = source.parts(whole, team.rank)
            sharded_save(prefix, tensors, source.layouts, team, level=level, durability="none")

        all_good(run_team(source.job.world_size, save))
        assert not list(prefix.parent.glob("*_temp_*"))
        report = ckptfmt.verify(prefix)
        assert report.ok, report
        target = data.draw(shares(whole), label="restored")

        def restore(team: Any) -> Any:
            devices = target.job.devices(team.rank)
            return sharded_restore(prefix, target.layouts, team, devices=devices)

        results = all_good(run_team(target.job.world_size, restore))
        count = sum(check(found, whole, target.layouts) for found in results)
        outside = sum(layout is None for layout in target.layouts.values())
        assert count == (
            (len(whole) - outside) * target.job.mesh.size + outside * target.job.world_size
        )


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
        run_team(2, lambda team: sharded_restore(tmp_path / "ck", {"v": Layout(["x"], mesh)}, team))
    )
    assert got["v"][mesh.devices[0]].tolist() == [b"x"]
