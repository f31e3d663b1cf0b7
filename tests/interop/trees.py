# SPDX-License-Identifier: Apache-2.0
"""Random trees as tf_trees.py takes them, and the same ones as ckptfmt has them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from ckptfmt.objects.nodes import Slot, TreeNode

from .workers import ask

Nodes = list[dict[str, Any]]
NAMES = ["a", "b.c", "d/e", "kernel", "0", "1", "ä", "x" * 30, "S.S", "_v"]
MODULE_NAMES = ["a", "b", "kernel", "zeta", "_v", "ä"]


def ask_about(trees: dict[str, Nodes], command: str, folder: Path) -> Any:
    (folder / "trees.json").write_text(json.dumps(trees), encoding="utf-8")
    return ask("tf_trees.py", command, folder)


def random_variable(rng: random.Random) -> dict[str, Any]:
    def one() -> Any:
        return rng.choice(
            [
                rng.randint(-9, 9) / 4,
                rng.randint(-99, 99),
                rng.random() < 0.5,
                "t" * rng.randint(0, 3),
            ]
        )

    value = one()
    if rng.random() < 0.5:
        return {"variable": value}
    row = [value] + [value if isinstance(value, (bool, str)) else value + i for i in range(3)]
    return {"variable": [row, row] if not isinstance(value, str) and rng.random() < 0.5 else row}


def random_tree(rng: random.Random) -> Nodes:
    """A tree whose root is a dict; modules may lead back to modules, and keep slots."""
    nodes: Nodes = [{"dict": []}]
    shared: list[int] = []

    def new(depth: int) -> int:
        number = len(nodes)
        kind = rng.choice(["dict", "list", "tuple", "module"]) if depth < 4 else "variable"
        if kind == "variable" or rng.random() < 0.4:
            nodes.append(random_variable(rng))
            shared.append(number)
            return number
        node: dict[str, Any] = {kind: []}
        nodes.append(node)
        if kind == "module":
            shared.append(number)
        # TensorFlow does not follow tuples without anything to track.
        count = rng.randint(1 if kind == "tuple" else 0, 3)
        for name in rng.sample(MODULE_NAMES if kind == "module" else NAMES, count):
            child = rng.choice(shared) if shared and rng.random() < 0.3 else new(depth + 1)
            node[kind].append(child if kind in ("list", "tuple") else [name, child])
        return number

    for name in sorted(rng.sample(MODULE_NAMES, rng.randint(1, 4))):
        nodes[0]["dict"].append([name, new(1)])
    add_slots(rng, nodes)
    return nodes


def add_slots(rng: random.Random, nodes: Nodes) -> None:
    """Slots, in TensorFlow's order: by name, then by the variable's place in the tree."""
    order = breadth_first(nodes)
    variables = [number for number in order if "variable" in nodes[number]]
    modules = [number for number in order if "module" in nodes[number]]
    for number in modules:
        if rng.random() < 0.5 or not variables:
            continue
        nodes[number]["slots"] = slots = []
        for name in sorted(rng.sample(["m", "v.w", "x/y"], rng.randint(1, 2))):
            for variable in variables:
                if rng.random() < 0.5:
                    nodes.append(random_variable(rng))
                    slots.append([variable, name, len(nodes) - 1])


def breadth_first(nodes: Nodes) -> list[int]:
    order, seen = [0], {0}
    for number in order:
        for kind in ("dict", "list", "tuple", "module"):
            for child in nodes[number].get(kind, ()):
                child_number = child[1] if isinstance(child, list) else child
                if child_number not in seen:
                    seen.add(child_number)
                    order.append(child_number)
    return order


class Ours:
    """The same tree of numpy's arrays. Tuples stay tuples or become the lists that TensorFlow's
    graphs tell them for."""

    def __init__(self, nodes: Nodes, *, tuples: bool) -> None:
        self.nodes, self.tuples = nodes, tuples
        self.made: dict[int, Any] = {}
        self.root = self.object(0)
        for number, node in enumerate(nodes):
            for original, name, value in node.get("slots", ()):
                slot = Slot(self.object(original), name, self.object(value))
                self.object(number).slots.append(slot)

    def object(self, number: int) -> Any:
        if number in self.made:
            return self.made[number]
        node = self.nodes[number]
        if "variable" in node:
            self.made[number] = array_of(node["variable"])
        elif "list" in node or "tuple" in node:
            items = [self.object(child) for child in node.get("list", node.get("tuple"))]
            if "tuple" in node and self.tuples:
                return tuple(items)
            return items if items or self.tuples else {}
        else:
            children = node.get("dict", node.get("module"))
            made = self.made[number] = TreeNode() if node.get("slots") else {}
            made.update({name: self.object(child) for name, child in children})
            if not self.tuples and made and type(made) is dict:
                return self.listed(number, made)
        return self.made[number]

    def listed(self, number: int, made: dict[str, Any]) -> Any:
        """Children named 0 and 1 only look like those of a list."""
        if made.keys() == set(map(str, range(len(made)))):
            self.made[number] = [made[str(i)] for i in range(len(made))]
        return self.made[number]


def array_of(value: Any) -> np.ndarray:
    first = value
    while isinstance(first, list):
        first = first[0]
    if isinstance(first, str):
        strings = np.empty(np.shape(value), object)
        strings[...] = (
            [one.encode() for one in value] if isinstance(value, list) else first.encode()
        )
        return strings
    return np.array(value, {bool: np.bool_, int: np.int64, float: np.float32}[type(first)])
