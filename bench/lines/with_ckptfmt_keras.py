# SPDX-License-Identifier: Apache-2.0
import ckptfmt
from ckptfmt.keras import Checkpoint, CheckpointCallback, load_weights, save_weights


def weights(model, other):
    save_weights(model, "weights")
    load_weights(other, "weights")


def manager(model, data, epochs):
    best = ckptfmt.KeepBest("loss", mode="min")
    manager = ckptfmt.CheckpointManager(Checkpoint(model), "run", max_to_keep=3, keep_best=best)
    model.fit(*data, epochs=epochs, callbacks=[CheckpointCallback(manager)])
