# SPDX-License-Identifier: Apache-2.0
"""TensorFlow writes checkpoints for test_edit.py to edit, and restores what came of them.

Run as `tf_edit.py make FOLDER`, and as `tf_edit.py check FOLDER` or `... restore FOLDER` with
a question on its input: prefixes, each with the digests of its tensors by name. Prints what went
wrong, in JSON. "check" also restores edits of what "make" wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import trackable_object_graph_pb2  # noqa: E402

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
v1 = tf.compat.v1


def digest(array: Any) -> str:
    array = np.asarray(array)
    if array.dtype == object:
        parts = [bytes(one) for one in array.reshape(-1)]
        content = b"".join(len(one).to_bytes(8, "little") + one for one in parts)
    else:
        content = array.tobytes()
    return hashlib.sha256(content).hexdigest()


# ---- making --------------------------------------------------------------------------------------


def model(compiled: bool, fitted: bool = False) -> Any:
    """A small Keras 3 model, perhaps with an optimizer, and with a state of it if `fitted`."""
    layers = keras.layers
    made = keras.Sequential(
        [layers.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dense(2)]
    )
    if compiled:
        made.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
        made.optimizer.build(made.trainable_variables)
    if fitted:
        made.fit(np.ones((8, 4), "f4"), np.ones((8, 2), "f4"), verbose=0)
    return made


def make(folder: Path) -> None:
    made = model(compiled=True, fitted=True)
    np.savez(folder / "weights.npz", *made.get_weights())
    tf.train.Checkpoint(model=made, optimizer=made.optimizer).write(str(folder / "both"))
    tf.train.Checkpoint(model=made).write(str(folder / "model"))
    variable = tf.Variable([1.0, 2.0], name="v")
    adam = v1.train.AdamOptimizer()
    adam.minimize(lambda: tf.reduce_sum(variable * variable), var_list=[variable])
    tf.train.Checkpoint(opt=adam, v=variable).write(str(folder / "slots"))
    with tf.Graph().as_default():
        weights = [v1.get_variable("layer/w", [3, 4]), v1.get_variable("layer/b", [4])]
        parts = v1.fixed_size_partitioner(3)
        weights += list(v1.get_variable("table", [7, 2], partitioner=parts))
        loss = tf.add_n([tf.reduce_sum(one) for one in weights])
        step = v1.train.get_or_create_global_step()
        optimizers = (
            v1.train.AdamOptimizer(),
            v1.train.MomentumOptimizer(0.1, 0.9),
            v1.train.FtrlOptimizer(0.1),
            v1.train.RMSPropOptimizer(0.1),
            v1.train.AdagradOptimizer(0.1),
            v1.train.AdadeltaOptimizer(0.1),
        )
        for one in optimizers:
            one.minimize(loss, global_step=step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, str(folder / "names"), write_meta_graph=False)


# ---- checking ------------------------------------------------------------------------------------


class Holder(tf.__internal__.tracking.AutoTrackable):  # type: ignore[misc, name-defined]
    """An object of which only the children matter."""


def restored(prefix: str, reader: Any) -> str | None:
    """Restore into objects that are made after the graph; return what is wrong."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(GRAPH))
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    made: list[Any] = []
    complete = True
    for node in graph.nodes:
        names = [one.name for one in node.attributes]
        keys = [one.checkpoint_key for one in node.attributes]
        if names == ["VARIABLE_VALUE"]:
            zeros = np.full(shapes[keys[0]], "" if dtypes[keys[0]] == tf.string else 0)
            made.append(tf.Variable(tf.constant(zeros, dtypes[keys[0]])))
        else:
            complete = complete and not names and not node.slot_variables
            made.append(Holder())
    for node, one in zip(graph.nodes, made, strict=True):
        for child in node.children:
            one._track_trackable(made[child.node_id], child.local_name, overwrite=True)
    status = tf.train.Checkpoint(made[0]).read(prefix)
    if complete:
        status.assert_consumed()
    else:
        status.expect_partial()
    status.assert_nontrivial_match()
    status.assert_existing_objects_matched()
    slots = {slot.slot_variable_node_id for node in graph.nodes for slot in node.slot_variables}
    for number, (node, one) in enumerate(zip(graph.nodes, made, strict=True)):
        # Only optimizers restore slot variables; see `consumed`.
        if isinstance(one, tf.Variable) and number not in slots:
            key = node.attributes[0].checkpoint_key
            if digest(one.numpy()) != digest(reader.get_tensor(key)):
                return f"restored another value of {key}"
    return None


def wrong_with(prefix: str, expected: dict[str, str]) -> str | None:
    reader = tf.train.load_checkpoint(prefix)
    found = {name: digest(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}
    has_graph = found.pop(GRAPH, None) is not None
    if found != expected:
        return f"other tensors: {sorted(set(found.items()) ^ set(expected.items()))}"
    return restored(prefix, reader) if has_graph else None


def consumed(folder: Path) -> list[str]:
    """The checkpoints that `make` wrote, after edits whose names say what they are."""
    expected = list(np.load(folder / "weights.npz").values())
    wrong = []
    for name, objects in {
        "both-strip": lambda made: {"model": made},
        "model-strip": lambda made: {"model": made},
        "both-rename": lambda made: {"net": made, "optimizer": made.optimizer},
    }.items():
        made = model(compiled=name == "both-rename")
        status = tf.train.Checkpoint(**objects(made)).read(str(folder / name))
        status.assert_consumed()
        status.assert_nontrivial_match()
        if list(map(digest, made.get_weights())) != list(map(digest, expected)):
            wrong.append(f"{name}: other weights")
    variable = tf.Variable([0.0, 0.0], name="v")
    tf.train.Checkpoint(v=variable).read(str(folder / "slots-strip")).assert_consumed()
    if not variable.numpy().all():
        wrong.append("slots-strip: not restored")
    variable, adam = tf.Variable([0.0, 0.0], name="v"), v1.train.AdamOptimizer()
    status = tf.train.Checkpoint(opt=adam, w=variable).read(str(folder / "slots-rename"))
    adam.minimize(lambda: tf.reduce_sum(variable * variable), var_list=[variable])
    status.assert_consumed()
    if not adam.get_slot(variable, "v").numpy().all():
        wrong.append("slots-rename: the slot is not restored")
    return wrong


def main() -> None:
    folder = Path(sys.argv[2])
    wrong: list[str] = []
    if sys.argv[1] == "make":
        make(folder)
    else:
        for prefix, expected in json.load(sys.stdin).items():
            try:
                message = wrong_with(prefix, expected)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            if message is not None:
                wrong.append(f"{Path(prefix).name}: {message}")
        if sys.argv[1] == "check":
            wrong += consumed(folder)
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
