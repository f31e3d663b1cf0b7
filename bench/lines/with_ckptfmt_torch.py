# SPDX-License-Identifier: Apache-2.0
import ckptfmt.torch


def weights(model, other):
    ckptfmt.torch.save(model, "weights")
    ckptfmt.torch.load_into(other, "weights")


def training(run, other):  # run["random"] is a ckptfmt.torch.RandomState
    ckptfmt.torch.save(run, "state")
    ckptfmt.torch.load_into(other, "state")


def manager(train_step, state, batches):
    checkpoint, best = ckptfmt.torch.Checkpoint(state), ckptfmt.KeepBest("loss", mode="min")
    manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=3, keep_best=best)
    manager.restore_or_initialize()
    for batch in batches[state["step"] :]:
        loss = train_step(state, batch)
        manager.save_async(metrics={"loss": loss})
    manager.sync()
