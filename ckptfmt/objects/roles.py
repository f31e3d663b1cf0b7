# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are weights of the model, and which the state of an optimizer.

With an object graph, an optimizer is an object with slot variables, or one whose name or children
are those of an optimizer. Its state is what can be reached through it alone: Keras 3 lists the
model's variables in the optimizer (`_trainable_variables`), and its checkpoints may hold them under
that path, but they are weights all the same.

Without a graph, TensorFlow 1 names a slot variable after the variable it belongs to: `w/Adam` and
`w/Adam_1`, `w/Momentum`; and the accumulators `beta1_power` and `beta2_power`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from ckptfmt.bundle.reader import Reader
from ckptfmt.objects.build import graph_of, key_groups
from ckptfmt.objects.graph import OPTIMIZER_SLOT, Node, ObjectGraph

__all__ = ["ModelRole", "model_roles", "optimizer_names", "optimizer_nodes"]

ModelRole = Literal["weight", "optimizer", "other"]

# Children that only optimizers have, of Keras 2 (before and after 2.11), Keras 3 and Sonnet, and
# those that one of these and another object can have.
_STEPS = {"iter", "iterations", "_iterations"}
_RATES = {
    "learning_rate",
    "_learning_rate",
    "beta_1",
    "beta_2",
    "decay",
    "momentum",
    "rho",
    "_momentums",
    "_velocities",
    "_trainable_variables",
}
_NAME = re.compile(r"_*(?:[a-z0-9]+_)*optimizers?", re.IGNORECASE)
# The list of the model's variables in an optimizer of Keras 3.
MODEL_VARIABLES = "_trainable_variables"
# Of TensorFlow 1: the last part of a slot variable's name, and that of an accumulator's.
_SLOT = re.compile(
    r"(?:Adam|AdamW|AdaMax|AMSGrad|NAdam|Nadam|LazyAdam|AdamOptimizer|AdamWeightDecay|LAMB|Lamb"
    r"|LARS|Lars|Momentum|MomentumOptimizer|RMSProp|Adagrad|AdagradDA|Adadelta|Ftrl|ProximalAdagrad"
    r"|Adafactor|AddSign|PowerSign|GGT|Shampoo|adam_[mv]|lamb_[mv]|slot_v[rc]?|slot_m)(?:_[0-9]+)?"
)
_SLOT_SUFFIX = re.compile(r"_(?:slot_v[rc]?|slot_m|adam_[mv])$")
_ACCUMULATOR = re.compile(r"(?:.*/)?beta[12]_power(?:_[0-9]+)?")
# Counters of steps and saves, and the metrics in a SavedModel of Keras.
_OTHER = re.compile(
    r"(?:.*/)?(?:global_step|save_counter|step)(?:/\.ATTRIBUTES/VARIABLE_VALUE)?"
    r"|keras_api/metrics/.*"
)


def model_roles(reader: Reader) -> dict[str, ModelRole]:
    """Return the role of every tensor: "weight", "optimizer", or "other" for the object graph,
    steps, strings and the metrics of Keras."""
    stored = list(reader)
    graph = graph_of(reader)
    of_optimizer = optimizer_names(stored, graph)
    table = reader.table()
    numbers = {
        name: dtype not in ("string", "variant", "resource")
        for name, dtype in zip(table["name"].tolist(), table["dtype"].tolist(), strict=True)
    }
    found: dict[str, ModelRole] = {}
    for name in stored:
        if name in of_optimizer:
            found[name] = "optimizer"
        elif not numbers[name] or _OTHER.fullmatch(name):
            found[name] = "other"
        else:
            found[name] = "weight"
    return found


def optimizer_names(stored: Iterable[str], graph: ObjectGraph | None) -> set[str]:
    """Return the tensors that are the state of an optimizer.

    Args:
        stored: the names of all tensors.
        graph: the object graph; None if the checkpoint has none.
    """
    listed = list(stored)
    if graph is None:
        return _by_names(listed)
    nodes = graph.nodes
    weights = _model_nodes(graph)
    keys: set[str] = set()
    kept: set[str] = set()
    for node_id, node in enumerate(nodes):
        for one in node.attributes:
            (kept if node_id in weights else keys).add(one.checkpoint_key)
    state = _reached(
        nodes, [child for one in optimizer_nodes(graph) for child in _inside(nodes, one)]
    )
    mine = {one.checkpoint_key for node_id in state for one in nodes[node_id].attributes}
    chosen = (mine & keys) - kept
    groups = key_groups(chosen.difference(listed), sorted(set(listed).difference(keys, kept)))
    wanted = chosen.union(*groups.values())
    return {name for name in listed if name in wanted}


def optimizer_nodes(graph: ObjectGraph) -> set[int]:
    """Return the nodes of optimizers. The root is never one: a saved optimizer is the model."""
    found = {node_id for node_id, node in enumerate(graph.nodes) if _is_optimizer(node)}
    for node in graph.nodes:
        for name, child in node.children:
            below = {one for one, _ in graph.nodes[child].children}
            if _NAME.fullmatch(name) and "layers" not in below:
                found.add(child)
    return found - {0}


def _is_optimizer(node: Node) -> bool:
    children = {name for name, _ in node.children}
    return bool(node.slot_variables) or bool(children & _STEPS and children & _RATES)


def _inside(nodes: list[Node], optimizer: int) -> list[int]:
    """Return the optimizer, its children, and its slot variables."""
    node = nodes[optimizer]
    return [
        optimizer,
        *(child for name, child in node.children if name != MODEL_VARIABLES),
        *(slot.slot_variable_node_id for slot in node.slot_variables),
    ]


def _model_nodes(graph: ObjectGraph) -> set[int]:
    """Return the nodes that are reached without an optimizer, or that one lists as the model's, or
    has slot variables for."""
    nodes, optimizers = graph.nodes, optimizer_nodes(graph)
    slots = {slot.slot_variable_node_id for node in nodes for slot in node.slot_variables}
    start = [0]
    for one in optimizers:
        start += [slot.original_variable_node_id for slot in nodes[one].slot_variables]
        start += [
            variable
            for name, child in nodes[one].children
            if name == MODEL_VARIABLES
            for _, variable in nodes[child].children
        ]
    return _reached(nodes, start, optimizers | slots)


def _reached(nodes: list[Node], start: Iterable[int], but: Iterable[int] = ()) -> set[int]:
    """Return the nodes that are reached through children, without going into some."""
    closed = set(but)
    waiting = [one for one in start if one not in closed]
    found = set(waiting)
    while waiting:
        for _, child in nodes[waiting.pop()].children:
            if child not in found and child not in closed:
                found.add(child)
                waiting.append(child)
    return found


def _by_names(stored: list[str]) -> set[str]:
    present = set(stored)
    return {name for name in stored if _ACCUMULATOR.fullmatch(name) or _is_slot(name, present)}


def _is_slot(name: str, present: set[str] | Mapping[str, object]) -> bool:
    """Return whether a name is that of a slot variable of another tensor, perhaps in the name scope
    of an optimizer: `OptimizeLoss/w/Adam` of `w`."""
    if OPTIMIZER_SLOT in name.split("/"):
        return True
    owner, _, last = name.rpartition("/")
    if not _SLOT.fullmatch(last):
        short = _SLOT_SUFFIX.sub("", name)
        return short != name and short in present
    while owner:
        if owner in present:
            return True
        owner = owner.partition("/")[2]
    return False
