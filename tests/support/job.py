# SPDX-License-Identifier: Apache-2.0
"""One process of a job that saves and restores a model on a mesh: the program that tests with real
processes start.

    python job.py ENGINE PLACE RANK WORLD_SIZE ACTION...

ENGINE and PLACE: "pipes" or "torch", and a path where the processes meet; or "mpi", whose launcher
gives the rank, so that PLACE, RANK and WORLD_SIZE mean nothing. Actions, in order:

    save=PREFIX=MODEL     saves the model of this number
    async=PREFIX=MODEL    the same in the background, from arrays that it changes at once
    finish                waits for that
    restore=PREFIX=MODEL  restores and compares every slice of this process
    again=PREFIX          saves what was restored
    manage=DIR            makes a manager of a Checkpoint of the model, for the next three
    keep=MODEL            saves the model with it
    later=MODEL           the same in the background, from arrays that it changes at once
    latest=MODEL          restores the newest checkpoint and compares; without MODEL, prints which
    barrier=PATH=N        waits for the processes of all jobs, N of them, numbered by `gate`
    gate=NUMBER           this process's number at the next such barrier
    die=MOMENT            kills this process at a moment of the next save: see `die`
    start                 waits for the other processes of the job
    ready                 prints a line and goes on

A process that failed prints the class of what was raised and its text, and ends with status 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ckptfmt
from ckptfmt import CkptfmtError
from ckptfmt.bundle.staging import Staging
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded import save_async as sharded_save_async
from ckptfmt.sharded import sharded
from ckptfmt.sharded.coordinator import Coordinator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from pipes import PipeCoordinator

# How each tensor is partitioned over a mesh of ("x", one a process) and ("y", 2).
SPECS: dict[str, list[str | None]] = {
    "rows": ["x", None],
    "columns": [None, "y"],
    "both": ["x", "y"],
    "turned": ["y", "x"],
    "short": ["x"],
    "words": ["x", None],
    "half": ["y", None, "x"],
    "brain": [None, "x"],
    "bool": ["x"],
    "everywhere": [None, None],
    "scalar": [],
    "nothing": ["x", None],
}


def model(number: int) -> dict[str, Any]:
    """The tensors of one model. All differ from those of another number, element by element."""
    count = np.arange(2000)
    words = np.array([b"%d " % number * (one % 5 + 1) for one in range(28)], dtype=object)
    return {
        "rows": (count[:301] * 1000 + number).astype(np.int64).reshape(43, 7),
        "columns": (count[:300] + number / 128).astype(np.float32).reshape(20, 15),
        "both": (count[:1829] * 0.5 + number).astype(np.float64).reshape(31, 59),
        "turned": ((count[:221] + number) % 256).astype(np.uint8).reshape(13, 17),
        "short": (count[:2] + number).astype(np.int32),
        "words": words.reshape(14, 2),
        "half": (count[:1650] % 7 + number).astype(np.float16).reshape(11, 10, 15),
        "brain": (count[:110] % 3 + number).astype(ml_dtypes.bfloat16).reshape(5, 22),
        "bool": (count[:101] + number) % 2 == 0,
        "everywhere": (count[:12] + number).astype(np.complex64).reshape(3, 4),
        "scalar": np.array(number, np.uint16),
        "nothing": np.zeros((0, 4), np.float32),
    }


def layouts(world_size: int) -> dict[str, Layout]:
    mesh = Mesh({"x": world_size, "y": 2})
    return {name: Layout(spec, mesh) for name, spec in SPECS.items()}


def parts(number: int, rank: int, world_size: int) -> dict[str, dict[str, Any]]:
    """What one process holds of a model."""
    found = {}
    for name, layout in layouts(world_size).items():
        whole = model(number)[name]
        found[name] = {
            device: whole[_box(layout, whole.shape, device)]
            for device in layout.mesh.local_devices(rank, world_size)
        }
    return found


def _box(layout: Layout, shape: tuple[int, ...], device: str) -> tuple[slice, ...]:
    box = layout.slice_of(shape, device)
    return tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))


def compare(found: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for name, devices in wanted.items():
        assert found[name].keys() == devices.keys(), name
        for device, array in devices.items():
            assert found[name][device].dtype == array.dtype, (name, device)
            np.testing.assert_array_equal(found[name][device], array, f"{name} of {device}")


def die(moment: str) -> None:
    """Kills this process in the next save: "add:N" before it writes its tensor N (from 0),
    "commit" when all its tensors are written, "gather:N", "broadcast:N" before operation N of the
    kind, "gathered:N", "broadcasted:N" after it, "merge" before the merge and "merged" after it."""
    kind, _, number = moment.partition(":")
    left = [int(number or 0)]

    def now() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def around(owner: Any, name: str, before: bool) -> None:
        usual: Callable[..., Any] = getattr(owner, name)

        def deadly(*arguments: Any, **options: Any) -> Any:
            if before:
                now()
            result = usual(*arguments, **options)
            if not before:
                now()
            return result

        setattr(owner, name, deadly)

    if kind == "add":
        # Small tensors are written many at once: one at a time, then.
        sharded.BATCH_BYTES = 0
        around(sharded.Writer, "_add", before=True)
    elif kind == "commit":
        around(sharded.Writer, "commit", before=True)
    elif kind in ("merge", "merged"):
        around(Staging, "merge", before=kind == "merge")
    else:
        name = "gather" if kind.startswith("gather") else "broadcast"
        around(PipeCoordinator, name, before=kind == name)


def connect(engine: str, place: str, rank: int, world_size: int) -> Coordinator:
    if engine == "pipes":
        return PipeCoordinator(place, rank, world_size, timeout=600)
    if engine == "mpi":
        from ckptfmt.mpi import MPICoordinator  # noqa: PLC0415 (only this engine needs it)

        return MPICoordinator(timeout=60)
    import torch.distributed  # noqa: PLC0415 (only this engine needs it)

    from ckptfmt.torch.coordinator import TorchCoordinator  # noqa: PLC0415

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=world_size
    )
    return TorchCoordinator(timeout=60)


def begin(
    prefix: str, tensors: dict[str, dict[str, Any]], coordinator: Coordinator
) -> ckptfmt.types.SaveFuture:
    """Begins a save in the background, and changes the arrays."""
    own = {
        name: {device: np.array(array) for device, array in devices.items()}
        for name, devices in tensors.items()
    }
    mine = layouts(coordinator.world_size)
    future = sharded_save_async(prefix, own, mine, coordinator, durability="rename")
    for devices in own.values():
        for array in devices.values():
            array[...] = b"" if array.dtype == object else 0
    return future


class Managed:
    """A manager of a Checkpoint of all processes, and what is done with it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    def parts(self, number: int) -> dict[str, dict[str, Any]]:
        return parts(number, self.coordinator.rank, self.coordinator.world_size)

    def fill(self, number: int) -> None:
        tensors = self.parts(number)
        for name, devices in self.manager.checkpoint.model.items():
            for device, array in devices.items():
                array[...] = tensors[name][device]

    def do(self, verb: str, what: str = "") -> None:
        if verb == "manage":
            model = {
                name: {device: np.array(array) for device, array in devices.items()}
                for name, devices in self.parts(0).items()
            }
            every = layouts(self.coordinator.world_size)
            by_path = {f"model/{name}": layout for name, layout in every.items()}
            checkpoint = ckptfmt.Checkpoint(
                coordinator=self.coordinator, layouts=by_path, model=model
            )
            self.manager = ckptfmt.CheckpointManager(
                checkpoint, what, 2, options=ckptfmt.tf.CheckpointOptions(durability="rename")
            )
        elif verb == "keep":
            self.fill(int(what))
            self.manager.save()
        elif verb == "later":
            self.fill(int(what))
            saving = self.manager.save_async()
            self.fill(0)
            assert saving is not None
            saving.result(600)
        else:
            self.manager.restore_latest()
            found = self.manager.checkpoint.model
            number = int(what or next(iter(found["scalar"].values())))
            compare(found, self.parts(number))
            if not what:
                print(number, flush=True)


def run(coordinator: Coordinator, actions: list[str]) -> None:
    rank, world_size = coordinator.rank, coordinator.world_size
    mine, restored, gate = layouts(world_size), {}, 0
    managed = Managed(coordinator)
    simple: dict[str, Callable[[], object]] = {
        "start": lambda: coordinator.barrier("all have started"),
        "ready": lambda: print("ready", flush=True),
    }
    for action in actions:
        verb, *rest = action.split("=")
        if verb == "save":
            tensors = parts(int(rest[1]), rank, world_size)
            sharded_save(rest[0], tensors, mine, coordinator, durability="rename")
        elif verb in ("manage", "keep", "later", "latest"):
            managed.do(verb, *rest)
        elif verb in simple:
            simple[verb]()
        elif verb == "async":
            saving = begin(rest[0], parts(int(rest[1]), rank, world_size), coordinator)
        elif verb == "finish":
            saving.result(600)
        elif verb == "restore":
            restored = sharded_restore(rest[0], mine, coordinator)
            compare(restored, parts(int(rest[1]), rank, world_size))
        elif verb == "again":
            sharded_save(rest[0], restored, mine, coordinator, durability="rename")
        elif verb == "gate":
            gate = int(rest[0])
        elif verb == "barrier":
            with PipeCoordinator(rest[0], gate, int(rest[1])) as all_jobs:
                all_jobs.barrier("all jobs")
        elif verb == "die":
            die(rest[0])
        else:
            raise SystemExit(f"no action {action!r}")


def main(given: list[str]) -> int:
    engine, place, rank, world_size, *actions = given
    try:
        with connect(engine, place, int(rank), int(world_size)) as coordinator:
            run(coordinator, actions)
    except CkptfmtError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    finally:
        if engine == "torch":
            import torch.distributed  # noqa: PLC0415 (only this engine needs it)

            # Its threads must end before the process does.
            torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
