# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of objects that are optimizers or look like them, drawn at random, and edits of them.

What is a weight is known from the making, and not from the names.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptfmt
from ckptfmt.objects.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    attribute_key,
    encode_graph,
    mark_checkpoint_values,
)

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Drawn:
    """A checkpoint.

    Attributes:
        values: all tensors but the graph, by name.
        weights: the names of those that a model needs.
        state: the names of those that only a known optimizer has.
        graph: None for a name-based checkpoint of TensorFlow 1.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.values: dict[str, NDArray[Any]] = {}
        self.weights: set[str] = set()
        self.state: set[str] = set()
        self.nodes = [Node()]
        self.graph: ObjectGraph | None = None
        if chance.random() < 0.25:
            self._names()
            return
        for number in range(chance.randint(1, 4)):
            kind = chance.choice(
                [self._net, self._agent, self._quantizer, self._trainer, self._learned]
                + [self._keras_3] * 3
                + [self._slots] * 2
            )
            kind(0, self._name(number))
        self.graph = ObjectGraph(self.nodes)
        mark_checkpoint_values(self.graph)

    def save(self, prefix: Path) -> None:
        tensors: dict[str, Any] = dict(self.values)
        if self.graph is not None:
            tensors[OBJECT_GRAPH_KEY] = np.array(encode_graph(self.graph), object)
        names, values = zip(*sorted(tensors.items()), strict=True)
        ckptfmt.save_v2(prefix, names, [""] * len(names), values)

    # ---- values

    def _name(self, number: int) -> str:
        words = ["model", "optimizer", "my_optimizer", "trainer", "agent", "iter", "x", "opt"]
        return f"{self.chance.choice(words)}{number or ''}"

    def _value(self) -> NDArray[Any]:
        scale = self.chance.choice([1.0, 1.0, 1e-9, 1e6])
        shape = self.chance.choice([(2, 3), (4,), (3,)])
        generator = np.random.default_rng(self.chance.randrange(1 << 30))
        return (generator.normal(size=shape) * scale).astype("f4")

    # ---- graphs

    def _child(self, parent: int, name: str) -> int:
        self.nodes.append(Node())
        self.nodes[parent].children.append((name, len(self.nodes) - 1))
        return len(self.nodes) - 1

    def _store(self, number: int, path: str, kind: set[str], value: NDArray[Any]) -> int:
        key = attribute_key(path)
        self.nodes[number].attributes.append(Attribute("VARIABLE_VALUE", "", key))
        self.values[key] = value
        kind.add(key)
        return number

    def _variable(self, parent: int, name: str, path: str, kind: set[str]) -> int:
        number = self._child(parent, name)
        value = np.float32(self.chance.random()) if kind is self.state else self._value()
        return self._store(number, f"{path}/{name}", kind, np.asarray(value))

    def _net(self, parent: int, name: str, path: str = "") -> list[int]:
        number, path = self._child(parent, name), f"{path}/{name}".lstrip("/")
        names = self.chance.sample(["kernel", "bias", "momentum", "iter", "m"], 2)
        return [self._variable(number, one, path, self.weights) for one in names]

    def _agent(self, parent: int, name: str) -> None:
        number = self._child(parent, name)
        for one in self.chance.sample(["iterations", "learning_rate", "decay", "step"], 2):
            self._variable(number, one, name, self.weights)
        self._net(number, "net", name)

    def _quantizer(self, parent: int, name: str) -> None:
        number = self._child(parent, name)
        for one in ("embedding", "decay", "iter"):
            self._variable(number, one, name, self.weights)

    def _learned(self, parent: int, name: str) -> None:
        number = self._child(parent, f"learned_{name}")
        self._net(number, "net", f"learned_{name}")

    def _trainer(self, parent: int, name: str) -> None:
        number = self._child(parent, name)
        self._variable(number, "step_counter", name, self.weights)
        variables = self._net(number, "net", name)
        self._optimizer(number, "optimizer", name, variables, listed=False)

    def _keras_3(self, parent: int, name: str) -> None:
        """The variables of the model are stored at their paths in it, or in the optimizer."""
        listed = self.chance.random() < 0.5
        model = self._child(parent, f"{name}_model")
        variables = [] if listed else self._net(model, "dense", f"{name}_model")
        owner, path = parent, ""
        if self.chance.random() < 0.4:  # LossScaleOptimizer
            owner, path = self._child(parent, f"{name}_scaled"), f"{name}_scaled"
            self._variable(owner, "dynamic_scale", path, self.state)
            name = "inner_optimizer"
        made = self._optimizer(owner, name, path, variables, listed=listed)
        for position, variable in enumerate(made if listed else []):
            self.nodes[model].children.append((f"w{position}", variable))

    def _optimizer(
        self, parent: int, name: str, path: str, variables: list[int], *, listed: bool
    ) -> list[int]:
        number, path = self._child(parent, name), f"{path}/{name}".lstrip("/")
        own = self._child(number, "_trainable_variables")
        if listed:
            below = f"{path}/_trainable_variables"
            variables = [self._variable(own, str(n), below, self.weights) for n in range(2)]
        else:
            self.nodes[own].children += [(str(n), one) for n, one in enumerate(variables)]
        state = self._child(number, "_variables")
        made = [
            self._variable(state, str(n), f"{path}/_variables", self.state)
            for n in range(2 + len(variables))
        ]
        self.nodes[number].children += [("_iterations", made[0]), ("_learning_rate", made[1])]
        momentums = self._child(number, "_momentums")
        self.nodes[momentums].children += [(str(n), one) for n, one in enumerate(made[2:])]
        return variables

    def _slots(self, parent: int, name: str) -> None:
        variables = self._net(parent, f"{name}_net")
        number = self._child(parent, name)
        for one in self.chance.sample(["beta1_power", "iter", "learning_rate"], 2):
            self._variable(number, one, name, self.state)
        if self.chance.random() < 0.3:  # an optimizer that is learned
            self._net(number, "net", name)
        for variable in variables:
            owner = self.nodes[variable].attributes[0].checkpoint_key.removesuffix(VALUE)
            self.nodes.append(Node())
            slot = self._store(
                len(self.nodes) - 1, f"{owner}/.OPTIMIZER_SLOT/{name}/m", self.state, self._value()
            )
            self.nodes[number].slot_variables.append(SlotVariable(variable, "m", slot))

    # ---- names

    def _names(self) -> None:
        """Of TensorFlow 1, some variables partitioned."""
        for number in range(self.chance.randint(1, 4)):
            name = f"layer_{number}/{self.chance.choice(['w', 'Adam', 'kernel', 'optimizer/b'])}"
            self.values[name] = self._value()
            self.weights.add(name)
            parts = self.chance.choice([[""], ["/part_0", "/part_1"]])
            for part in parts:
                slot = f"{name}{part}/{self.chance.choice(['Adam', 'Adam_1', 'Momentum'])}"
                self.values[slot] = self._value()
                self.state.add(slot)
        self.values["beta1_power"] = np.asarray(np.float32(0.9))
        self.state.add("beta1_power")


def drawn_edit(chance: random.Random, names: list[str]) -> dict[str, Any]:
    """Return arguments of `ckptfmt.edit`."""
    given: dict[str, Any] = {}
    first = [name.partition("/")[0] for name in names]
    if chance.random() < 0.5:
        given["strip_optimizer"] = True
    if chance.random() < 0.3:
        given[chance.choice(["drop", "keep"])] = f"{chance.choice(first)}/*"
    if chance.random() < 0.3:
        given["rename"] = (f"^{chance.choice(first)}/", "renamed/")
    if chance.random() < 0.3:
        given["cast"] = chance.choice(["float16", "bfloat16", "int8"])
    if chance.random() < 0.3:
        given["drop_weights"] = True
    return given or {"strip_optimizer": True}
