# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.jax.Checkpoint in a CheckpointManager. Several processes: test_jax_ranks.py."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jax_ranks import environment
from support.s3 import running

import ckptfmt
import ckptfmt.jax
from ckptfmt import CheckpointManager, CkptfmtWarning, InvalidError, KeepBest, stores
from ckptfmt.cli import main as cli
from ckptfmt.tf import CheckpointOptions

KILLS, KILLS_SLOW = 10, 60
STEPS = 8  # of a run, for each kill

# Every life is a fork of a process in which JAX has not begun to compute.
PROGRAM = """
import hashlib, json, mmap, os, random, signal, struct, sys, time, warnings
import jax, jax.numpy as jnp, numpy as np, optax
import ckptfmt, ckptfmt.jax
from ckptfmt import KeepBest
from ckptfmt.tf import CheckpointOptions

warnings.simplefilter("ignore")  # checkpoints of the steps that a killed life saved are replaced
root, kills, steps, seed = sys.argv[1], *map(int, sys.argv[2:])
shared = mmap.mmap(-1, 8)


def digest(tree):
    keys = lambda one: jax.random.key_data(one) if jax.dtypes.issubdtype(
        getattr(one, "dtype", np.dtype("u1")), jax.dtypes.prng_key) else one
    leaves = [np.asarray(keys(one)) for one in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(one.tobytes() for one in leaves)).hexdigest()


def train(directory, is_async):
    optimizer = optax.adam(0.05)

    @jax.jit
    def update(params, opt, key):
        key, data, dropout = jax.random.split(key, 3)
        x = jax.random.normal(data, (16, 8))

        def loss(params):
            kept = jax.random.bernoulli(dropout, 0.8, (16, 8))
            return jnp.mean((jnp.where(kept, x, 0) @ params["w"] + params["b"] - x[:, :3]) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        changes, opt = optimizer.update(gradient, opt)
        return optax.apply_updates(params, changes), opt, key, value

    params = {"w": jnp.ones((8, 3)), "b": jnp.zeros(3)}
    checkpoint = ckptfmt.jax.Checkpoint(
        {"params": params, "opt": optimizer.init(params), "key": jax.random.key(7), "step": 0,
         "losses": np.zeros(steps), "large": jnp.zeros(1 << 16)},
        options=CheckpointOptions(durability="rename"))
    manager = ckptfmt.CheckpointManager(
        checkpoint, directory, 3, keep_best=KeepBest("loss", mode="min"))
    manager.restore_or_initialize()
    digests = {}
    while (tree := checkpoint.tree)["step"] < steps:
        params, opt, key, loss = update(tree["params"], tree["opt"], tree["key"])
        losses = tree["losses"].copy()
        losses[tree["step"]] = loss
        step = tree["step"] + 1
        checkpoint.tree = {"params": params, "opt": opt, "key": key, "step": step,
                           "losses": losses, "large": tree["large"] + loss}
        save = manager.save_async if is_async else manager.save
        save(step, metrics={"loss": float(loss)})
        digests[step] = digest(checkpoint.tree)
        shared[:] = struct.pack("<q", step)
    manager.sync()
    final = {"digest": digest(checkpoint.tree), "best": manager.best_checkpoint,
             "managed": manager.checkpoints, "best_step": int(np.argmin(tree["losses"])) + 1}
    manager.checkpoint.restore(manager.best_checkpoint)
    final["best_digest"] = digest(checkpoint.tree)
    return {**final, "digests": digests}


def life(directory, is_async):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = train(directory, is_async)
            os.write(writing, json.dumps(result).encode())
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    return child, reading


def step_now():
    return struct.unpack("<q", shared[:])[0]


def end(child, reading):
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


whole = end(*life(root + "/whole", False))
shared[:] = struct.pack("<q", 0)
chance, killed = random.Random(seed), 0
while killed < kills:
    at = min(step_now() + chance.randrange(1, 4), steps)
    child, reading = life(root + "/killed", killed % 2 == 1)
    while step_now() < at and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.0001)
    time.sleep(chance.random() * 0.006)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it came to its end"
    os.close(reading)
    killed += 1
shared[:] = struct.pack("<q", 0)
print(json.dumps({"whole": whole, "killed": end(*life(root + "/killed", True)), "kills": killed}))
"""


@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_SLOW, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on(kills: int, tmp_path: Path, seed: int) -> None:
    """Sync and async saves, in turn: what comes out is bit for bit that of a run that nothing
    ended, and the best checkpoint stays."""
    command = [sys.executable, "-c", PROGRAM, tmp_path, kills, STEPS * kills, seed]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment(1), check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    whole, killed = found["whole"], found["killed"]
    assert found["kills"] == kills
    assert killed["digest"] == whole["digest"]
    best = str(killed["best_step"])
    assert killed["best_step"] == whole["best_step"]
    assert killed["best_digest"] == whole["best_digest"] == whole["digests"][best]
    for run in (whole, killed):
        assert Path(run["best"]).name == f"ckpt-{best}"
        newest = [f"ckpt-{step}" for step in range(STEPS * kills - 2, STEPS * kills + 1)]
        assert [Path(one).name for one in run["managed"]][-3:] == newest
        assert {Path(one).name for one in run["managed"]} == {*newest, f"ckpt-{best}"}


def state_of(value: float) -> dict[str, Any]:
    return {"w": [jnp.full(4, value), None], "key": jax.random.key(int(value))}


def test_commands_on_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """latest, verify -r, report, prune and clean know what a manager saved of a pytree."""
    checkpoint = ckptfmt.jax.Checkpoint(state_of(0))
    directory = tmp_path / "run"
    best = KeepBest("loss", mode="min")
    manager = CheckpointManager(checkpoint, directory, max_to_keep=3, keep_best=best)
    for step in range(1, 7):
        checkpoint.tree = state_of(step)
        manager.save(metrics={"loss": abs(step - 2)})
    kept = [f"ckpt-{step}" for step in (2, 4, 5, 6)]
    assert [Path(one).name for one in manager.checkpoints] == kept
    for command in (
        ["verify", "-r", directory],
        ["report", directory, "-o", tmp_path / "report.html"],
        ["report", directory / "ckpt-6", "-o", tmp_path / "one.html"],
        ["clean", directory],
        ["latest", directory],
    ):
        assert cli([*map(str, command)]) == 0, command
    assert capsys.readouterr().out.splitlines()[-1] == str(directory / "ckpt-6")
    assert "JAX" in (tmp_path / "one.html").read_text()
    assert cli(["prune", str(directory), "--keep", "1"]) == 0
    assert sorted(one.stem for one in directory.glob("*.index")) == ["ckpt-2", "ckpt-6"]
    found = ckptfmt.jax.load(directory / "ckpt-6")
    assert found["w"][1] is None
    np.testing.assert_array_equal(found["w"][0], np.full(4, 6.0))


def test_a_restore_reads_into_the_tree(tmp_path: Path) -> None:
    """Its structure and shardings; and sets it only if everything was read."""
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    first = {"w": jax.device_put(jnp.arange(8.0), sharding), "step": 3}
    manager = CheckpointManager(ckptfmt.jax.Checkpoint(first), tmp_path, max_to_keep=2)
    manager.save()
    shapes = {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=sharding), "step": 0}
    abstract = {**jax.eval_shape(lambda: {"w": first["w"] * 1}), "step": 0}
    for like in (shapes, abstract):
        checkpoint = ckptfmt.jax.Checkpoint(like)
        with jax.set_mesh(mesh):  # the shapes of `eval_shape` have an abstract one
            restored = CheckpointManager(checkpoint, tmp_path, max_to_keep=2).restore_latest()
        assert restored.path == manager.latest_checkpoint
        assert checkpoint.tree["w"].sharding == sharding
        assert checkpoint.tree["step"] == 3
        np.testing.assert_array_equal(checkpoint.tree["w"], np.arange(8.0))
    other = {"w": jnp.ones(7), "step": 5}
    checkpoint.tree = other
    with pytest.raises(InvalidError) as error:
        checkpoint.restore(manager.latest_checkpoint or "")
    assert error.value.report is not None
    assert checkpoint.tree is other


@pytest.mark.parametrize("is_async", [False, True])
def test_a_forgotten_tree_is_noticed_once(tmp_path: Path, is_async: bool) -> None:
    def warned(tree: Any = None) -> bool:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            checkpoint.tree = checkpoint.tree if tree is None else tree
            manager.save_async() if is_async else manager.save()
            manager.sync()
        assert {one.category for one in found} <= {CkptfmtWarning}
        return len(found) == 1

    checkpoint = ckptfmt.jax.Checkpoint({**state_of(1), "step": 1})
    manager = CheckpointManager(checkpoint, tmp_path / "a", max_to_keep=2)
    assert [warned(), warned({**checkpoint.tree, "step": 2}), warned()] == [False, False, True]
    checkpoint = ckptfmt.jax.Checkpoint(state_of(1))
    manager = CheckpointManager(checkpoint, tmp_path / "a", max_to_keep=2)
    assert [warned(), warned(state_of(1))] == [False, False]
    assert [warned(dict(checkpoint.tree)), warned()] == [True, False]
    checkpoint = ckptfmt.jax.Checkpoint(state_of(1))
    manager = CheckpointManager(checkpoint, tmp_path / "a", max_to_keep=2)
    manager.restore_or_initialize()
    assert [warned(), warned()] == [True, False]
    for other in ({**state_of(1), "step": np.ones(1)}, {}):  # can change in place
        checkpoint = ckptfmt.jax.Checkpoint(other)
        manager = CheckpointManager(checkpoint, tmp_path / f"of {len(other)}", max_to_keep=2)
        assert [warned(), warned()] == [False, False]


def test_what_a_checkpoint_refuses(tmp_path: Path) -> None:
    for tree in (None, tmp_path, "text"):
        with pytest.raises(InvalidError):
            ckptfmt.jax.Checkpoint(tree)
    for option in ("check_replicas", "experimental_skip_slot_variables"):
        with pytest.raises(InvalidError, match=option):
            ckptfmt.jax.Checkpoint({}, options=CheckpointOptions(**{option: True}))
    called: list[str] = []
    options = CheckpointOptions(enable_async=True, experimental_write_callbacks=[called.append])
    checkpoint = ckptfmt.jax.Checkpoint(state_of(1), options=options)
    assert checkpoint.write(tmp_path / "a") == str(tmp_path / "a")
    checkpoint.sync()
    assert called == [str(tmp_path / "a")]
    checkpoint.tree = {"w": jax.ShapeDtypeStruct((2,), "float32")}
    with pytest.raises(InvalidError) as error:
        checkpoint.write(tmp_path / "a")
    assert error.value.tensor == "w"


def test_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over an S3 server goes on where it was."""
    for server in running():
        server.bucket("bucket")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for first in (0, 4):
            checkpoint = ckptfmt.jax.Checkpoint(state_of(0))
            best = KeepBest("loss", mode="min")
            manager = CheckpointManager(checkpoint, "s3://bucket/run", 2, keep_best=best)
            manager.restore_or_initialize()
            np.testing.assert_array_equal(checkpoint.tree["w"][0], np.full(4, float(first)))
            for step in range(first + 1, first + 5):
                checkpoint.tree = state_of(step)
                manager.save_async(metrics={"loss": abs(step - 2)})
            manager.sync()
        assert manager.all_steps() == [2, 7, 8]
        stores.mount("s3://bucket", None)
