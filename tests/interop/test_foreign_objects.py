# SPDX-License-Identifier: Apache-2.0
"""Objects of TensorFlow in our Checkpoint: each kind is stored as TensorFlow stores it and restored
from either side, or refused by its path before any of its methods is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.trackable.base import Trackable
from tensorflow.python.trackable.data_structures import ListWrapper
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

import ckptfmt
from ckptfmt import InvalidError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

Table = tf.lookup.experimental.MutableHashTable


class State(tf.train.experimental.PythonState):
    def __init__(self, text: str) -> None:
        self.text = text

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: Any) -> None:
        self.text = tf.compat.as_text(string_value)


class OwnSaveable(SaveableObject):
    """Two tensors, one of them in two slices."""

    def __init__(self, owner: Saveables, name: str) -> None:
        self.owner = owner
        pair, one = owner.pair, owner.one
        specs = [
            SaveSpec(pair[1:], "2 1,1", name, pair.dtype),
            SaveSpec(one, "", f"{name}-one", one.dtype),
            SaveSpec(pair[:1], "2 0,1", name, pair.dtype),
        ]
        super().__init__(owner, specs, name)

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> None:
        last, one, first = restored_tensors
        self.owner.pair.assign(np.concatenate([first, last]))
        self.owner.one.assign(one)


class Saveables(Trackable):
    def __init__(self, value: float) -> None:
        self.pair, self.one = tf.Variable([value, 2 * value]), tf.Variable(3 * value)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        return {"own.a": lambda name="x": OwnSaveable(self, name)}


def table(kind: Any, value: int) -> Any:
    extra = {"empty_key": "", "deleted_key": "$"} if kind is not Table else {}
    made = kind(tf.string, tf.int64, -1, **extra)
    made.insert(tf.constant(["a", "b"][:value]), tf.constant([value, 2][:value], tf.int64))
    return made


def rows_of(made: Any) -> Any:
    keys, values = made.export()
    return sorted(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


class Kind(NamedTuple):
    make: Callable[[int], Any]
    state: Callable[[Any], Any]


TAKEN = {
    "MutableHashTable": Kind(lambda n: table(Table, n), rows_of),
    "DenseHashTable": Kind(lambda n: table(tf.lookup.experimental.DenseHashTable, n), rows_of),
    "PythonState": Kind(lambda n: State(f"text {n}"), lambda one: one.text),
    "saveables": Kind(Saveables, lambda one: [one.pair.numpy().tolist(), float(one.one)]),
    "ShardedVariable": Kind(
        lambda n: ShardedVariable([tf.Variable([n, 2.0 * n]), tf.Variable([3.0 * n])]),
        lambda one: [part.numpy().tolist() for part in one.variables],
    ),
    "list": Kind(lambda n: ListWrapper([tf.Variable(1.0 * n)]), lambda one: float(one[0])),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_taken_as_tensorflow_does(kind: str, tmp_path: Path) -> None:
    make, state = TAKEN[kind]
    source = make(2)
    ckptfmt.Checkpoint(o=source).write(tmp_path / "ours")
    tf.train.Checkpoint(o=source).write(str(tmp_path / "theirs"))
    ours, theirs = (ckptfmt.load(tmp_path / name) for name in ("ours", "theirs"))
    names = {name for name in theirs if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert names and names == set(ours) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert all(ours[name].tolist() == theirs[name].tolist() for name in names)
    for path in ("ours", "theirs"):
        target = make(1)
        assert state(target) != state(source)
        ckptfmt.Checkpoint(o=target).read(tmp_path / path).assert_consumed()
        assert state(target) == state(source)
    target = make(1)
    tf.train.Checkpoint(o=target).read(str(tmp_path / "ours")).assert_consumed()
    assert state(target) == state(source)


class ModuleWithTensors(tf.Module):
    """Its methods do not give what its variable holds."""

    def __init__(self) -> None:
        super().__init__()
        self.variable = tf.Variable(1.0)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"own": tf.constant(1.0)}

    def _restore_from_tensors(self, restored_tensors: Any) -> None:
        pass


def replicated() -> Any:
    mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
    layout = dtensor.Layout.replicated(mesh, 1)
    return dtensor.DVariable(dtensor.copy_to_mesh(tf.constant([1.0, 2.0]), layout))


def old_adam() -> Any:
    """It has two variables beside its slots."""
    optimizer, variable = tf.compat.v1.train.AdamOptimizer(), tf.Variable(1.0)
    optimizer.minimize(lambda: variable * 2.0, var_list=[variable])
    return optimizer


REFUSED: dict[str, Callable[[], Any]] = {
    "optimizer with variables": old_adam,
    "iterator": lambda: iter(tf.data.Dataset.range(3)),
    "dataset": lambda: tf.data.Dataset.range(3),
    "variant": lambda: tf.data.Dataset.range(3)._variant_tensor,
    "resource": lambda: tf.Variable(1.0).handle,
    "static table": lambda: tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1])), -1
    ),
    "random numbers": lambda: tf.random.Generator.from_seed(1),
    "module": tf.Module,
    "module with tensors": ModuleWithTensors,
    "DVariable": replicated,
    "ragged": lambda: tf.ragged.constant([[1, 2], [3]]),
    "sparse": lambda: tf.sparse.from_dense([[1, 0]]),
    "IndexedSlices": lambda: tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])),
    "SaveSpec": lambda: SaveSpec(tf.constant([1.0]), "", "x"),
    "SaveableObject": lambda: OwnSaveable(Saveables(1), "x"),
    "function": lambda: tf.function(lambda x: x),
    "TensorArray": lambda: tf.TensorArray(tf.float32, 2),
    "queue": lambda: tf.queue.FIFOQueue(3, [tf.float32]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_path(kind: str, tmp_path: Path) -> None:
    variable = tf.Variable(1.0)
    ckptfmt.Checkpoint(a=variable, o=np.zeros(2)).write(tmp_path / "theirs")
    variable.assign(7.0)
    made = REFUSED[kind]()
    with pytest.raises(InvalidError, match=r"'o[/']"):
        ckptfmt.Checkpoint(a=variable, o=made).write(tmp_path / "ours")
    assert not list(tmp_path.glob("ours*"))
    with pytest.raises(InvalidError, match=r"'o[/']"):
        ckptfmt.Checkpoint(a=variable, o=made).read(tmp_path / "theirs")
    assert float(variable) == 7
    if kind != "DVariable":  # which has a value
        with pytest.raises(InvalidError):
            ckptfmt.save(tmp_path / "ours", {"o": made})


def test_an_error_of_assign_names_the_object(tmp_path: Path) -> None:
    ckptfmt.Checkpoint(v=tf.Variable([1.0, 2.0])).write(tmp_path / "ck")
    constraint = tf.Variable([1.0, 2.0])

    class Stubborn(type(constraint)):  # type: ignore[misc]
        def assign(self, value: Any) -> None:
            raise tf.errors.UnimplementedError(None, None, "no")

    constraint.__class__ = Stubborn
    with pytest.raises(InvalidError, match="'v'") as caught:
        ckptfmt.Checkpoint(v=constraint).read(tmp_path / "ck")
    assert isinstance(caught.value.__cause__, tf.errors.UnimplementedError)


@pytest.mark.parametrize("kind", ["MutableHashTable", "ShardedVariable"])
def test_dtypes_are_compared_before_anything_is_written(kind: str, tmp_path: Path) -> None:
    ckptfmt.Checkpoint(a=np.ones(2), o=TAKEN[kind].make(2)).write(tmp_path / "ck")
    array = np.zeros(2)
    if kind == "MutableHashTable":
        other = Table(tf.string, tf.int32, -1)
    else:
        parts = [tf.Variable(one, dtype=tf.float16) for one in ([1.0, 2.0], [3.0])]
        other = ShardedVariable(parts)
    with pytest.raises(InvalidError):
        ckptfmt.Checkpoint(a=array, o=other).read(tmp_path / "ck")
    assert array.tolist() == [0, 0]
