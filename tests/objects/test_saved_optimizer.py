# SPDX-License-Identifier: Apache-2.0
"""A checkpoint whose root is an optimizer: it is the model, and its variables are weights."""

from __future__ import annotations

import pytest

from ckptfmt.bundle.graph import Attribute, Node, ObjectGraph, SlotVariable, attribute_key
from ckptfmt.naming.roles import optimizer_nodes, tensor_roles

STEPS, MOMENT, RATE = map(attribute_key, ("_iterations", "_variables/1", "learning_rate"))


def variable(key: str) -> Node:
    return Node(attributes=[Attribute("VARIABLE_VALUE", "", key)])


@pytest.mark.parametrize("slots", [False, True])
def test_its_variables_are_weights(slots: bool) -> None:
    listed = Node(children=[("0", 2), ("1", 3)])
    root = Node(children=[("_variables", 1), ("_iterations", 2), ("learning_rate", 4)])
    nodes = [root, listed, variable(STEPS), variable(MOMENT), variable(RATE)]
    if slots:
        root.slot_variables.append(SlotVariable(4, "m", 3))
    graph = ObjectGraph(nodes)
    assert optimizer_nodes(graph) == set()
    found = tensor_roles([STEPS, MOMENT, RATE], graph)
    assert found[STEPS] == found[RATE] == "weight"
    inner = ObjectGraph([Node(children=[("optimizer", 5)]), *nodes[1:], root])
    assert optimizer_nodes(inner) == {5}
    assert set(tensor_roles([STEPS, MOMENT, RATE], inner).values()) >= {"optimizer"}
