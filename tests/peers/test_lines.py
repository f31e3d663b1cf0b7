# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/lines/ do what their table says they do."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support.pages import ROOT
from support.ranks import run_ranks

import ckptfmt.torch

PROGRAMS = ROOT / "bench" / "lines"
sys.path.insert(0, str(PROGRAMS))
# DCP says so whenever one process saves.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
SHAPE = (8, 4)  # of the tensor that is read alone


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def program(side: str) -> ModuleType:
    return importlib.import_module(f"with_{side}")


def run_new(where: Path, code: str, environment: dict[str, str]) -> str:
    """What a new process prints, because the environment must be set before the first import."""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# ---- torch ---------------------------------------------------------------------------------------


def torch_run(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}


def torch_step(run: dict[str, Any]) -> float:
    loss = run["model"](torch.randn(16, 4)).square().mean()
    run["optimizer"].zero_grad()
    loss.backward()
    run["optimizer"].step()
    run["scheduler"].step()
    run["step"] += 1
    return loss.item()


TORCH = ["torch_save", "safetensors", "dcp", "ckptfmt_torch"]


@pytest.mark.parametrize("side", TORCH)
def test_weights_and_one_tensor_of_torch(side: str) -> None:
    model, other = torch_run(1)["model"], torch_run(2)["model"]
    program(side).weights(model, other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    alone = "ckptfmt" if side == "ckptfmt_torch" else side
    found = program(alone).one_tensor("0.weight")
    assert found.shape == SHAPE
    assert torch.equal(torch.as_tensor(found), model.state_dict()["0.weight"])


@pytest.mark.parametrize("side", [side for side in TORCH if side != "safetensors"])
def test_training_of_torch(side: str) -> None:
    """Losses after it are equal, bit by bit."""
    run, other = torch_run(1), torch_run(2)
    for _ in range(3):
        torch_step(run)
    if side == "ckptfmt_torch":
        run["random"] = other["random"] = ckptfmt.torch.RandomState()
    program(side).training(run, other)
    state = torch.get_rng_state()
    expected = [torch_step(run) for _ in range(3)]
    torch.set_rng_state(state)
    assert other["step"] == 3
    assert [torch_step(other) for _ in range(3)] == expected
    assert other["scheduler"].get_last_lr() == run["scheduler"].get_last_lr()


def test_conversions_of_torch() -> None:
    model = torch_run(1)["model"]
    sides = ["torch_save", "safetensors", "dcp"]
    for side in sides:
        program(side).weights(model, torch_run(2)["model"])
    for side in sides:
        program(side).convert()
    program("ckptfmt").convert()
    assert ckptfmt.tf.checkpoint_exists("converted")
    assert Path("converted.pt").is_file() and Path("converted.safetensors").is_file()
    assert Path("converted", ".metadata").is_file()


def test_sharded_torch(tmp_path: Path) -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[4])
import with_ckptfmt_dcp, with_dcp
from support.dcp_state import check, state
for side in (with_dcp, with_ckptfmt_dcp):
    other = state(True, 1)
    side.sharded(state(False), other)
    check(other, 1)
"""
    run_ranks(tmp_path, 2, program, str(PROGRAMS))
    assert (tmp_path / "sharded" / ".metadata").is_file()
    assert ckptfmt.tf.checkpoint_exists(tmp_path / "sharded")


# ---- JAX -----------------------------------------------------------------------------------------

JAX = ["orbax", "ckptfmt_jax"]


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("side", JAX)
def test_jax(side: str) -> None:
    import jax  # noqa: PLC0415 (after the number of its devices is set)
    import optax  # noqa: PLC0415

    model = {"b": jax.numpy.ones(3), "w": jax.numpy.arange(32.0).reshape(SHAPE)}
    zeros = jax.tree.map(jax.numpy.zeros_like, model)

    def run(params: Any, step: int) -> Any:
        optimizer = optax.adam(0.1).init(params)
        return {"params": params, "opt": optimizer, "step": step, "key": jax.random.key(step)}

    def check(found: Any, wanted: Any) -> None:
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert jax.numpy.array_equal(one, other)

    check(program(side).weights(model, zeros), model)
    if side == "orbax":
        np.testing.assert_array_equal(program(side).one_tensor("w"), model["w"])
    check(program(side).training(run(model, 3), run(zeros, 0)), run(model, 3))


def test_sharded_jax(tmp_path: Path) -> None:
    """From rows to columns, on four devices."""
    program = f"""
import importlib, sys
sys.path.insert(0, {str(PROGRAMS)!r})
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",))
rows, columns = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, "x"))
whole = jnp.arange(32.0).reshape({SHAPE})
state = {{"w": jax.device_put(whole, rows)}}
like = {{"w": jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=columns)}}
for side in {JAX}:
    found = importlib.import_module(f"with_{{side}}").sharded(state, like)
    assert found["w"].sharding.is_equivalent_to(columns, 2)
    assert (found["w"] == whole).all()
    print(side)
"""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert run_new(tmp_path, program, devices).split() == JAX


# ---- Keras ---------------------------------------------------------------------------------------


def test_keras(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import keras
import numpy as np
import with_ckptfmt_keras
model, other = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)]) for _ in range(2))
with_ckptfmt_keras.weights(model, other)
for one, another in zip(model.weights, other.weights, strict=True):
    assert np.array_equal(one, another)
"""
    assert run_new(tmp_path, program, {"KERAS_BACKEND": "torch"}) == ""


# ---- TensorFlow ----------------------------------------------------------------------------------


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="NOT RUN: needs TensorFlow (make interop installs it)",
)
def test_tf_train(tmp_path: Path) -> None:
    # TensorFlow saves the models of its own backend of Keras only.
    environment = {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT / "tests")}
    run_new(tmp_path, "from peers.test_lines import tf_train; tf_train()", environment)


def tf_train() -> None:
    """The test, in a process of its own."""
    import tensorflow as tf  # noqa: PLC0415 (seconds)
    from safetensors.numpy import save_file  # noqa: PLC0415

    def run(value: int) -> dict[str, Any]:
        model = tf.keras.Sequential([tf.keras.layers.Dense(4, kernel_initializer="zeros")])
        model.build((None, 8))
        model.layers[0].kernel.assign_add(tf.fill(SHAPE, float(value)))
        optimizer = tf.keras.optimizers.Adam(0.1 * value)
        optimizer.build(model.trainable_variables)
        rng = tf.random.Generator.from_seed(value)
        return {"model": model, "optimizer": optimizer, "step": tf.Variable(value), "rng": rng}

    side, first, second = program("tf_train"), run(1), run(2)
    side.weights(first["model"], second["model"])
    expected = np.ones(SHAPE)
    np.testing.assert_array_equal(second["model"].layers[0].kernel, expected)
    names = [name for name, _ in tf.train.list_variables("weights")]
    (name,) = [name for name in names if "kernel" in name]
    np.testing.assert_array_equal(side.one_tensor(name), expected)
    second = run(2)
    side.training(first, second)
    assert second["step"] == 1 and second["rng"].uniform([]) == first["rng"].uniform([])
    assert second["optimizer"].learning_rate == first["optimizer"].learning_rate
    np.testing.assert_array_equal(second["model"].layers[0].kernel, expected)
    save_file({"x": np.arange(3)}, "weights.safetensors")
    side.convert()
    np.testing.assert_array_equal(tf.train.load_variable("converted", "x"), np.arange(3))
