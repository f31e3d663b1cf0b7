# SPDX-License-Identifier: Apache-2.0
"""Orbax managers and checkpointers that save in this package's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.jax.orbax import Handler, registry


def train_state() -> Any:
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    sharding = NamedSharding(mesh, PartitionSpec("a", "b"))
    params = {"w": jax.device_put(np.arange(64.0, dtype=np.float32).reshape(8, 8), sharding)}
    state = {"params": params, "opt": optax.adam(0.1).init(params), "key": jax.random.key(1)}
    return jax.device_put({**state, "step": jnp.int32(3)})


def equal(one: Any, other: Any) -> bool:
    same = jax.tree.map(lambda a, b: bool((a == b).all()), one, other)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(jax.tree.leaves(same))


def test_a_manager(tmp_path: Path) -> None:
    state = train_state()
    everywhere = NamedSharding(state["params"]["w"].sharding.mesh, PartitionSpec())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), state
    )
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(tmp_path, handler_registry=registry(), options=options) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
        found = manager.restore(3, args=ocp.args.StandardRestore(like))
        assert equal(found, state)
        assert found["params"]["w"].sharding == everywhere
        with pytest.raises(InvalidError, match="the item is required"):
            manager.restore(3, args=ocp.args.StandardRestore())
    with ocp.CheckpointManager(tmp_path, handler_registry=registry()) as manager:
        found = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
        assert equal(found, state)
        assert found["params"]["w"].sharding == state["params"]["w"].sharding
    assert len(ckptfmt.load(tmp_path / "3" / "default" / "checkpoint")) == 6


@pytest.mark.parametrize(
    "args",
    [
        ocp.args.PyTreeSave({"w": jnp.ones(2)}, save_args={"w": ocp.SaveArgs(dtype=jnp.bfloat16)}),
        ocp.args.StandardSave({"w": jnp.ones(2)}, save_args={"w": ocp.SaveArgs(dtype=jnp.int8)}),
        ocp.args.StandardRestore({"w": jnp.ones(2)}, strict=False),
        ocp.args.PyTreeRestore(
            {"w": jnp.ones(2)}, restore_args={"w": ocp.ArrayRestoreArgs(dtype=jnp.bfloat16)}
        ),
        ocp.args.PyTreeRestore({"w": jnp.ones(2)}, restore_args={"w": {"dtype": jnp.bfloat16}}),
        ocp.args.PyTreeRestore({"w": jnp.ones(2)}, transforms={}),
    ],
    ids=lambda args: type(args).__name__,
)
def test_arguments_that_would_not_be_followed(tmp_path: Path, args: Any) -> None:
    handler = Handler()
    handler.save(tmp_path, {"w": jnp.ones(2)})
    with pytest.raises(InvalidError) as caught:
        (handler.save if hasattr(args, "save_args") else handler.restore)(tmp_path, args=args)
    assert caught.value.argument in ("save_args", "restore_args", "strict", "transforms")


def test_arguments_that_repeat_the_item(tmp_path: Path) -> None:
    state, handler = train_state(), Handler()
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(), state)
    handler.save(tmp_path, args=ocp.args.PyTreeSave(state, save_args=save_args))
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    for item in (state, like):
        restore_args = ocp.checkpoint_utils.construct_restore_args(item)
        found = handler.restore(
            tmp_path, args=ocp.args.PyTreeRestore(item, restore_args=restore_args)
        )
        assert equal(found, state)


def test_several_items_and_a_checkpointer(tmp_path: Path) -> None:
    state = train_state()
    both = ocp.args.Composite(state=ocp.args.PyTreeSave(state), data=ocp.args.JsonSave({"a": 1}))
    with ocp.CheckpointManager(tmp_path, handler_registry=registry(level="v2")) as manager:
        manager.save(0, args=both)
        manager.wait_until_finished()
        wanted = ocp.args.Composite(
            state=ocp.args.PyTreeRestore(state), data=ocp.args.JsonRestore()
        )
        found = manager.restore(0, args=wanted)
        assert equal(found.state, state)
        assert found.data == {"a": 1}
    checkpointer = ocp.Checkpointer(Handler())
    checkpointer.save(tmp_path / "one", state)
    assert equal(checkpointer.restore(tmp_path / "one", state), state)
    assert checkpointer.metadata(tmp_path / "one") is not None
    checkpointer.close()
