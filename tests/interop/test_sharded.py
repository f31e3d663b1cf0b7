# SPDX-License-Identifier: Apache-2.0
"""TensorFlow restores what sharded_save wrote, whole and by slice; what TensorFlow wrote restores
onto meshes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from support.saving import distinct_boxes
from support.team import all_good, run_team

from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save

from . import table
from .generate import random_value, seed_from_environment
from .oracle import Oracle
from .values import CODES, KINDS, Value, from_array


def random_layout(rng: random.Random, mesh: Mesh, rank: int) -> Layout:
    names: list[str | None] = [*mesh.dim_names, None, None]
    rng.shuffle(names)
    return Layout([*names, None, None, None][:rank], mesh)


def local_parts(
    whole: dict[str, Value], layouts: dict[str, Layout], devices: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in whole.items():
        boxes = {d: layouts[name].slice_of(value.shape, d) for d in devices}
        found[name] = {d: value.array()[(*key(box), ...)] for d, box in boxes.items()}
    return found


def key(box: Any) -> tuple[slice, ...]:
    pairs = zip(box.start, box.shape, strict=True)
    return tuple(slice(start, start + length) for start, length in pairs)


def spec_of(box: Any, *, as_stored: bool) -> str:
    """The box as text: as DTensor asks for it, or with the whole dimensions spelled out as well."""
    triples = zip(box.start, box.shape, box.full_shape, strict=True)
    extents = ":".join(
        "-" if as_stored and length == size else f"{start},{length}"
        for start, length, size in triples
    )
    return f"{' '.join(map(str, box.full_shape))} {extents}"


def random_values(rng: random.Random, count: int) -> dict[str, Value]:
    features: Counter[str] = Counter()
    found = {}
    for number in range(count):
        shape = tuple(rng.choices(range(1, 8), k=rng.randint(0, 4)))
        found[f"t/{number}"] = random_value(rng, rng.choice(CODES), shape, features)
    return found


def test_tensorflow_restores(oracle: Oracle, tmp_path: Path) -> None:
    seed = seed_from_environment()
    rng = random.Random(f"sharded {seed}")
    wholes = slices = 0
    for number in range(40):
        whole = random_values(rng, 25)
        mesh = Mesh([(name, rng.choice((1, 2, 3))) for name in "xy"])
        layouts = {name: random_layout(rng, mesh, len(v.shape)) for name, v in whole.items()}
        other = Mesh([(name, rng.choice((1, 2, 3))) for name in "xy"])
        world_size = rng.randint(1, 4)
        prefix = tmp_path / f"{number}" / "ck"
        level = rng.choice(("v2", "v2+"))

        def save(
            team: Any,
            whole: dict[str, Value] = whole,
            layouts: dict[str, Layout] = layouts,
            mesh: Mesh = mesh,
            prefix: Path = prefix,
            level: str = level,
        ) -> None:
            devices = mesh.local_devices(team.rank, team.world_size)
            tensors = local_parts(whole, layouts, devices)
            sharded_save(prefix, tensors, layouts, team, level=level, durability="none")

        all_good(run_team(world_size, save))
        assert oracle.list_variables(prefix) == [
            (name.encode(), value.code, value.shape) for name, value in sorted(whole.items())
        ]
        names, specs, expected = [], [], []
        for name, value in whole.items():
            stored = [
                box
                for box in distinct_boxes(layouts[name], value.shape)
                if 0 not in box.shape and box.shape != value.shape
            ]
            stitchable = KINDS[value.code].stitchable
            if stitchable or not stored:
                names.append(name.encode())
                specs.append(b"")
                expected.append(value)
                wholes += bool(stored)
            boxes = [(box, True) for box in stored]
            if stitchable and value.shape:
                layout = random_layout(rng, other, len(value.shape))
                cut = distinct_boxes(layout, value.shape)
                boxes += [(box, False) for box in cut if 0 not in box.shape]
            for box, as_stored in boxes:
                names.append(name.encode())
                specs.append(spec_of(box, as_stored=as_stored).encode())
                expected.append(value.box((*key(box), ...)))
                slices += 1
        codes = [value.code for value in expected]
        assert oracle.restore_v2(prefix, names, specs, codes) == expected, (number, seed)
    print("tensors stitched whole:", wholes, "slices:", slices)
    assert min(wholes, slices) > 100


def test_bytes_are_those_of_a_merge_by_tensorflow(oracle: Oracle, tmp_path: Path) -> None:
    """Each process' bundle as SaveV2 with DTensor's slices, merged by MergeV2Checkpoints."""
    whole = from_array(1, np.arange(40, dtype=np.float32).reshape(8, 5))
    same = from_array(9, np.arange(3, dtype=np.int64))
    mesh = Mesh({"x": 4})
    layouts = {"w": Layout(["x", None], mesh), "same": Layout.replicated(mesh, 1)}

    def save(team: Any) -> None:
        devices = mesh.local_devices(team.rank, team.world_size)
        tensors = local_parts({"w": whole, "same": same}, layouts, devices)
        sharded_save(tmp_path / "ours" / "ck", tensors, layouts, team, level="v2")

    all_good(run_team(4, save))
    prefixes = []
    for rank in range(4):
        prefix = tmp_path / "theirs" / f"part-{rank}"
        rows = slice(2 * rank, 2 * rank + 2)
        names, specs, values = [b"w"], [f"8 5 {2 * rank},2:-".encode()], [whole.box((rows,))]
        if rank == 0:
            names, specs, values = [b"same", *names], [b"", *specs], [same, *values]
        prefix.parent.mkdir(exist_ok=True)
        oracle.save_v2(prefix, names, specs, values)
        prefixes.append(prefix)
    oracle.merge_v2_checkpoints(prefixes, tmp_path / "theirs" / "ck")
    for name in ("index", *(f"data-{rank:05d}-of-00004" for rank in range(4))):
        ours, theirs = (tmp_path / side / f"ck.{name}" for side in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes(), name
    assert table.shard_count(tmp_path / "ours" / "ck") == 4


def test_checkpoints_of_tensorflow(oracle: Oracle, tmp_path: Path) -> None:
    """tf.train.Checkpoint's, onto a mesh: names with their suffixes, one of them in slices."""
    weights = from_array(1, np.arange(35, dtype=np.float32).reshape(7, 5))
    half = from_array(19, np.arange(6, dtype=np.float16))
    oracle.save_checkpoint(tmp_path / "ck", {"w": weights, "half": half})
    names = [name for name, _, _ in oracle.list_variables(tmp_path / "ck")]
    mesh = Mesh([("x", 2), ("y", 2)])
    layouts: dict[str, Layout | None] = {
        "w/.ATTRIBUTES/VARIABLE_VALUE": Layout(["y", "x"], mesh),
        "half/.ATTRIBUTES/VARIABLE_VALUE": Layout(["x"], mesh),
        "_CHECKPOINTABLE_OBJECT_GRAPH": None,
    }
    assert set(layouts) <= {name.decode() for name in names}
    results = all_good(
        run_team(3, lambda team: sharded_restore(tmp_path / "ck", {**layouts}, team))
    )
    seen = 0
    for found in results:
        assert found["_CHECKPOINTABLE_OBJECT_GRAPH"].shape == ()
        for name, value in zip(layouts, (weights, half), strict=False):
            layout = layouts[name]
            assert layout is not None
            for device, array in found[name].items():
                box = layout.slice_of(value.shape, device)
                assert from_array(value.code, array) == value.box((*key(box), ...))
                seen += 1
    assert seen == 8
