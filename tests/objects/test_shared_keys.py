# SPDX-License-Identifier: Apache-2.0
"""A tensor that is an attribute of two objects of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ckptfmt.bundle.graph import Attribute, Node, ObjectGraph, attribute_key
from ckptfmt.naming.roles import tensor_roles

SHARED, STEPS = attribute_key("scale"), attribute_key("optimizer/_iterations")


def variable(key: str) -> Node:
    return Node(attributes=[Attribute("VARIABLE_VALUE", "", key)])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_weight_that_an_optimizer_has_as_well_is_a_weight(order: Sequence[int]) -> None:
    """Of its roles the one counts that is dropped last."""
    objects = [("model", [("scale", 5)]), ("optimizer", [("_variables", 4), ("_iterations", 3)])]
    root = Node()
    nodes = [root, Node(), Node(), variable(STEPS), Node(), variable(SHARED), variable(SHARED)]
    for number, at in enumerate(order, 1):
        name, children = objects[at]
        root.children.append((name, number))
        nodes[number].children.extend(children)
    nodes[4].children.extend([("0", 6), ("1", 3)])
    found = tensor_roles([SHARED, STEPS], ObjectGraph(nodes))
    assert found == {SHARED: "weight", STEPS: "optimizer"}
