# SPDX-License-Identifier: Apache-2.0
"""Pairing a model with a checkpoint: by the object graph, or by the paths of variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ckptfmt._base.renaming import Rename
from ckptfmt.bundle.graph import VARIABLE_VALUE, Node, ObjectGraph, leaf_name
from ckptfmt.bundle.graph_keys import reached
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError
from ckptfmt.keras.generators import has_seeds
from ckptfmt.keras.model import OPTIMIZER, Objects, Value
from ckptfmt.keras.optimizers import OwnOptimizer, give_order
from ckptfmt.keras.pairing import Pairing, Place
from ckptfmt.objects.choice import value_names
from ckptfmt.objects.matching import Restoration
from ckptfmt.objects.traversal import View
from ckptfmt.recipe.changes import Changes

# Below these edges are what a SavedModel adds, the counter of a Checkpoint, and the optimizer.
NOT_WEIGHTS = frozenset({"keras_api", "save_counter", OPTIMIZER})
# Variables of the optimizers of Keras 2 that are attributes in Keras 3.
CONSTANTS = frozenset({"beta_1", "beta_2", "decay", "rho", "momentum", "epsilon"})
# Edges to the layers of a model by their positions, which layers without weights shift.
BY_POSITION = frozenset({"_functional", "_operations", "_layers", "layers"})
# The end of the path of a variable that every optimizer of Keras 3 has.
ITERATIONS = "/iteration"


# ---- by the object graph -------------------------------------------------------------------------


def by_graph(
    reader: Reader, graph: ObjectGraph, model: Any, optimizer: bool, choice: Changes
) -> Pairing:
    """Pair a model with the object graph that has most of its weights at the same edges."""
    keys = [_key_of(graph, node) for node in range(len(graph.nodes))]  # which `rename` moves
    rename = _rename_of_chosen(graph, choice, reader.prefix)
    _prefer_counted(graph)
    restoration = Restoration(reader, graph, Changes(rename=rename, strict=False), once=True)
    restoration.expect_partial = True
    weights = Objects(model, optimizer=False, seeds=False)
    starts: list[tuple[str | None, int]] = [(None, 0), *graph.nodes[0].children]
    name, start = max(starts, key=lambda one: len(_found(restoration, weights, one[0])))
    found = _found(restoration, weights, name)
    stored_optimizer = _stored_optimizer(graph, start)
    nodes = _below(graph, start, NOT_WEIGHTS)
    owners = _owners(graph, found, model, stored_optimizer, frozenset(nodes))
    own = OwnOptimizer(model, optimizer and stored_optimizer is not None)
    if stored_optimizer is not None and own.optimizer is not None:
        nodes += _below(graph, stored_optimizer, CONSTANTS)
        names = _names_of(graph, stored_optimizer, own.optimizer)
        if own.is_of_class(reader.metadata, names, reader.prefix, bool(choice.strict)):
            by_key = {_key_of(graph, node): owner for node, owner in owners.items()}
            moved = {node: by_key[key] for node, key in enumerate(keys) if key in by_key}
            give_order(graph, stored_optimizer, own.optimizer, moved)
        else:
            graph.nodes[stored_optimizer] = Node()
    objects = Objects(model, optimizer=own.optimizer is not None, instead=own.optimizer)
    found = _found(restoration, objects, name)
    leaves = {id(value): text for text, value in objects.leaves(name)}
    for node, owner in owners.items():
        if node not in found:
            found[node] = [(leaves[id(objects.values[owner])], objects.values[owner])]
    taken = {id(value) for values in found.values() for _, value in values}
    stored, new_names, places = dict[str, Any](), dict[str, str](), dict[str, Place]()
    for node, pairs in found.items():
        key, (place, _) = _key_of(graph, node), pairs[0]
        places[place] = Place.of(*(value for _, value in pairs))
        if key in reader:  # TensorFlow saves no value of an uninitialised variable
            stored[leaf_name(key)], new_names[leaf_name(key)] = reader[key], place
    with_seeds = has_seeds(reader)
    for place, value in objects.leaves(name):
        if id(value) not in taken and (with_seeds or not value.is_seed):
            places[place] = Place.of(value)
    for node in nodes:
        for attribute in graph.nodes[node].attributes:
            key = attribute.checkpoint_key
            if leaf_name(key) not in new_names and key in reader:
                stored[leaf_name(key)], new_names[leaf_name(key)] = reader[key], ""
    pairing = Pairing(stored, new_names, restoration.transforms, places)
    named = [(pairs[0][0], value) for pairs in found.values() for _, value in pairs]
    own.join(pairing, [*named, *objects.leaves(name)])
    return pairing


def _prefer_counted(graph: ObjectGraph) -> None:
    """Drop the edges by position to layers with weights that a model also has by their count."""
    for node in graph.nodes:
        counted = {child for name, child in node.children if name.startswith("layer_with_weights-")}
        if counted:
            node.children = [
                (name, child)
                for name, child in node.children
                if name not in BY_POSITION and not (child in counted and name.startswith("layer-"))
            ]


def _owners(
    graph: ObjectGraph,
    found: Mapping[int, list[tuple[str, Value]]],
    model: Any,
    stored_optimizer: int | None,
    named: frozenset[int],
) -> dict[int, int]:
    """Return the identities of the weights of a model by their nodes.

    Args:
        found: the weights that edges of the same names lead to.
        stored_optimizer: the node of the optimizer. TensorFlow saves some variables of Keras 3 only
            there, as those of layers in lists.
        named: the nodes that edges of the model lead to.
    """
    owners = {node: id(values[0][1].variable) for node, values in found.items()}
    listed = dict(graph.nodes[stored_optimizer or 0].children).get("_trainable_variables")
    if stored_optimizer is None or listed is None:
        return owners
    trained, taken = model.trainable_variables, set(owners.values())
    for text, node in graph.nodes[listed].children:
        index = int(text) if text.isdecimal() else len(trained)
        is_taken = node in owners or node in named
        if not is_taken and index < len(trained) and id(trained[index]) not in taken:
            owners[node] = id(trained[index])
    return owners


def _names_of(graph: ObjectGraph, stored: int, own: Any) -> list[tuple[str, str]]:
    """Return the names of an optimizer and of the stored one, which the full names of its variables
    begin with. One in another optimizer has the count of iterations of both."""
    node = dict(graph.nodes[stored].children).get("_iterations")
    if node is None or hasattr(own, "inner_optimizer"):
        return []
    names = (one.full_name for one in graph.nodes[node].attributes)
    return [(own.name, name.rpartition("/")[0]) for name in names]


def _rename_of_chosen(graph: ObjectGraph, choice: Changes, prefix: str) -> Rename | None:
    """Return the `rename` of a choice, which also drops a value that is left out if a value that is
    loaded, or another that is left out, has its new name."""
    if choice.rename is None or (choice.names is None and choice.filter is None):
        return choice.rename
    loaded, left_out, transforms = choice.chosen(list(value_names(graph)), prefix)
    by_new = {new: old for old, new in reversed(left_out.items())}
    new_names = loaded | {old: new for new, old in by_new.items()}

    def rename(name: str) -> Any:
        new, transform = new_names.get(name), transforms.get(name)
        return new if transform is None else (new, transform)

    return rename


def _stored_optimizer(graph: ObjectGraph, model: int) -> int | None:
    """Return the node of the optimizer of a model; None if it has no values but the model's."""
    optimizers = [dict(graph.nodes[node].children).get(OPTIMIZER) for node in (model, 0)]
    found = next((node for node in optimizers if node is not None), None)
    if found is None:
        return None
    own = set(_below(graph, found, CONSTANTS | {"_trainable_variables"}))
    slots = [one.slot_variable_node_id for node in own for one in graph.nodes[node].slot_variables]
    own = own.union(slots).difference(_below(graph, model, NOT_WEIGHTS))
    return found if any(graph.nodes[node].attributes for node in own) else None


def _found(
    restoration: Restoration, objects: Objects, name: str | None
) -> dict[int, list[tuple[str, Value]]]:
    """Return the variables by the nodes that edges of the same names lead to, with their paths."""
    found: dict[int, list[tuple[str, Value]]] = {}
    for node, local in restoration.match(View(objects.below(name))).pairs():
        if isinstance(local.value, Value) and _key_of(restoration.graph, node):
            found.setdefault(node, []).append((str(local), local.value))
    return found


def _key_of(graph: ObjectGraph, node: int) -> str:
    every = graph.nodes[node].attributes
    return next((one.checkpoint_key for one in every if one.name == VARIABLE_VALUE), "")


def _below(graph: ObjectGraph, start: int, skipped: frozenset[str]) -> list[int]:
    """Return the nodes that a node reaches without edges of these names."""
    return reached(
        [start],
        lambda node: (child for name, child in graph.nodes[node].children if name not in skipped),
    )


# ---- by the paths of variables -------------------------------------------------------------------


def by_path(
    reader: Reader, graph: ObjectGraph | None, model: Any, optimizer: bool, choice: Changes
) -> Pairing:
    """Pair variables with tensors, or with variables of an object graph, by their names."""
    stored: dict[str, Any] = dict(reader) if graph is None else _by_full_name(reader, graph)
    loaded, left_out, transforms = choice.chosen(list(stored), reader.prefix)
    new_names = loaded | left_out
    weights = Objects(model, optimizer=False).by_path()
    optimizers = _optimizers_of(model, set(new_names.values()).difference(weights))
    is_stored = any(new.startswith(optimizers) for new in new_names.values())
    own = OwnOptimizer(model, optimizer and is_stored)
    if own.optimizer is None or not own.is_of_class(
        reader.metadata, (), reader.prefix, bool(choice.strict)
    ):
        new_names = {
            old: new
            for old, new in new_names.items()
            if new in weights or not new.startswith(optimizers)
        }
    objects = Objects(model, optimizer=own.optimizer is not None, instead=own.optimizer)
    values, with_seeds = objects.by_path(), has_seeds(reader)
    places = {
        path: Place.of(value)
        for path, value in values.items()
        if with_seeds or path in new_names.values() or not value.is_seed
    }
    pairing = Pairing(stored, new_names, transforms, places)
    own.join(pairing, values.items())
    return pairing


def _optimizers_of(model: Any, paths: Collection[str]) -> tuple[str, ...]:
    """Return what the paths of the variables of optimizers start with: of the model's own, and of
    those that have a count of iterations among these paths."""
    own = getattr(model, OPTIMIZER, None)
    names = {path.removesuffix(ITERATIONS) for path in paths if path.endswith(ITERATIONS)}
    names = {name for name in names if "/" not in name}
    if own is not None:
        names.add(own.name)
    return tuple(f"{name}/" for name in names)


def _by_full_name(reader: Reader, graph: ObjectGraph) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in _below(graph, 0, NOT_WEIGHTS):
        for one in graph.nodes[node].attributes:
            if not one.full_name or one.checkpoint_key not in reader:
                continue
            handle = reader[one.checkpoint_key]
            other = found.setdefault(one.full_name, handle)
            # `model.export()` stores each variable in several lists.
            if other.name != handle.name and not _are_equal(other, handle):
                raise InvalidError(
                    "two variables of the checkpoint have this path: load by='graph'",
                    path=reader.prefix,
                    tensor=one.full_name,
                )
    return found


def _are_equal(one: TensorHandle, other: TensorHandle) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.read().tobytes() == other.read().tobytes()
