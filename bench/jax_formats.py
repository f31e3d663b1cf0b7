# SPDX-License-Identifier: Apache-2.0
"""Time of saving and loading a sharded pytree: ckptfmt.jax beside orbax, in one run.

    python bench/jax_formats.py [--smoke]

Eight devices of the CPU; the arrays are sharded over all of them. "restored" reads onto the same
sharding, "other" onto another one. The best of some rounds, and its ratio to ckptfmt.jax.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

import ckptfmt.jax

SMOKE = "--smoke" in sys.argv
SIZE, COUNT, ROUNDS = (64, 4, 1) if SMOKE else (2048, 16, 3)  # 16 arrays of 16 MiB


def state(sharding: Any) -> Any:
    array = np.random.default_rng(0).random((SIZE, SIZE), np.float32)
    return {f"w{number}": jax.device_put(array + number, sharding) for number in range(COUNT)}


def like(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding), tree
    )


def best(function: Callable[[], Any], before: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        before()
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    mesh = jax.make_mesh((8,), ("x",))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("x",), (None, "x")))
    tree = state(rows)
    likes = {"restored": like(tree, rows), "other": like(tree, columns)}
    place = Path(tempfile.mkdtemp(dir=Path.cwd()))
    try:
        checkpointer = ocp.StandardCheckpointer()

        def save_orbax() -> None:
            checkpointer.save(place / "orbax", tree)
            checkpointer.wait_until_finished()

        saves: dict[str, Callable[[], Any]] = {
            "ckptfmt.jax": lambda: ckptfmt.jax.save(place / "ckptfmt" / "c", tree),
            "orbax": save_orbax,
        }
        loads: dict[str, Callable[[Any], Any]] = {
            "ckptfmt.jax": lambda like: ckptfmt.jax.load(place / "ckptfmt" / "c", like),
            "orbax": lambda like: checkpointer.restore(place / "orbax", like),
        }
        print("| job | ckptfmt.jax | orbax | orbax / ckptfmt.jax |\n| --- | --- | --- | --- |")
        for job in ("saved", *likes):
            found = {}
            for side, save in saves.items():
                clear = partial(shutil.rmtree, place / side.partition(".")[0], ignore_errors=True)
                if job == "saved":
                    found[side] = best(save, clear)
                else:
                    found[side] = best(partial(loads[side], likes[job]), lambda: None)
            ours, theirs = found["ckptfmt.jax"], found["orbax"]
            print(f"| {job} | {ours:.3f} s | {theirs:.3f} s | {theirs / ours:.1f} |")
        checkpointer.close()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
