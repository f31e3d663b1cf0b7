# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's side of docs/coming-from-tensorflow.md, for test_page.py: its names, the words of
its errors, and what ckptfmt does with its objects.

Reads {"names": [name, ...], "words": {row: words of an error}} from standard input, and writes
{"missing": [name, ...], "rows": {row: None, or the failure}}. It runs in an empty directory, its
argument.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402
from tensorflow.python.checkpoint import functional_saver  # noqa: E402
from tensorflow.python.framework import device as device_lib  # noqa: E402
from tensorflow.python.saved_model import registration  # noqa: E402

import ckptfmt  # noqa: E402

errors = tf.errors
Check = Callable[[], None]
ROWS: dict[str, Check] = {}
WORDS: dict[str, str] = {}


def row(title: str) -> Callable[[Check], Check]:
    """Register the check of a row."""

    def add(check: Check) -> Check:
        ROWS[title] = check
        return check

    return add


def fails(kind: type[Exception], call: Callable[[], object], words: str = "") -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("does not fail")


def outcome(check: Check) -> str | None:
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def vector(*values: float, dtype: Any = tf.float32) -> Any:
    return tf.constant(values, dtype)


def variable(*values: float) -> Any:
    return tf.Variable(vector(*values))


def save(prefix: str, **tensors: Any) -> None:
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=list(tensors.values()),
    )


def restore(prefix: str, name: str, spec: str = "", dtype: Any = tf.float32) -> Any:
    return tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=[name], shape_and_slices=[spec], dtypes=[dtype]
    )


def options(**given: Any) -> Any:
    return tf.train.CheckpointOptions(
        **{f"experimental_{name}": value for name, value in given.items()}
    )


# ---- words ---------------------------------------------------------------------------------------


@row("a tensor that you name is missing")
def _missing_tensor() -> None:
    save("missing", x=vector(1))
    words = WORDS["a tensor that you name is missing"]
    fails(errors.NotFoundError, lambda: restore("missing", "y"), words)
    fails(errors.NotFoundError, lambda: tf.train.load_variable("missing", "y"), words)


@row("a checkpoint is missing")
def _missing_checkpoint() -> None:
    words = WORDS["a checkpoint is missing"]
    fails(errors.NotFoundError, lambda: restore("nowhere", "y"), words)
    fails(errors.NotFoundError, lambda: tf.train.load_checkpoint("nowhere"), words)
    fails(errors.NotFoundError, lambda: tf.train.Checkpoint().restore("nowhere"), words)


@row("`load_checkpoint` of a directory without a state file")
def _no_state_file() -> None:
    os.mkdir("empty")
    words = WORDS["`load_checkpoint` of a directory without a state file"]
    fails(ValueError, lambda: tf.train.load_checkpoint("empty"), words)


@row("the dtype differs")
def _dtype() -> None:
    save("dtype", x=vector(1))
    words = WORDS["the dtype differs"]
    fails(errors.InvalidArgumentError, lambda: restore("dtype", "x", "", tf.int32), words)


@row("the shape differs")
def _shape() -> None:
    save("shape", x=vector(1, 2))
    words = WORDS["the shape differs"]
    fails(errors.InvalidArgumentError, lambda: restore("shape", "x", "4 0,2"), words)


@row("a tensor's bytes have changed")
def _damage() -> None:
    save("damage", x=vector(1, 2))
    with open("damage.data-00000-of-00001", "wb") as file:
        file.write(b"?" * 8)
    fails(
        errors.DataLossError, lambda: restore("damage", "x"), WORDS["a tensor's bytes have changed"]
    )


def merge(*prefixes: str) -> None:
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes,
        destination_prefix="merged",
        delete_old_dirs=False,
    )


@row("two inputs of a merge have the same tensor or slice")
def _merge_twice() -> None:
    for name in ("twice-a", "twice-b"):
        save(name, x=vector(1))
    text = WORDS["two inputs of a merge have the same tensor or slice"]
    fails(errors.InvalidArgumentError, lambda: merge("twice-a", "twice-b"), text)


@row("an input of a merge is missing")
def _merge_missing() -> None:
    save("missing-a", x=vector(1))
    text = WORDS["an input of a merge is missing"]
    fails(errors.InvalidArgumentError, lambda: merge("missing-a", "gone"), text)


@row("restoring the whole of a tensor that was saved in slices")
def _cut() -> None:
    words = WORDS["restoring the whole of a tensor that was saved in slices"]
    for dtype in (tf.float16, tf.string, tf.uint16, tf.uint32, tf.uint64):
        part = tf.constant(["a"]) if dtype == tf.string else tf.ones((1,), dtype)
        given: dict[str, Any] = {"shape_and_slices": ["2 0,1", "2 1,1"], "tensors": [part, part]}
        tf.raw_ops.SaveV2(prefix="cut", tensor_names=["x", "x"], **given)
        assert (ckptfmt.load("cut")["x"] == part.numpy()).all()
        given = {"shape_and_slices": [""], "dtypes": [dtype]}
        call = functools.partial(tf.raw_ops.RestoreV2, prefix="cut", tensor_names=["x"], **given)
        fails(errors.InvalidArgumentError, call, words)


# ---- TensorFlow's objects in ckptfmt -------------------------------------------------------------


@row("options of `tf.train.CheckpointOptions`")
def _options_of_tensorflow() -> None:
    seen: list[str] = []
    given = options(skip_slot_variables=True, io_device="/cpu:0", write_callbacks=[seen.append])
    ours = ckptfmt.tf.CheckpointOptions.of(given)
    assert ours.experimental_skip_slot_variables and ours.experimental_io_device == "/cpu:0"
    assert ours.experimental_write_callbacks == (seen.append,) and not ours.enable_async
    for name in ("enable_async", "experimental_enable_async_checkpoint"):
        asked = ckptfmt.tf.CheckpointOptions.of(tf.train.CheckpointOptions(**{name: True}))
        assert asked.enable_async
    ckptfmt.Checkpoint(x=1).save("options-of-theirs", given)
    assert seen == ["options-of-theirs-1"]


@row("device names")
def _device_names() -> None:
    for name in ("/gpu:1", "/job:a/replica:0/task:1/device:GPU:3", "/cpu:*"):
        device = device_lib.DeviceSpec.from_string(name)
        ours = ckptfmt.SaveSpec(1.0, "", "x", device=device)
        assert ours.device == device.to_string()


@row("what a registered saver returns")
def _returned() -> None:
    def save_fn(trackables: Any, file_prefix: Any) -> Any:
        name = file_prefix.numpy().decode() if hasattr(file_prefix, "numpy") else file_prefix
        save(name, x=vector(1))
        return [tf.constant(name)]

    for library, register in (
        (tf, registration.register_checkpoint_saver),
        (ckptfmt, ckptfmt.tf.register_checkpoint_saver),
    ):
        register(
            package="page",
            name="eager",
            predicate=lambda _: False,
            save_fn=save_fn,
            restore_fn=lambda **_: None,
        )
        kind: Any = functional_saver.MultiDeviceSaver if library is tf else ckptfmt.Saver
        prefix = f"registered-{library.__name__}"
        kind({None: {"y": vector(1)}}, {"page.eager": {}}).save(prefix)
        assert tf.train.list_variables(prefix) == [("x", [1]), ("y", [1])]


# ---- names ---------------------------------------------------------------------------------------


def is_there(name: str) -> bool:
    """Whether TensorFlow has this public name, or a module this class or function."""
    if not name.startswith("tf."):
        module, _, last = name.rpartition(".")
        return hasattr(importlib.import_module(module), last)
    found: Any = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # TensorFlow prints, too
    os.chdir(sys.argv[1])
    request: Any = json.load(sys.stdin)
    WORDS.update(request["words"])
    missing = [name for name in request["names"] if not is_there(name)]
    rows = {title: outcome(check) for title, check in ROWS.items()}
    json.dump({"missing": missing, "rows": rows}, replies)


if __name__ == "__main__":
    logging.set_verbosity(logging.ERROR)
    main()
