# SPDX-License-Identifier: Apache-2.0
"""TensorFlow 1's Saver saves and restores variables by their names, for test_names.py.

Run as `tf_names.py COMMAND FOLDER`. `write` trains a little, saves `FOLDER/theirs` and prints the
values by the names of the variables. `read` restores every prefix of `FOLDER/prefixes.json` into
new variables with one Saver each, and prints their values by prefix and name.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf1 = tf.compat.v1


def variables() -> Any:
    """The variables of a model with an optimizer, and what trains them."""
    ones = tf1.ones_initializer()
    with tf1.variable_scope("dense"):
        kernel = tf1.get_variable("kernel", [2, 3], initializer=ones)
        bias = tf1.get_variable("bias", [3], initializer=ones, use_resource=False)
    parts = tf1.get_variable(
        "parts", [5, 2], initializer=ones, partitioner=tf1.fixed_size_partitioner(2)
    )
    tf1.get_variable("text", initializer=tf.constant([b"a", b"\xff"]), trainable=False)
    step = tf1.train.get_or_create_global_step()
    loss = tf.reduce_sum(kernel**3) + tf.reduce_sum(bias**2)
    loss += tf.reduce_sum(tf.convert_to_tensor(parts) ** 3)
    return tf1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)


def plain(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype == object:
        return [one.decode("latin-1") for one in array.ravel().tolist()]
    return array.tolist()


def values(session: Any) -> dict[str, Any]:
    """All values by name; the parts of a variable are joined."""
    found: dict[str, list[Any]] = {}
    for variable in tf1.global_variables():
        part = variable._get_save_slice_info()
        name = part.full_name if part else variable.op.name
        found.setdefault(name, []).append(session.run(variable))
    return {
        name: plain(parts[0] if len(parts) == 1 else np.concatenate(parts))
        for name, parts in found.items()
    }


def write(folder: str) -> dict[str, Any]:
    with tf1.Graph().as_default(), tf1.Session() as session:
        train = variables()
        session.run(tf1.global_variables_initializer())
        session.run(train)
        tf1.train.Saver(write_version=2).save(
            session, os.path.join(folder, "theirs"), write_meta_graph=False
        )
        return values(session)


def read(prefix: str) -> dict[str, Any]:
    with tf1.Graph().as_default(), tf1.Session() as session:
        variables()
        # Not a partitioned one: of a checkpoint of objects the Saver asks for its parts by the name
        # of the whole.
        kept = [one for one in tf1.global_variables() if one._get_save_slice_info() is None]
        blank = [tf.zeros_like(one) if one.dtype != tf.string else ["", ""] for one in kept]
        session.run([tf1.assign(one, value) for one, value in zip(kept, blank, strict=True)])
        tf1.train.Saver(kept).restore(session, prefix)
        return {one.op.name: plain(session.run(one)) for one in kept}


def main() -> None:
    command, folder = sys.argv[1:]
    if command == "write":
        print(json.dumps(write(folder)))
        return
    with open(os.path.join(folder, "prefixes.json"), encoding="utf-8") as stream:
        print(json.dumps({prefix: read(prefix) for prefix in json.load(stream)}))


if __name__ == "__main__":
    main()
