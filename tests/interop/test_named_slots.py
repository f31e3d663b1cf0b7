# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of TensorFlow 1's Saver restore variables and their slot variables in our Checkpoint
as in tf.train.Checkpoint: by full names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ckptfmt
from ckptfmt.errors import MatchError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

NAME = "layer/w"
START = (3.0, -2.0)
OPTIMIZERS = {
    "momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
    "rmsprop": lambda: tf.compat.v1.train.RMSPropOptimizer(0.1, momentum=0.9),
}
# How TensorFlow names the slots of each.
SLOTS = {
    "momentum": {"momentum": "Momentum"},
    "adam": {"m": "Adam", "v": "Adam_1"},
    "rmsprop": {"rms": "RMSProp", "momentum": "RMSProp_1"},
}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, str]:
    """The kind of an optimizer, and what TensorFlow 1's Saver wrote of a step of it."""
    path = str(tmp_path_factory.mktemp("named") / "tf1")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(START, name=NAME)
        step = OPTIMIZERS[request.param]().minimize(tf.reduce_sum(variable * variable))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        saved = tf.compat.v1.train.Saver().save(session, path)
    return request.param, saved


class Slots:
    """An optimizer whose slot variables are given."""

    def __init__(self, variable: Any, slots: Mapping[str, Any]) -> None:
        self.variable, self.slots = variable, slots

    def get_slot_names(self) -> list[str]:
        return list(self.slots)

    def get_slot(self, variable: Any, name: str) -> Any:
        return self.slots[name] if variable is self.variable else None


def values(variable: Any, slots: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: np.asarray(one).tolist() for name, one in {"": variable, **slots}.items()}


def test_slots_of_tensorflow(trained: tuple[str, str]) -> None:
    kind, path = trained
    variable, optimizer = tf.Variable((1.0, 1.0), name=NAME), OPTIMIZERS[kind]()
    optimizer.minimize(lambda: tf.reduce_sum(variable * variable))
    slots = {name: optimizer.get_slot(variable, name) for name in optimizer.get_slot_names()}
    found = []
    for checkpoint in (
        tf.train.Checkpoint(a=variable, opt=optimizer),
        ckptfmt.Checkpoint(a=variable, opt=Slots(variable, slots)),
    ):
        for one in (variable, *slots.values()):
            one.assign((7.0, 7.0))
        checkpoint.restore(path).assert_consumed()
        found.append(values(variable, slots))
    assert found[0] == found[1]
    stored = ckptfmt.load(path)
    assert found[1] == {
        "": stored[NAME].tolist(),
        **{slot: stored[f"{NAME}/{name}"].tolist() for slot, name in SLOTS[kind].items()},
    }


def test_slots_without_names_have_that_of_their_variable(trained: tuple[str, str]) -> None:
    """Arrays have no names: a slot is known by its variable's, which is its path."""
    kind, path = trained
    stored = ckptfmt.load(path)
    array = np.zeros(2, np.float32)
    names = SLOTS[kind].values()

    def objects() -> tuple[ckptfmt.Checkpoint, dict[str, Any]]:
        slots = {name: np.zeros(2, np.float32) for name in names}
        return ckptfmt.Checkpoint(layer={"w": array}, opt=Slots(array, slots)), slots

    made, slots = objects()
    assert made.restore(path, strict=False).report.missing == ()
    expected = {"": NAME, **{name: f"{NAME}/{name}" for name in names}}
    assert values(array, slots) == {one: stored[name].tolist() for one, name in expected.items()}
    made, slots = objects()
    options = ckptfmt.tf.CheckpointOptions(experimental_skip_slot_variables=True)
    made.restore(path, options).assert_consumed()
    assert not np.any(list(slots.values()))
    # Two optimizers would name their slots alike.
    made, slots = objects()
    made.other = Slots(array, {name: np.zeros(2, np.float32) for name in names})
    with pytest.raises(MatchError):
        made.restore(path).assert_consumed()
    assert not np.any(list(slots.values()))


def test_our_slots_are_found_by_name_in_tensorflow(tmp_path: Path) -> None:
    array, slot = np.ones(2, np.float32), np.full(2, 2, np.float32)
    optimizer = Slots(array, {"Momentum": slot})
    path = ckptfmt.Checkpoint(layer={"w": array}, opt=optimizer).write(tmp_path / "ours")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        targets = [tf.Variable((0.0, 0.0), name=name) for name in (NAME, f"{NAME}/Momentum")]
        tf.compat.v1.train.Saver(targets).restore(session, path)
        assert [one.tolist() for one in session.run(targets)] == [[1.0, 1.0], [2.0, 2.0]]
