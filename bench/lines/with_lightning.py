# SPDX-License-Identifier: Apache-2.0
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO


def manager(model, data, epochs):
    newest = ModelCheckpoint("run/newest", monitor="step", mode="max", save_top_k=3, save_last=True)
    best = ModelCheckpoint("run/best", monitor="loss", mode="min")
    options = {"callbacks": [newest, best], "plugins": [AsyncCheckpointIO()]}
    trainer = lightning.Trainer(max_epochs=epochs, **options)
    trainer.fit(model, data, ckpt_path="last")
