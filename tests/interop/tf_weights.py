# SPDX-License-Identifier: Apache-2.0
"""Weights of Keras models between `ckptfmt.keras` and `tf.train.Checkpoint`, for test_weights.py.

Run as `tf_weights.py FOLDER`, by the Python that has TensorFlow. Prints what went wrong, by model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# Not the folder of this file: its module names are not for TensorFlow's imports.
ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from typing import Any  # noqa: E402

import tensorflow as tf  # noqa: E402
from support import keras_layers  # noqa: E402
from support.keras_models import SHAPES, built, made, values  # noqa: E402

from ckptfmt.keras import load_weights, save_weights  # noqa: E402


def restored(name: str, prefix: Path, with_optimizer: bool) -> Any:
    """The values that TensorFlow restores from what we saved."""
    model = built(name)
    model.optimizer.build(model.trainable_variables)
    beside = {"optimizer": model.optimizer} if with_optimizer else {}
    status = tf.train.Checkpoint(model=model, **beside).restore(str(prefix))
    status.assert_existing_objects_matched()
    status.assert_consumed()
    return values(model)


def loaded(name: str, prefix: str) -> Any:
    """The values that we load from what TensorFlow saved."""
    model = built(name)
    assert load_weights(model, prefix)
    return values(model)


def main() -> None:
    folder, wrong = Path(sys.argv[1]), []
    for name in SHAPES:
        model = made(name)
        expected = values(model)
        ours = folder / f"ours-{name}"
        save_weights(model, ours)
        outcomes = {
            "restored": restored(name, ours, False),
            "restored with its optimizer": restored(name, ours, True),
        }
        for how, objects in {
            "model": {"model": model},
            "net": {"net": model, "optimizer": model.optimizer, "step": tf.Variable(1)},
            "root": {"root": model},
        }.items():
            prefix = tf.train.Checkpoint(**objects).save(str(folder / f"{how}-{name}"))
            outcomes[how] = loaded(name, prefix)
        wrong += [f"{name}: {how}" for how, found in outcomes.items() if found != expected]
    wrong += [f"{kind}: {found}" for kind, found in keras_layers.wrong(folder).items()]
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
