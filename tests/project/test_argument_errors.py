# SPDX-License-Identifier: Apache-2.0
"""Every public call refuses a wrong argument with an InvalidError whose `argument` names it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import editing, report, safetensors, sharded, stores, tf

MODULES = (ckptfmt, tf, sharded, editing, safetensors, stores, report)
MESH = sharded.Mesh([("x", 1)])
ARRAYS = {"w": np.ones(2, np.float32)}
LAYOUTS = {"w": sharded.Layout([None], MESH)}
ALONE = sharded.SingleProcess()

# Valid arguments of each public callable; "a" is a checkpoint, "t" one of a tree, "m" is a
# directory, "n" does not exist.
VALID: dict[str, dict[str, Any]] = {
    "Checkpoint": {},
    "Checkpoint.read": {"save_path": "t"},
    "Checkpoint.save": {"file_prefix": "n"},
    "CheckpointManager": {"checkpoint": ckptfmt.Checkpoint(), "directory": "m", "max_to_keep": 1},
    "CheckpointManager.save": {},
    "CheckpointManager.restore_latest": {},
    "KeepBest": {"metric": "loss", "mode": "min"},
    "Reader": {"prefix": "a"},
    "Reader.keys": {},
    "Reader.read": {"name": "w"},
    "Reader.table": {},
    "Reader.digest": {},
    "Reader.verify": {},
    "SaveSpec": {"tensor": ARRAYS["w"], "slice_spec": "", "name": "w"},
    "Saver": {"serialized_tensors": {}},
    "Saver.restore": {"prefix": "a"},
    "Writer": {"prefix": "n"},
    "Writer.add": {"name": "w", "array": ARRAYS["w"]},
    "Writer.add_slice": {"name": "w", "array": ARRAYS["w"], "shape": [2], "offset": [0]},
    "convert": {"source": "a", "destination": "n"},
    "latest_checkpoint": {"directory": "m"},
    "load": {"path": "a"},
    "load_into": {"path": "a", "targets": ARRAYS},
    "load_tree": {"path": "t"},
    "load_tree_into": {"path": "t", "tree": ARRAYS},
    "merge": {"prefixes": ["a"], "destination": "n"},
    "merge_v2_checkpoints": {"checkpoint_prefixes": ["a"], "destination_prefix": "n"},
    "open": {"path": "a"},
    "restore_v2": {"prefix": "a", "tensor_names": ["w"], "shape_and_slices": [""]},
    "save": {"prefix": "n", "tensors": ARRAYS},
    "save_async": {"prefix": "n", "tensors": ARRAYS},
    "save_tree": {"prefix": "n", "tree": ARRAYS},
    "save_tree_async": {"prefix": "n", "tree": ARRAYS},
    "save_v2": {
        "prefix": "n",
        "tensor_names": ["w"],
        "shape_and_slices": [""],
        "tensors": [ARRAYS["w"]],
    },
    "sharded_filename": {"basename": "n", "shard": 0, "num_shards": 1},
    "verify": {"path": "a"},
    "tf.BalancedPolicy": {"num_shards": 1},
    "tf.CheckpointOptions": {},
    "tf.CheckpointReader": {"prefix": "a"},
    "tf.DSaveSpec": {
        "tensor": ARRAYS["w"],
        "slice_spec": "",
        "name": "w",
        "global_shape": [2],
        "layout": LAYOUTS["w"],
    },
    "tf.MaxShardSizePolicy": {"max_shard_size": 1},
    "tf.ParallelVariable": {"components": [ARRAYS["w"]]},
    "tf.SaveableObject": {"op": None, "specs": [], "name": "w"},
    "tf.ShardByDevicePolicy": {},
    "tf.TrainingState": {"model": ckptfmt.Checkpoint(), "checkpoint_dir": "m"},
    "tf.checkpoint_exists": {"checkpoint_prefix": "a"},
    "tf.checkpoints_iterator": {"checkpoint_dir": "m", "timeout": 0},
    "tf.get_checkpoint_mtimes": {"checkpoint_prefixes": ["a"]},
    "tf.get_checkpoint_state": {"checkpoint_dir": "m"},
    "tf.independent_buffers": {},
    "tf.latest_checkpoint": {"checkpoint_dir": "m"},
    "tf.list_variables": {"ckpt_dir_or_file": "a"},
    "tf.load_checkpoint": {"ckpt_dir_or_file": "a"},
    "tf.load_variable": {"ckpt_dir_or_file": "a", "name": "w"},
    "tf.parse_spec": {"spec": ""},
    "tf.register_checkpoint_saver": {
        "name": "table",
        "predicate": bool,
        "save_fn": print,
        "restore_fn": print,
    },
    "tf.remove_checkpoint": {"checkpoint_prefix": "a"},
    "tf.unregister_checkpoint_saver": {"registered_name": "none"},
    "tf.update_checkpoint_state": {"save_dir": "m", "model_checkpoint_path": "m/a"},
    "sharded.Layout": {"sharding_specs": [None], "mesh": MESH},
    "sharded.Mesh": {"dims": [("x", 1)]},
    "sharded.restore": {"prefix": "a", "layouts": LAYOUTS, "coordinator": ALONE},
    "sharded.save": {
        "prefix": "n",
        "tensors": {"w": {MESH.devices[0]: ARRAYS["w"]}},
        "layouts": LAYOUTS,
        "coordinator": ALONE,
    },
    "editing.average": {"sources": ["a", "a"], "destination": "n"},
    "editing.edit": {"source": "a", "destination": "n", "drop_missing": True},
    "editing.rescue": {"source": "a", "destination": "n"},
    "safetensors.load_file": {"path": "s.safetensors"},
    "safetensors.safe_open": {"path": "s.safetensors"},
    "safetensors.save_file": {"tensors": ARRAYS, "path": "n.safetensors"},
    "stores.mount": {"url": "memory://x", "store": None},
    "stores.store_for": {"url": "a"},
    "report.report": {"path": "a", "output": "n.html"},
    "report.report_series": {"paths": ["a"], "output": "n.html"},
}
VALID["sharded.save_async"] = VALID["sharded.save"]
OBJECTS: dict[str, Callable[[], Any]] = {
    "Checkpoint": ckptfmt.Checkpoint,
    "CheckpointManager": lambda: ckptfmt.CheckpointManager(ckptfmt.Checkpoint(), "m", 1),
    "Reader": lambda: ckptfmt.open("a"),
    "Saver": lambda: ckptfmt.Saver({}),
    "Writer": lambda: ckptfmt.Writer("n"),
}
# Classes to derive from, and records, which are checked where they are used.
UNCHECKED = {
    *("SaveSliceInfo", "tf.SaveSliceInfo"),
    *("Trackable", "sharded.Coordinator", "sharded.SingleProcess", "tf.CheckpointState"),
    *("tf.ShardByTaskPolicy", "tf.ShardableTensor", "tf.ShardingCallback", "tf.validate_shards"),
}


# Arguments whose page names another class.
OTHERS: dict[tuple[str, str], type[ckptfmt.CkptfmtError]] = {
    ("tf.remove_checkpoint", "checkpoint_format_version"): ckptfmt.UnsupportedError,
}


class Foreign:
    """An object of a type that no argument has."""

    __hash__ = None  # type: ignore[assignment]


def named(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), ckptfmt)


def values(parameter: inspect.Parameter) -> Iterator[Any]:
    """Yield wrong values of a parameter."""
    annotation = str(parameter.annotation)
    if parameter.name == "self" or annotation.startswith(("Any", "typing.Any")):
        return
    yield Foreign()
    # For None, some calls choose the number of shards.
    if "None" not in annotation and parameter.name != "shards":
        yield None
    if any(word in annotation for word in ("Literal", "Level", "Durability", "Verify", "Format")):
        yield "a wrong word"


def cells() -> Iterator[tuple[str, str, Any]]:
    for name in VALID:
        for parameter in inspect.signature(named(name)).parameters.values():
            for value in values(parameter):
                yield name, parameter.name, value


def call(name: str, arguments: dict[str, Any]) -> None:
    owner, _, method = name.partition(".")
    with contextlib.ExitStack() as stack:
        function = named(name)
        if owner in OBJECTS and method:
            made = OBJECTS[owner]()
            if isinstance(made, contextlib.AbstractContextManager):
                stack.enter_context(made)
            function = getattr(made, method)
        result = function(**arguments)
        if isinstance(result, contextlib.AbstractContextManager):
            stack.enter_context(result)
        if isinstance(result, Iterator):
            next(result, None)
        if isinstance(result, Future):
            result.result()


def test_every_public_callable_is_in_the_table() -> None:
    public = {
        f"{module.__name__}.{name}".removeprefix("ckptfmt.")
        for module in MODULES
        for name in dir(module)
        if callable(found := getattr(module, name))
        and not (isinstance(found, type) and issubclass(found, Exception))
    }
    same = {name for name in public if name.startswith("tf.") and name[3:] in VALID}
    assert public - same - UNCHECKED - {"tf.Checkpoint"} <= set(VALID)


def test_error_names_the_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("m")
    ckptfmt.save("a", ARRAYS, durability="none")
    ckptfmt.save_tree("t", ARRAYS, durability="none")
    safetensors.save_file(ARRAYS, "s.safetensors")
    before = sorted(tmp_path.rglob("*"))
    for name, argument, value in cells():
        where = f"{name}({argument}={value})"
        kind = OTHERS.get((name, argument), ckptfmt.InvalidError)
        with pytest.raises(kind) as caught:
            call(name, VALID[name] | {argument: value})
            pytest.fail(where)
        # Some options have their experimental names of TensorFlow 2.12 as well.
        assert caught.value.argument in (argument, argument.removeprefix("experimental_")), where
        assert sorted(tmp_path.rglob("*")) == before, where
