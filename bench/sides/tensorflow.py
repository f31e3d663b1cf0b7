# SPDX-License-Identifier: Apache-2.0
"""TensorFlow by its cheapest public path: the ops themselves, on tensors that are tensors already,
and the checkpoint reader where single tensors or names are wanted.

Checksums are verified. Tuned is the cache of index blocks, beside malloc's huge pages.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from sides import Call, Side, then_synced


def version() -> str:
    return str(tf.__version__)


def first(folder: str, name: str) -> Any:
    return tf.train.load_checkpoint(f"{folder}/ck").get_tensor(name)


class Here(Side):
    def hold(self, arrays: dict[str, Any]) -> Any:
        return [tf.constant(arrays.pop(name)) for name in list(arrays)]

    def arrays(self, result: Any) -> Any:
        if isinstance(result, tuple):  # shapes and dtypes
            shapes, dtypes = result
            return [
                f"{name} {list(shape)} {dtypes[name].as_datatype_enum}"
                for name, shape in shapes.items()
            ]
        if isinstance(result, dict):
            return {name: tensor.numpy() for name, tensor in result.items()}
        return result.numpy() if tf.is_tensor(result) else result

    def save(self, folder: str, durable: bool) -> Call:
        texts, specs = tf.constant(self.names), tf.constant([""] * len(self.names))
        return then_synced(
            lambda: tf.raw_ops.SaveV2(
                prefix=f"{folder}/ck",
                tensor_names=texts,
                shape_and_slices=specs,
                tensors=self.data,
            ),
            folder,
            durable,
        )

    def load(self, folder: str) -> Call:
        texts, specs = tf.constant(self.names), tf.constant([""] * len(self.names))
        dtypes = [tf.float32] * len(self.names)

        def call() -> Any:
            found = tf.raw_ops.RestoreV2(
                prefix=f"{folder}/ck", tensor_names=texts, shape_and_slices=specs, dtypes=dtypes
            )
            return dict(zip(self.names, found, strict=True))

        return call

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        """The op knows no steps: it reads what is around, and the rest is done by slicing. It has
        no open form: every call opens the checkpoint."""
        if opened:
            raise NotImplementedError
        parts = [
            "-" if [start, stop] == [0, size] else f"{start},{stop - start}"
            for (start, stop, _), size in zip(box, self.shape, strict=True)
        ]
        spec = tf.constant([" ".join([*map(str, self.shape), ":".join(parts)])])
        text, steps = tf.constant([name]), tuple(slice(None, None, step) for *_, step in box)
        stepped = any(step != 1 for *_, step in box)

        def call() -> Any:
            found = tf.raw_ops.RestoreV2(
                prefix=f"{folder}/ck",
                tensor_names=text,
                shape_and_slices=spec,
                dtypes=[tf.float32],
            )[0]
            return found[steps] if stepped else found

        return call

    def gets(self, folder: str, names: list[str], together: bool) -> Call:
        if together:
            texts, specs = tf.constant(names), tf.constant([""] * len(names))
            dtypes = [tf.float32] * len(names)
            return lambda: [
                tensor.numpy()
                for tensor in tf.raw_ops.RestoreV2(
                    prefix=f"{folder}/ck", tensor_names=texts, shape_and_slices=specs, dtypes=dtypes
                )
            ]
        reader = tf.train.load_checkpoint(f"{folder}/ck")
        return lambda: [reader.get_tensor(name) for name in names]

    def list_names(self, folder: str) -> Call:
        """There is no way to names alone."""
        return lambda: list(tf.train.load_checkpoint(f"{folder}/ck").get_variable_to_shape_map())

    def list_shapes(self, folder: str) -> Call:
        def call() -> Any:
            reader = tf.train.load_checkpoint(f"{folder}/ck")
            return reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()

        return call

    def one(self, folder: str, name: str) -> Call:
        return lambda: first(folder, name)

    def list_prefix(self, folder: str, prefix: str) -> Call:
        def call() -> list[str]:
            reader = tf.train.load_checkpoint(f"{folder}/ck")
            return [name for name in reader.get_variable_to_shape_map() if name.startswith(prefix)]

        return call

    def merge(self, folder: str, inputs: int, durable: bool) -> Call:
        prefixes = tf.constant([f"{folder}/part-{i:05d}" for i in range(inputs)])
        target = tf.constant(f"{folder}/ck")
        return then_synced(
            lambda: tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=target
            ),
            folder,
            durable,
        )

    def merged(self, folder: str, name: str, count: int) -> Call:
        del count
        return lambda: first(folder, name)

    def loop(self, folder: str, mode: str, durable: bool) -> dict[str, Any]:
        if durable:
            raise NotImplementedError
        ones = tf.ones(self.shape)
        if not hasattr(self, "holder"):
            held = zip(self.names, self.data, strict=True)
            variables = {name.replace(".", "_"): tf.Variable(value) for name, value in held}
            self.variables, self.data = list(variables.values()), None
            self.holder = tf.train.Checkpoint(**variables)

        def update() -> None:
            for variable in self.variables:
                variable.assign_add(ones)
            self.variables[-1][:1].numpy()

        options = tf.train.CheckpointOptions(enable_async=mode == "async")
        return {
            "update": update,
            "save": lambda: self.holder.write(f"{folder}/ck", options=options),
            "in_place": lambda _result: os.path.exists(f"{folder}/ck.index"),
            "finish": lambda _result: self.holder.sync() if mode == "async" else None,
        }

    def save_changed(self, folder: str, durable: bool, changed: int) -> Call:
        """It has no way to save what changed: it saves all."""
        del changed
        return self.save(folder, durable)
