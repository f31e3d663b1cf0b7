# SPDX-License-Identifier: Apache-2.0
"""Variables of TensorFlow and Keras as leaves of our Checkpoint: the files are those that
tf.train.Checkpoint writes of the same variables, and either restores the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ckptfmt
from ckptfmt import InvalidError

# TensorFlow's variables have an `__array__` from before NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

VARIABLES = {
    "float": lambda: tf.Variable([[1.0, 2.0]]),
    "bfloat16": lambda: tf.Variable(tf.ones((2, 3), tf.bfloat16)),
    "scalar": lambda: tf.Variable(7, dtype=tf.int64),
    "strings": lambda: tf.Variable(["a", "bc"]),
    "unknown shape": lambda: tf.Variable([1, 2], shape=[None]),
    "keras": lambda: keras.Variable(np.ones((2, 3), np.float32)),
}


def cleared(variable: Any) -> Any:
    values = np.array(variable)
    variable.assign(np.full_like(values, "" if values.dtype == object else 0))
    return variable


@pytest.mark.parametrize("kind", VARIABLES)
def test_variables_both_ways(kind: str, tmp_path: Path) -> None:
    variable = VARIABLES[kind]()
    expected = np.array(variable)
    ours = ckptfmt.Checkpoint(tree={"x": variable}).save(tmp_path / "ours")
    theirs = tf.train.Checkpoint(tree={"x": variable}).save(str(tmp_path / "theirs"))
    key = "tree/x/.ATTRIBUTES/VARIABLE_VALUE"
    assert ckptfmt.load(ours)[key].tolist() == ckptfmt.load(theirs)[key].tolist()
    for path in (ours, theirs):
        target = cleared(variable)
        ckptfmt.Checkpoint(tree={"x": target}).restore(path).assert_consumed()
        np.testing.assert_array_equal(np.array(target), expected)
    tf.train.Checkpoint(tree={"x": cleared(variable)}).restore(ours).assert_consumed()
    np.testing.assert_array_equal(np.array(variable), expected)


def test_nothing_is_assigned_where_something_does_not_fit(tmp_path: Path) -> None:
    saved = {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable([3.0])}
    path = ckptfmt.Checkpoint(tree=saved).write(tmp_path / "ck")
    target = {"a": tf.Variable([0.0, 0.0]), "b": tf.Variable([0.0, 0.0])}
    with pytest.raises(InvalidError) as caught:
        ckptfmt.Checkpoint(tree=target).read(path)
    assert caught.value.tensor == "tree/b/.ATTRIBUTES/VARIABLE_VALUE"
    assert not target["a"].numpy().any()


def test_a_module_names_what_saves_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"the object at 'm' .* tf\.train\.Checkpoint"):
        ckptfmt.Checkpoint(m=tf.Module()).save(tmp_path / "ck")
