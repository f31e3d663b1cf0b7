# SPDX-License-Identifier: Apache-2.0
import tensorflow as tf
from safetensors.numpy import load_file


def weights(model, other):
    tf.train.Checkpoint(model).write("weights")
    tf.train.Checkpoint(other).read("weights")


def training(run, other):
    tf.train.Checkpoint(**run).write("state")
    tf.train.Checkpoint(**other).read("state")


def one_tensor(name):
    return tf.train.load_variable("weights", name)


def convert():
    tensors = load_file("weights.safetensors")
    names, whole = list(tensors), [""] * len(tensors)
    tf.raw_ops.SaveV2(
        prefix="converted",
        tensor_names=names,
        shape_and_slices=whole,
        tensors=list(tensors.values()),
    )
