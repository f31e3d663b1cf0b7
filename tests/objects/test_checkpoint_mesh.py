# SPDX-License-Identifier: Apache-2.0
"""Checkpoint of many processes: objects with arrays on meshes, saved by some, restored by others.

Threads stand for the processes; `test_processes` has saves in the background by real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.team import all_good, run_team

import ckptfmt
from ckptfmt._base.names import VALUE_SUFFIX as VALUE
from ckptfmt.errors import GenerationGoneError, InvalidError, StorageError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.policies import MaxShardSizePolicy
from ckptfmt.saving.specs import SaveSpec
from ckptfmt.sharded.coordinator import SingleProcess

FOUR, TWO, THREE = Mesh({"x": 4}), Mesh({"x": 2}), Mesh({"x": 3})
KERNEL, BIAS = np.arange(60.0).reshape(10, 6), np.arange(6.0)


def layouts(mesh: Mesh) -> dict[str, Layout]:
    return {"model/kernel": Layout(["x", None], mesh), "model/bias": Layout([None], mesh)}


def local(layout: Layout, whole: Any, member: Any) -> dict[str, Any]:
    """The local arrays of a process, each its own copy."""
    found = {}
    for device in layout.mesh.local_devices(member.rank, member.world_size):
        box = layout.slice_of(whole.shape, device)
        index = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
        found[device] = whole[index].copy()
    return found


def made(member: Any, mesh: Mesh, factor: float = 1) -> dict[str, Any]:
    """The objects of a process."""
    by_path = layouts(mesh)
    model = {
        "kernel": local(by_path["model/kernel"], KERNEL * factor, member),
        "bias": local(by_path["model/bias"], BIAS * factor, member),
        "scale": np.full(3, float(factor)),
    }
    return {"model": model, "step": np.array(int(7 * factor))}


def checkpoint_of(member: Any, mesh: Mesh, factor: float = 1) -> ckptfmt.Checkpoint:
    objects = made(member, mesh, factor)
    return ckptfmt.Checkpoint(coordinator=member, layouts=layouts(mesh), **objects)


def saved(prefix: Path, count: int = 2, mesh: Mesh = TWO, **options: Any) -> list[str]:
    """Save with this many processes; what each returned."""
    chosen = ckptfmt.tf.CheckpointOptions(durability="none", **options)

    def work(member: Any) -> str:
        return checkpoint_of(member, mesh).save(prefix, chosen)

    return all_good(run_team(count, work))


def assert_values(checkpoint: Any, member: Any, mesh: Mesh, factor: float) -> None:
    wanted = made(member, mesh, factor)
    for name in ("kernel", "bias"):
        assert checkpoint.model[name].keys() == wanted["model"][name].keys()
        for device, array in wanted["model"][name].items():
            np.testing.assert_array_equal(checkpoint.model[name][device], array)
    np.testing.assert_array_equal(checkpoint.model["scale"], wanted["model"]["scale"])
    assert checkpoint.step == wanted["step"]


def refused(outcomes: list[Any], kind: type[BaseException], message: str) -> None:
    for outcome in outcomes:
        with pytest.raises(kind, match=message):
            raise outcome


# ---- what is saved and restored ------------------------------------------------------------------


def test_saved_by_four_and_restored_by_two_three_and_one(tmp_path: Path) -> None:
    assert saved(tmp_path / "ck", 4, FOUR) == [str(tmp_path / "ck-1")] * 4
    assert ckptfmt.latest_checkpoint(tmp_path) == str(tmp_path / "ck-1")
    with ckptfmt.open(tmp_path / "ck-1") as reader:
        kernel = reader[f"model/kernel/{VALUE.strip('/')}"]
        assert [len(kernel.slices), kernel.shape] == [4, KERNEL.shape]

    def again(mesh: Mesh) -> Callable[[Any], None]:
        def work(member: Any) -> None:
            checkpoint = checkpoint_of(member, mesh, 0)
            kernel = checkpoint.model["kernel"]
            arrays = list(kernel.values())
            checkpoint.restore(tmp_path / "ck-1").assert_consumed()
            assert_values(checkpoint, member, mesh, 1)
            assert list(map(id, checkpoint.model["kernel"].values())) == list(map(id, arrays))
            assert checkpoint.save_counter == 1
            assert checkpoint.save(tmp_path / f"again{mesh.size}") == str(
                tmp_path / f"again{mesh.size}-2"
            )

        return work

    all_good(run_team(2, again(TWO)))
    all_good(run_team(3, again(THREE)))
    whole = {"kernel": KERNEL * 0, "bias": BIAS * 0, "scale": np.zeros(3)}
    alone = ckptfmt.Checkpoint(model=whole, step=np.array(0))
    for prefix in ("ck-1", "again2-2", "again3-2"):
        whole["kernel"][:] = 0
        alone.restore(tmp_path / prefix).assert_consumed()
        np.testing.assert_array_equal(whole["kernel"], KERNEL)


def test_more_processes_than_devices_and_empty_blocks(tmp_path: Path) -> None:
    short = Layout(["x"], FOUR)
    values = np.arange(2.0)

    def save(member: Any) -> None:
        arrays = local(short, values, member)
        ckptfmt.Checkpoint(coordinator=member, layouts={"a": short}, a=arrays).write(tmp_path / "c")

    def restore(member: Any) -> None:
        arrays = local(short, values * 0, member)
        checkpoint = ckptfmt.Checkpoint(coordinator=member, layouts={"a": short}, a=arrays)
        checkpoint.read(tmp_path / "c").assert_consumed()
        for device, array in local(short, values, member).items():
            np.testing.assert_array_equal(arrays[device], array)

    all_good(run_team(5, save))
    all_good(run_team(5, restore))
    all_good(run_team(2, restore))


def test_restores_a_checkpoint_of_one_process_and_one_without_a_graph(tmp_path: Path) -> None:
    whole = {"kernel": KERNEL, "bias": BIAS, "scale": np.ones(3)}
    ckptfmt.Checkpoint(model=whole, step=np.array(7)).write(tmp_path / "whole")
    named = {f"model/{name}": array for name, array in whole.items()}
    ckptfmt.save(tmp_path / "names", {**named, "step": np.array(7)})

    def work(member: Any) -> None:
        for prefix in ("whole", "names"):
            checkpoint = checkpoint_of(member, TWO, 0)
            checkpoint.read(tmp_path / prefix).assert_consumed()
            assert_values(checkpoint, member, TWO, 1)

    all_good(run_team(2, work))


def test_arrays_that_cannot_be_written_are_replaced_and_casts_apply(tmp_path: Path) -> None:
    saved(tmp_path / "ck")

    def work(member: Any) -> None:
        checkpoint = checkpoint_of(member, TWO, 0)
        arrays = checkpoint.model["kernel"]
        for array in arrays.values():
            array.flags.writeable = False
        bias = checkpoint.model["bias"]
        bias.update({device: array.astype(np.float32) for device, array in bias.items()})
        checkpoint.restore(tmp_path / "ck-1", cast=True).assert_consumed()
        assert_values(checkpoint, member, TWO, 1)
        assert {array.dtype for array in bias.values()} == {np.dtype(np.float32)}

    all_good(run_team(2, work))


class Adam:
    """An optimizer with a slot for each variable, which is on the mesh as well."""

    def __init__(self, slots: list[tuple[Any, Any]]) -> None:
        self.slots = slots

    def get_slot_names(self) -> list[str]:
        return ["m"]

    def get_slot(self, variable: Any, name: str) -> Any:
        return next((slot for one, slot in self.slots if one is variable), None)


def test_slots_and_objects_that_are_attached_later(tmp_path: Path) -> None:
    def objects(member: Any, factor: float) -> dict[str, Any]:
        model = made(member, TWO, factor)["model"]
        slot = local(layouts(TWO)["model/kernel"], KERNEL * factor + 1, member)
        return {"model": model, "optimizer": Adam([(model["kernel"], slot)])}

    def save(member: Any) -> None:
        given = objects(member, 1)
        ckptfmt.Checkpoint(coordinator=member, layouts=layouts(TWO), **given).write(tmp_path / "c")

    def restore(member: Any) -> None:
        given = objects(member, 0)
        checkpoint = ckptfmt.Checkpoint(coordinator=member, layouts=layouts(TWO))
        status = checkpoint.read(tmp_path / "c")
        checkpoint.model = given["model"]
        checkpoint.optimizer = given["optimizer"]
        status.assert_consumed()
        wanted = objects(member, 1)
        for one, other in zip(given["optimizer"].slots, wanted["optimizer"].slots, strict=True):
            for here, there in zip(one, other, strict=True):
                for device, array in there.items():
                    np.testing.assert_array_equal(here[device], array)

    all_good(run_team(2, save))
    with ckptfmt.open(tmp_path / "c") as reader:
        assert len(reader[f"model/kernel/.OPTIMIZER_SLOT/optimizer/m{VALUE}"].slices) == 2
    all_good(run_team(2, restore))


def test_registered_savers_run_in_process_0_and_restore_in_all(tmp_path: Path) -> None:
    restored = []

    class Table:
        def __init__(self, rank: int) -> None:
            self.rank = rank

    def save_fn(trackables: Any, file_prefix: str) -> str:
        (table,) = trackables.values()
        ckptfmt.save(file_prefix, {"rows": np.array([table.rank, 5])})
        return file_prefix

    def restore_fn(trackables: Any, merged_prefix: str) -> None:
        (table,) = trackables.values()
        restored.append((table.rank, ckptfmt.load(merged_prefix)["rows"].tolist()))

    name = "MeshTable"
    ckptfmt.tf.register_checkpoint_saver(
        name=name,
        predicate=lambda one: isinstance(one, Table),
        save_fn=save_fn,
        restore_fn=restore_fn,
    )

    def work(member: Any) -> None:
        checkpoint = ckptfmt.Checkpoint(coordinator=member, table=Table(member.rank))
        checkpoint.write(tmp_path / "ck")
        checkpoint.read(tmp_path / "ck").assert_consumed()

    all_good(run_team(3, work))
    assert sorted(restored) == [(rank, [0, 5]) for rank in range(3)]
    assert all("Custom" not in path.name for path in tmp_path.iterdir())
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ck"}


def test_policies_and_callbacks_of_all_processes(tmp_path: Path) -> None:
    called = []
    options = {
        "experimental_sharding_callback": MaxShardSizePolicy(100),
        "experimental_write_callbacks": [called.append],
    }
    saved(tmp_path / "ck", **options)
    assert called == [str(tmp_path / "ck-1")] * 2
    with ckptfmt.open(tmp_path / "ck-1") as reader:
        assert reader.header.num_shards > 4
        sizes = [path.stat().st_size for path in tmp_path.glob("ck-1.data-*")]
        assert sum(size > 100 for size in sizes) == 1, "of the object graph"
        np.testing.assert_array_equal(reader[f"model/kernel{VALUE}"].read(), KERNEL)
    assert ckptfmt.verify(tmp_path / "ck-1").ok


# ---- failures ------------------------------------------------------------------------------------


def test_nothing_is_written_unless_all_processes_can_take_it(tmp_path: Path) -> None:
    saved(tmp_path / "ck")
    checkpoints: dict[int, Any] = {}

    def work(member: Any) -> None:
        checkpoint = checkpoints[member.rank] = checkpoint_of(member, TWO, 0)
        if member.rank == 1:
            kernel = checkpoint.model["kernel"]
            kernel.update({device: array[1:] for device, array in kernel.items()})
        checkpoint.restore(tmp_path / "ck-1")

    outcomes = run_team(2, work)
    refused(outcomes, InvalidError, r"task:1.* of the object at 'model/kernel', .*: shape \[4, 6")
    assert "process 1 of 2 failed" in str(outcomes[0])
    for checkpoint in checkpoints.values():
        assert not checkpoint.model["scale"].any()
        assert not any(array.any() for array in checkpoint.model["kernel"].values())


def test_a_failure_in_one_process_leaves_the_numbers_equal(tmp_path: Path) -> None:
    def work(member: Any) -> str:
        checkpoint = checkpoint_of(member, TWO)
        checkpoint.bad = np.zeros(1)
        if member.rank == 1:
            checkpoint.bad = {"a": np.zeros(1)}
            checkpoint.bad[1] = np.zeros(1)
        with pytest.raises(InvalidError, match="child named 1"):
            checkpoint.save(tmp_path / "ck")
        checkpoint.bad = None
        return checkpoint.save(tmp_path / "ck")

    assert all_good(run_team(2, work)) == [str(tmp_path / "ck-2")] * 2
    assert not list(tmp_path.glob("*temp*"))


def test_a_callback_that_fails_is_raised_in_all_and_the_save_is_not_recorded(
    tmp_path: Path,
) -> None:
    def work(member: Any) -> None:
        def fail() -> None:
            if member.rank == 1:
                raise OSError(5, "callback")

        options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[fail])
        checkpoint_of(member, TWO).save(tmp_path / "ck", options)

    outcomes = run_team(2, work)
    refused(outcomes, OSError, "callback")
    assert isinstance(outcomes[0], StorageError)
    assert not (tmp_path / "checkpoint").exists()
    assert ckptfmt.verify(tmp_path / "ck-1").ok


def test_different_objects_are_refused(tmp_path: Path) -> None:
    def work(member: Any) -> None:
        checkpoint = checkpoint_of(member, TWO)
        if member.rank == 1:
            checkpoint.more = np.zeros(2)
        checkpoint.write(tmp_path / "ck")

    refused(run_team(2, work), InvalidError, "process 0 and process 1 have other .*'more'")
    assert list(tmp_path.iterdir()) == []


def test_replicas_of_any_size_are_compared_where_asked(tmp_path: Path) -> None:
    grid = Mesh({"x": 2, "y": 2})
    shared = Layout(["y"], grid)

    def work(check: bool) -> Callable[[Any], None]:
        def save(member: Any) -> None:
            arrays = local(shared, np.zeros(8 << 17), member)
            if member.rank == 1:
                next(iter(arrays.values()))[5] = 1
            checkpoint = ckptfmt.Checkpoint(coordinator=member, layouts={"a": shared}, a=arrays)
            options = ckptfmt.tf.CheckpointOptions(durability="none", check_replicas=check)
            checkpoint.write(tmp_path / "ck", options)

        return save

    all_good(run_team(2, work(False)))
    message = r"task:0/.*\(process 0\) and .*task:2/.*\(process 1\) hold the same part of it"
    refused(run_team(2, work(True)), InvalidError, message)


def test_large_replicated_tensors_are_compared_where_asked(tmp_path: Path) -> None:
    def work(member: Any) -> None:
        array = np.full(1 << 18, float(member.rank == 2))
        checkpoint = ckptfmt.Checkpoint(coordinator=member, a=array)
        checkpoint.write(tmp_path / "ck")
        options = ckptfmt.tf.CheckpointOptions(check_replicas=True)
        with pytest.raises(InvalidError, match=r"differ between these processes: 0, 1; 2"):
            checkpoint.write(tmp_path / "ck", options)

    all_good(run_team(3, work))


def test_processes_that_find_different_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    saved(tmp_path / "b", check_replicas=True, level="v2")

    def work(member: Any) -> None:
        checkpoint_of(member, TWO).restore(tmp_path / f"{'ab'[member.rank]}-1")

    refused(run_team(2, work), GenerationGoneError, "process 0 and process 1 found different")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layouts": {}}, "layouts need a coordinator"),
        ({"coordinator": 1}, "coordinator must be a Coordinator"),
        ({"coordinator": SingleProcess(), "layouts": 3}, "layouts must be a tree of Layouts"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        ckptfmt.Checkpoint(a=np.zeros(1), **arguments)


class Sliced:
    def __init__(self, given: Any) -> None:
        self.given = given

    def serialize_to_tensors(self) -> Any:
        return {"v": self.given}

    def restore_from_tensors(self, _: Any) -> None:
        pass


def test_layouts_of_what_is_no_array_on_a_mesh(tmp_path: Path) -> None:
    with SingleProcess() as alone:
        one = Mesh({"x": 1})
        cut = {"a": Layout(["x"], TWO)}
        checkpoint = ckptfmt.Checkpoint(coordinator=alone, layouts=cut, a=np.zeros(2))
        with pytest.raises(InvalidError, match=r"is divided by its layout .* not one array"):
            checkpoint.write(tmp_path / "ck")
        checkpoint = ckptfmt.Checkpoint(coordinator=alone, layouts={"b": cut["a"]}, a=np.zeros(2))
        with pytest.raises(InvalidError, match="layouts names 'b', which is not a leaf"):
            checkpoint.write(tmp_path / "ck")
        whole = {"a": Layout([None], one)}
        checkpoint = ckptfmt.Checkpoint(coordinator=alone, layouts=whole, a=np.ones(2))
        checkpoint.write(tmp_path / "ck")
        assert ckptfmt.load(tmp_path / "ck")[f"a{VALUE}"].tolist() == [1, 1]
        half = np.zeros(2)
        for given in ({"4 0,2": half}, SaveSpec(half, "4 0,2", "v")):
            sliced = ckptfmt.Checkpoint(coordinator=alone, a=Sliced(given))
            with pytest.raises(InvalidError) as caught:
                sliced.write(tmp_path / "slices")
            assert caught.value.tensor == "a/.ATTRIBUTES/v"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"options": 5}, "options must be a CheckpointOptions"),
        ({"partial": 5}, "partial must be True or False"),
        ({"strict": 5}, "strict must be"),
        ({"save_path": None}, "the processes restore different things: a checkpoint .*; None"),
    ],
)
def test_arguments_that_are_wrong_in_one_process_end_a_restore_in_all(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    saved(tmp_path / "ck")

    def work(member: Any) -> None:
        given = {"save_path": tmp_path / "ck-1", **(wrong if member.rank else {})}
        checkpoint_of(member, TWO).restore(**given)

    refused(run_team(2, work), InvalidError, message)


def test_nothing_to_restore_in_all_processes() -> None:
    def work(member: Any) -> None:
        status = checkpoint_of(member, TWO).restore(None)
        assert isinstance(status, ckptfmt.objects.status.InitializationOnlyStatus)

    all_good(run_team(2, work))
