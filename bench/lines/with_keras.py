# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from keras.callbacks import BackupAndRestore, LambdaCallback, ModelCheckpoint


def weights(model, other):
    model.save_weights("model.weights.h5")
    other.load_weights("model.weights.h5")


def manager(model, data, epochs):  # saves in the foreground
    def prune(epoch, logs):
        saved = sorted(Path("run").glob("*.keras"))
        best = min(saved, key=lambda path: float(path.stem.split("_")[1]))
        for path in set(saved[:-3]) - {best}:
            path.unlink()

    resume = BackupAndRestore("backup", delete_checkpoint=False)
    save = ModelCheckpoint("run/{epoch:09}_{loss}.keras")
    limit = LambdaCallback(on_epoch_end=prune)
    model.fit(*data, epochs=epochs, callbacks=[resume, save, limit])
