# SPDX-License-Identifier: Apache-2.0
import ckptfmt.jax


def weights(model, other):
    ckptfmt.jax.save("weights", model)
    return ckptfmt.jax.load("weights", like=other)


def training(run, other):
    ckptfmt.jax.save("state", run)
    return ckptfmt.jax.load("state", like=other)


def sharded(state, other):
    ckptfmt.jax.save("sharded", state)
    return ckptfmt.jax.load("sharded", like=other)


def manager(train_step, state, batches):
    checkpoint, best = ckptfmt.jax.Checkpoint(state), ckptfmt.KeepBest("loss", mode="min")
    manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=3, keep_best=best)
    manager.restore_or_initialize()
    for batch in batches[checkpoint.tree["step"] :]:
        checkpoint.tree, loss = train_step(checkpoint.tree, batch)
        manager.save_async(metrics={"loss": loss})
    manager.sync()
    return checkpoint.tree
