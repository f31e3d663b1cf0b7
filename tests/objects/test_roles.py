# SPDX-License-Identifier: Apache-2.0
"""Which tensors are weights and which the state of an optimizer. tests/interop/test_edit.py asks
the same of checkpoints that TensorFlow and Keras write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.objects.graph import Attribute, Node, ObjectGraph, SlotVariable, attribute_key
from ckptfmt.objects.roles import model_roles, optimizer_names, optimizer_nodes


class Graph:
    """Builds an object graph; `add` returns the number of a node, `leaf` that of a variable."""

    def __init__(self) -> None:
        self.nodes = [Node()]
        self.keys: list[str] = []

    def add(self, parent: int, name: str) -> int:
        self.nodes.append(Node())
        self.nodes[parent].children.append((name, len(self.nodes) - 1))
        return len(self.nodes) - 1

    def leaf(self, parent: int, name: str, path: str) -> int:
        number = self.add(parent, name)
        self.keys.append(attribute_key(path))
        self.nodes[number].attributes.append(Attribute("VARIABLE_VALUE", "", self.keys[-1]))
        return number

    def link(self, parent: int, name: str, child: int) -> None:
        self.nodes[parent].children.append((name, child))

    def optimizer_paths(self) -> list[str]:
        found = optimizer_names(self.keys, ObjectGraph(self.nodes))
        return sorted(key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key in found)


def keras_2(name: str) -> Graph:
    """Slot variables, and hyperparameters as children of the optimizer."""
    graph = Graph()
    model = graph.add(0, "model")
    kernel = graph.leaf(model, "kernel", "model/kernel")
    optimizer = graph.add(0, name)
    for child in ("iter", "beta_1", "learning_rate"):
        graph.leaf(optimizer, child, f"{name}/{child}")
    graph.keys.append(attribute_key(f"model/kernel/.OPTIMIZER_SLOT/{name}/m"))
    slot = Node(attributes=[Attribute("VARIABLE_VALUE", "", graph.keys[-1])])
    graph.nodes.append(slot)
    graph.nodes[optimizer].slot_variables.append(SlotVariable(kernel, "m", len(graph.nodes) - 1))
    return graph


@pytest.mark.parametrize("name", ["optimizer", "opt", "x"])
def test_keras_2(name: str) -> None:
    assert keras_2(name).optimizer_paths() == sorted(
        [
            f"{name}/iter",
            f"{name}/beta_1",
            f"{name}/learning_rate",
            f"model/kernel/.OPTIMIZER_SLOT/{name}/m",
        ]
    )


@pytest.mark.parametrize("place", ["optimizer", "model/optimizer", "opt"])
@pytest.mark.parametrize("nested", [False, True])
def test_keras_3(place: str, nested: bool) -> None:
    """The optimizer lists the model's variables, and their keys are below it."""
    graph = Graph()
    model = graph.add(0, "model")
    owner, _, name = place.rpartition("/")
    optimizer = graph.add(model if owner else 0, name)
    if nested:  # LossScaleOptimizer
        graph.leaf(optimizer, "step_counter", f"{place}/step_counter")
        optimizer = graph.add(optimizer, "inner_optimizer")
        place += "/inner_optimizer"
    listed = graph.add(optimizer, "_trainable_variables")
    weight = graph.leaf(listed, "0", f"{place}/_trainable_variables/0")
    own = graph.add(optimizer, "_variables")
    state = [graph.leaf(own, str(number), f"{place}/_variables/{number}") for number in range(3)]
    graph.link(optimizer, "_iterations", state[0])
    graph.link(optimizer, "_learning_rate", state[1])
    layer = graph.add(model, "layer")
    graph.link(layer, "kernel", weight)
    graph.leaf(layer, "moving_mean", "model/layer/moving_mean")
    expected = [f"{place}/_variables/{number}" for number in range(3)]
    if nested and place != "opt/inner_optimizer":
        expected.append(f"{place.removesuffix('/inner_optimizer')}/step_counter")
    assert graph.optimizer_paths() == sorted(expected)


def test_not_optimizers() -> None:
    """A model with the name of one, a saved optimizer that is the root, a cycle."""
    graph = Graph()
    model = graph.add(0, "optimizer")
    layers = graph.add(model, "layers")
    graph.leaf(layers, "w", "optimizer/layers/w")
    graph.link(layers, "parent", model)
    graph.leaf(0, "iter", "iter")
    graph.leaf(0, "momentum", "momentum")
    assert optimizer_nodes(ObjectGraph(graph.nodes)) == set()
    assert graph.optimizer_paths() == []


def test_variables_shared_with_the_model_stay() -> None:
    graph = Graph()
    optimizer = graph.add(0, "optimizer")
    shared = graph.leaf(optimizer, "scale", "optimizer/scale")
    graph.leaf(optimizer, "count", "optimizer/count")
    graph.link(graph.add(0, "model"), "scale", shared)
    assert graph.optimizer_paths() == ["optimizer/count"]


def test_names_of_tensorflow_1(tmp_path: Path) -> None:
    expected = {
        "beta1_power": "optimizer",
        "opt/beta2_power_1": "optimizer",
        "global_step": "other",
        "words": "other",
        "w": "weight",
        "w/Adam": "optimizer",
        "w/Adam_1": "optimizer",
        "OptimizeLoss/w/Momentum": "optimizer",
        "train/scope/w/Ftrl_1": "optimizer",
        "w/adam_m": "optimizer",
        "w_slot_vr": "optimizer",
        "w/RMSProp_2": "optimizer",
        # Of no tensor that is there.
        "Adam": "weight",
        "v/Adam": "weight",
        "ww/Momentum": "weight",
        "x_slot_v": "weight",
        "w/Adamant": "weight",
        "w/ExponentialMovingAverage": "weight",
    }
    values = {name: np.ones(3) for name in expected}
    ckptfmt.save(tmp_path / "a", {**values, "words": np.array([b"one"], object)})
    with ckptfmt.open(tmp_path / "a") as reader:
        assert model_roles(reader) == expected
    done = ckptfmt.edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert set(done.dropped) == {name for name, role in expected.items() if role == "optimizer"}
