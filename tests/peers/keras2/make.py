# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of this folder, with tf_keras 2.21 (Keras 2) on TensorFlow 2.21: run
`python make.py FOLDER`. Every variable of the model has its number in `weights`; its slot variables
have 100 and 200 more."""

import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras import layers


def sequential():
    parts = [layers.Embedding(10, 3), layers.Bidirectional(layers.LSTM(2)), layers.Dense(2)]
    return keras.Sequential([keras.Input((8,)), *parts, layers.BatchNormalization()])


def functional():
    inputs = keras.Input((4, 5))
    found = layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(inputs, inputs))
    return keras.Model(inputs, layers.Dense(2)(found))


def normalized():
    parts = [layers.Normalization(), layers.Dense(5), layers.Dense(2)]
    return keras.Sequential([keras.Input((6,)), *parts])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(4), layers.Dense(4)]
        self.heads = {"one": layers.Dense(2)}
        self.scale = self.add_weight(shape=(2,), name="scale")

    def call(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.heads["one"](inputs) * self.scale


def fill(variables, first):
    for number, variable in enumerate(variables):
        variable.assign(tf.cast(tf.fill(variable.shape, first + number), variable.dtype))


def main():
    folder = Path(sys.argv[1])
    model = sequential()
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    fill(model.weights, 0)
    fill(model.optimizer._momentums, 100)
    fill(model.optimizer._velocities, 200)
    model.optimizer.iterations.assign(7)
    model.save_weights(str(folder / "sequential"))

    model = functional()
    model.compile(keras.optimizers.legacy.Adam(), "mse")
    model.optimizer._create_all_weights(model.trainable_variables)
    fill(model.weights, 0)
    for slot, first in (("m", 100), ("v", 200)):
        fill([model.optimizer.get_slot(one, slot) for one in model.trainable_variables], first)
    model.optimizer.iterations.assign(7)
    model.save_weights(str(folder / "functional"))

    model = normalized()
    model.layers[0].adapt(np.arange(12.0).reshape(2, 6))
    model.compile(keras.optimizers.Adam(), "mse")
    model.fit(np.ones((2, 6)), np.ones((2, 2)), verbose=0)
    fill(model.weights[3:], 3)
    fill(model.optimizer._momentums, 100)
    fill(model.optimizer._velocities, 200)
    model.save_weights(str(folder / "normalized"))
    model.save_weights(str(folder / "normalized.weights.h5"))
    model.save(str(folder / "model"), save_format="tf")
    for file in (folder / "model" / "variables").iterdir():
        file.rename(folder / file.name.replace("variables", "saved_model"))
    shutil.rmtree(folder / "model")

    model = Subclassed()
    model(np.ones((1, 4), np.float32))
    fill(model.weights, 0)
    tf.train.Checkpoint(model=model, step=tf.Variable(3)).save(str(folder / "subclassed"))


if __name__ == "__main__":
    main()
