# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are weights of the model, and which the state of an optimizer.

With an object graph, an optimizer is an object that owns slot variables, or one that has the
attributes of a known optimizer (Keras 2 and 3, Sonnet, a wrapper of one of these) and nothing that
such an optimizer does not have. Its state is its slot variables, its own variables and its lists of
variables: never what is below another object. Keras 3 lists the model's variables in the optimizer
(`_trainable_variables`), and its checkpoints may hold them under that path, but they are weights.

Without a graph, TensorFlow 1 names a slot variable after the variable it belongs to: `w/Adam` and
`w/Adam_1`, `w/Momentum`; and the accumulators `beta1_power` and `beta2_power`. States that
`ckptfmt.torch` or `ckptfmt.jax` saved, and Keras's files that `ckptfmt.convert` converted, say in
their metadata where an optimizer's state is.

What looks like an optimizer and is not known to be one is of the role "unknown".
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ckptfmt._base.names import VALUE_SUFFIX
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    OBJECT_CONFIG_JSON,
    OBJECT_GRAPH_KEY,
    OPTIMIZER_SLOT,
    Node,
    ObjectGraph,
)
from ckptfmt.bundle.graph_keys import graph_of, key_groups, reached
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import UnsupportedError

ModelRole = Literal["weight", "optimizer", "other", "unknown"]

# The list of the model's variables in an optimizer of Keras.
MODEL_VARIABLES = "_trainable_variables"
# The list of all variables of an optimizer of Keras 3 or 2 (since 2.11), and its counter, which is
# one of them.
OWN_VARIABLES, _COUNTERS = "_variables", ("_iterations", "iterations")
# Children that an optimizer of Keras 2 before that has.
_LEGACY_MARK = {"iter", "decay", "learning_rate"}
# The lists of Sonnet's Adam, Momentum and RMSProp, by marks.
_SONNET = (
    ({"step", "m", "v"}, {"m", "v"}),
    ({"accumulated_momentum"}, {"accumulated_momentum"}),
    ({"mom", "ms"}, {"mom", "ms", "mg"}),
)
# Children that wrap another optimizer, and one of those that its wrapper has besides.
_INNER = {"inner_optimizer", "base_optimizer", "_optimizer", "optimizer"}
_WRAPPER_MARKS = {"loss_scale", "_loss_scale", "dynamic_scale", "step_counter"}
# Single variables of such optimizers.
_VARIABLES = {
    *("iter", "iterations", "_iterations", "step", "step_counter", "dynamic_scale", "good_steps"),
    *("learning_rate", "_learning_rate", "_current_learning_rate", "decay", "weight_decay"),
    *("momentum", "rho", "epsilon", "beta1", "beta2", "beta_1", "beta_2", "beta1_power"),
    *("beta2_power", "loss_scale", "_loss_scale", "current_loss_scale", "_u_product", "_m_cache"),
}
_LOSS_SCALES = {"loss_scale", "_loss_scale"}
# Optimizers that wrap optimizers that wrap optimizers.
_NESTING_MAX = 8

# Names of what may be an optimizer.
_NAME = re.compile(r"_*(?:[a-z0-9]+_)*(?:optimizers?|opts?|opt_states?)", re.IGNORECASE)
# Of TensorFlow 1: the last part of a slot variable's name, and that of an accumulator's.
_SLOT = re.compile(
    r"(?:Adam|AdamW|AdaMax|AMSGrad|NAdam|Nadam|LazyAdam|AdamOptimizer|AdamWeightDecay|LAMB|Lamb"
    r"|LARS|Lars|Momentum|MomentumOptimizer|RMSProp|Adagrad|AdagradDA|Adadelta|Ftrl|ProximalAdagrad"
    r"|Adafactor|AddSign|PowerSign|GGT|Shampoo|adam_[mv]|lamb_[mv]|slot_v[rc]?|slot_m)(?:_[0-9]+)?"
)
# A slot's owner is searched below this many name scopes: a hostile name may have a million parts.
_PARTS_MAX = 64
_SLOT_SUFFIX = re.compile(r"_(?:slot_v[rc]?|slot_m|adam_[mv])$")
# The slots of a partitioned variable are named after its parts; it is stored as one tensor.
_PART = re.compile(r"/part_[0-9]+$")
_ACCUMULATOR = re.compile(r"(?:.*/)?beta[12]_power(?:_[0-9]+)?")
# Counters of steps and saves; metrics in a SavedModel of Keras, and configurations of its objects.
_OTHER = re.compile(r"(?:.*/)?(?:global_step|save_counter|step)(?:/\.ATTRIBUTES/VARIABLE_VALUE)?")
_OF_KERAS = re.compile(rf"^keras_api/metrics/|/{re.escape(ATTRIBUTES)}/{OBJECT_CONFIG_JSON}$")
# The state of torch's generator of the CPU, and of NumPy's; those of GPUs are known by their names.
_GENERATORS = {"uint8": (5056,), "uint32": (624,)}
RANDOM = re.compile(r"(?:^|[._/])(?:random|rng|cuda)(?:$|[._/])")
# How the names of other such tensors end.
_OTHER_ENDS = ("step", "save_counter", VALUE_SUFFIX, f"/{OBJECT_CONFIG_JSON}", OBJECT_GRAPH_KEY)
_STRINGS = {"string", "variant", "resource"}
# Metadata: the paths below which all tensors of a checkpoint without a graph are the state of an
# optimizer; "" is above all. Written where the tree or the layout of the source says so.
OPTIMIZER_STATES = "ckptfmt.optimizer_states"
# Metadata: pairs of groups of variables in a `.weights.h5` file and the names of their layers or
# optimizers.
KERAS_NAMES = "ckptfmt.keras.names"


# Names, shapes and dtypes, by TensorFlow's names.
Columns = tuple[list[str], list[tuple[int, ...]], list[str]]


def model_roles(
    reader: Reader, columns: Columns | None = None, graph: ObjectGraph | None = None
) -> dict[str, ModelRole]:
    """Return the role of every tensor: "weight"; "optimizer"; "unknown" for what may be either, and
    for strings, which may be a vocabulary; or "other" for the object graph, steps, the states of
    random number generators, and the metrics and configurations of Keras.

    Args:
        reader: the checkpoint.
        columns: names, shapes and dtypes of its tensors, where these are at hand.
        graph: its object graph, where this is at hand.
    """
    if columns is None:
        table = reader.table()
        columns = table["name"].tolist(), table["shape"].tolist(), table["dtype"].tolist()
    names, shapes, dtypes = columns
    if graph is None:
        graph = graph_of(reader)
    of_graph = {} if graph is None else dict(zip(names, shapes, strict=True))
    found = tensor_roles(names, graph, reader.metadata, of_graph)
    if not _STRINGS.isdisjoint(dtypes):
        for name, dtype in zip(names, dtypes, strict=True):
            if found[name] == "weight" and dtype in _STRINGS:
                found[name] = "unknown"
    listed = reader.metadata.get(PRNG_KEYS)
    for pair in listed if isinstance(listed, list) else ():
        if isinstance(pair, list) and pair and str(pair[0]) in found:
            found[str(pair[0])] = "other"
    for row, name in enumerate(names):
        is_candidate = found[name] != "optimizer" and dtypes[row] in _GENERATORS
        if is_candidate and (
            shapes[row] == _GENERATORS[dtypes[row]]
            or (len(shapes[row]) <= 1 and RANDOM.search(name))
        ):
            found[name] = "other"
        if found[name] == "optimizer" or not (
            name.endswith(_OTHER_ENDS) or name.startswith("keras_api/")
        ):
            continue
        is_counter = shapes[row] == () and dtypes[row].startswith(("int", "uint"))
        if (
            (is_counter and _OTHER.fullmatch(name))
            or name == OBJECT_GRAPH_KEY
            or _OF_KERAS.search(name)
        ):
            found[name] = "other"
    return found


def tensor_roles(
    stored: Iterable[str],
    graph: ObjectGraph | None,
    metadata: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> dict[str, ModelRole]:
    """Return the role of every tensor by its name and place: all but "other".

    Args:
        stored: the names of all tensors.
        graph: the object graph; None if the checkpoint has none.
        metadata: the user's metadata.
        shapes: of the tensors; without them, Sonnet's optimizers are unknown.
    """
    names = list(stored)
    if graph is None:
        return _by_names(names, metadata or {})
    found: dict[str, ModelRole] = dict.fromkeys(names, "weight")
    keys: dict[str, ModelRole] = {}
    of_nodes = _node_roles(graph, shapes or {})
    for number, node in enumerate(graph.nodes):
        for one in node.attributes:
            role = of_nodes.get(number, "weight")
            before = keys.get(one.checkpoint_key, role)
            keys[one.checkpoint_key] = max(before, role, key=_RANK.__getitem__)
    groups = key_groups(keys.keys() - found.keys(), sorted(found.keys() - keys.keys()))
    for key, role in keys.items():
        for name in groups.get(key, [key]):
            if name in found:
                found[name] = role
    return found


# What a tensor of several objects counts as: the highest.
_RANK: dict[ModelRole, int] = {"optimizer": 0, "unknown": 1, "weight": 2}


# ---- objects -------------------------------------------------------------------------------------


def optimizer_nodes(graph: ObjectGraph, shapes: Mapping[str, Any] | None = None) -> set[int]:
    """Return the nodes of optimizers. The root is never one: a saved optimizer is the model."""
    nodes = graph.nodes
    found: set[int] = set()
    waiting = [number for number, node in enumerate(nodes) if number and _may_be(node)]
    shape_of = [_shape_of(node, shapes) for node in nodes] if shapes else [None] * len(nodes)
    known = _Shapes(shape_of, Counter(shape_of))
    for _ in range(_NESTING_MAX):
        lists = _Lists(nodes, found, known)
        new = {number for number in waiting if _is_optimizer(nodes, number, found, lists)}
        if not new:
            break
        found |= new
        waiting = [number for number in waiting if number not in new]
    return found


class _Shapes(NamedTuple):
    """The shapes of variables by node, None for other nodes, and how many nodes have each."""

    of: list[Any]
    counts: Counter[Any]


def _shape_of(node: Node, shapes: Mapping[str, Any]) -> Any:
    return next((shapes.get(one.checkpoint_key) for one in node.attributes), None)


def _may_be(node: Node) -> bool:
    names = {name for name, _ in node.children}
    return bool(
        node.slot_variables
        or names & _INNER
        or OWN_VARIABLES in names
        or names >= _LEGACY_MARK
        or any(mark <= names for mark, _ in _SONNET)
    )


class _Lists:
    """What is asked about lists. Each answer is computed once, because the objects of a hostile
    graph may share a long list."""

    def __init__(self, nodes: list[Node], known: set[int], shapes: _Shapes) -> None:
        self.members = functools.cache(lambda number: _members(nodes, number))
        self.is_flat = functools.cache(lambda number: _is_flat(nodes, number))
        self._is_numbered = functools.cache(lambda number: _is_numbered(nodes[number]))
        self._others = functools.cache(lambda number: self.members(number) - known)
        self._is_inside = functools.cache(
            lambda number, of: self._others(number) <= self.members(of)
        )
        self._shapes = functools.cache(
            lambda number: tuple(shapes.of[one] for _, one in nodes[number].children)
        )
        self.mirror_weights = functools.cache(lambda numbers: self._mirror(numbers, shapes))

    def is_list_of(self, number: int, listed: int | None) -> bool:
        """Return whether a list has known optimizers and what the list `listed` has, and nothing
        besides."""
        if not self._is_numbered(number):
            return False
        count = 0 if listed is None else len(self.members(listed))
        others = self._others(number)
        return len(others) <= count and (listed is None or self._is_inside(number, listed))

    def _mirror(self, numbers: tuple[int, ...], shapes: _Shapes) -> bool:
        """Return whether each variable of these lists has the shape of a variable elsewhere, and
        each list the same shapes."""
        if len({len(self._shapes(number)) for number in numbers}) > 1:
            return False
        inside = Counter(
            shapes.of[one] for one in frozenset[int]().union(*map(self.members, numbers))
        )
        return (
            len({self._shapes(number) for number in numbers}) == 1
            and None not in inside
            and all(shapes.counts[shape] > count for shape, count in inside.items())
        )


def _members(nodes: list[Node], number: int) -> frozenset[int]:
    return frozenset(child for _, child in nodes[number].children)


def _is_numbered(node: Node) -> bool:
    return all(name.isdecimal() for name, _ in node.children)


def _is_flat(nodes: list[Node], number: int) -> bool:
    """Return whether the children have no children."""
    return not any(nodes[one].children for _, one in nodes[number].children)


def _is_optimizer(nodes: list[Node], number: int, known: set[int], lists: _Lists) -> bool:
    """Return whether an object owns slot variables, or has what a known optimizer has, and nothing
    besides."""
    node = nodes[number]
    if node.slot_variables:
        return True
    children = dict(node.children)
    listed: dict[str, int] = {}  # lists of variables that it may have, and those with their members
    if OWN_VARIABLES in children:
        own = lists.members(children[OWN_VARIABLES])
        if not any(children.get(name) in own for name in _COUNTERS):
            return False
        listed = dict.fromkeys(children, children[OWN_VARIABLES])
    elif any(child in known for name, child in node.children if name in _INNER):
        if not children.keys() & _WRAPPER_MARKS:
            return False
    elif not children.keys() >= _LEGACY_MARK:
        names = next((names for mark, names in _SONNET if mark <= children.keys()), None)
        if names is None:
            return False
        listed = {name: children[name] for name in names & children.keys()}
        if not lists.mirror_weights(tuple(sorted(listed.values()))):
            return False
    return all(
        child in known
        or name == MODEL_VARIABLES
        or _is_known_child(nodes, name, child, lists, listed.get(name))
        for name, child in node.children
    )


def _is_known_child(
    nodes: list[Node], name: str, child: int, lists: _Lists, listed: int | None
) -> bool:
    """Return whether a child is one that an optimizer has: a single variable of a known name, an
    object without variables, or a list of optimizers or of the variables of the list `listed`."""
    node = nodes[child]
    if not node.children:
        is_listed = listed is not None and child in lists.members(listed)
        return not node.attributes or name in _VARIABLES or is_listed
    if node.attributes:
        return False
    if name in _LOSS_SCALES:
        return lists.is_flat(child)
    return lists.is_list_of(child, listed)


class _Parts(NamedTuple):
    """The nodes to which optimizers refer."""

    state: list[int]
    weights: list[int]
    unknown: list[int]


def _parts(nodes: list[Node], optimizers: set[int]) -> _Parts:
    found = _Parts([], [], [])
    seen: set[tuple[int, bool, str]] = set()
    for number in optimizers:
        node = nodes[number]
        has_slots = bool(node.slot_variables)
        found.state.extend(slot.slot_variable_node_id for slot in node.slot_variables)
        found.weights.extend(slot.original_variable_node_id for slot in node.slot_variables)
        for name, child in node.children:
            if child in optimizers:
                continue
            # Optimizers of a hostile graph may share a long list.
            one = child, has_slots, name if name in {MODEL_VARIABLES, *_LOSS_SCALES} else ""
            if one in seen:
                continue
            seen.add(one)
            if name == MODEL_VARIABLES:
                found.weights.extend(_members(nodes, child))
            else:
                _add_part(found, nodes, name, child, has_slots, optimizers)
    return found


def _add_part(
    found: _Parts, nodes: list[Node], name: str, child: int, has_slots: bool, optimizers: set[int]
) -> None:
    """Add the variables of a child of an optimizer: state, unless the child is another object, or
    has variables and the optimizer is known by its slots only."""
    node = nodes[child]
    if not node.children:
        found.state.append(child)
        return
    members = _members(nodes, child)
    is_list = _is_numbered(node)
    if (is_list or name in _LOSS_SCALES) and not (
        node.attributes or has_slots or not _is_flat(nodes, child)
    ):
        found.state.extend(members)
    elif not (is_list and members <= optimizers):
        found.unknown.append(child)


def _node_roles(graph: ObjectGraph, shapes: Mapping[str, Any]) -> dict[int, ModelRole]:
    """Return the roles of the nodes that are reached."""
    nodes, optimizers = graph.nodes, optimizer_nodes(graph, shapes)
    suspects = {
        child
        for node in nodes
        for name, child in node.children
        if child and child not in optimizers and _NAME.fullmatch(name)
    }
    suspects = {child for child in suspects if _is_closed(nodes, child)}
    parts = _parts(nodes, optimizers)
    slots = {slot for one in optimizers for slot in _slots(nodes[one])}
    closed = optimizers | suspects | slots
    weights = _reached(nodes, [0, *parts.weights], closed)
    unknown = _reached(nodes, [*suspects, *parts.unknown], optimizers | slots)
    roles: dict[int, ModelRole] = dict.fromkeys(parts.state, "optimizer")
    roles |= dict.fromkeys(optimizers - roles.keys(), "optimizer")
    roles |= dict.fromkeys(unknown, "unknown")
    roles |= dict.fromkeys(weights, "weight")
    return roles


def _slots(node: Node) -> Iterator[int]:
    return (slot.slot_variable_node_id for slot in node.slot_variables)


def _is_closed(nodes: list[Node], number: int) -> bool:
    """Return whether an object with the name of an optimizer can be one: not a Keras model."""
    return "layers" not in {name for name, _ in nodes[number].children}


def _reached(nodes: list[Node], start: Iterable[int], but: Iterable[int] = ()) -> set[int]:
    """Return the nodes that are reached through children, without going into some."""
    closed = set(but)
    return set(
        reached(
            (one for one in start if one not in closed),
            lambda one: (child for _, child in nodes[one].children if child not in closed),
        )
    )


# ---- names ---------------------------------------------------------------------------------------


def _by_names(stored: list[str], metadata: Mapping[str, Any]) -> dict[str, ModelRole]:
    states, others, unknown = _torch_states(metadata)
    starts = tuple(f"{path}." if path else "" for path in unknown)
    hidden = {name for name in stored if starts and f"{name}.".startswith(starts)} - states - others
    states |= below_paths(stored, metadata.get(OPTIMIZER_STATES))
    found: dict[str, ModelRole] = dict.fromkeys(stored, "weight")
    for name in stored:
        end = name.rfind("/")
        last = name[end + 1 :]
        if name in states:
            found[name] = "optimizer"
        elif name in hidden:
            found[name] = "unknown"
        elif (
            last[:1].isupper()
            or "opt" in name.lower()
            or "slot_" in last
            or "adam_" in last
            or "lamb_" in last
            or "power" in last
        ):
            found[name] = _role_of(name, found)
        else:
            # As most names, at once: a million take a second. A slot of an optimizer with a name
            # of its own is below its owner.
            owner = name[:end] if end > 0 else ""
            if "/part_" in owner:
                owner = _PART.sub("", owner)
            if owner in found:
                found[name] = "unknown"
    return found


def below_paths(stored: Iterable[str], paths: Any) -> set[str]:
    """Return the names below the paths that the metadata list; "" is above all."""
    if not isinstance(paths, list):
        return set()
    starts = tuple(f"{path}/" if path else "" for path in paths if isinstance(path, str))
    return {name for name in stored if name.startswith(starts)}


def _role_of(name: str, present: Container[str]) -> ModelRole:
    """Return the role of a tensor by its name. A slot variable may be in the name scope of an
    optimizer: `OptimizeLoss/w/Adam` of `w`."""
    parts = name.split("/")
    if OPTIMIZER_SLOT in parts or _ACCUMULATOR.fullmatch(name):
        return "optimizer"
    owner, _, last = name.rpartition("/")
    if owner and _SLOT.fullmatch(last):
        owner = _PART.sub("", owner)
        for _ in range(_PARTS_MAX):
            if owner in present:
                return "optimizer"
            owner = owner.partition("/")[2]
            if not owner:
                break
        return "unknown"
    short = _SLOT_SUFFIX.sub("", name)
    if short != name:
        return "optimizer" if short in present else "unknown"
    may_be = _PART.sub("", owner) in present or any(
        map(_NAME.fullmatch, re.split(r"[/.]", name)[:-1])
    )
    return "unknown" if may_be else "weight"


def _torch_states(metadata: Mapping[str, Any]) -> tuple[set[str], set[str], list[str]]:
    """Return the tensors that a state of `ckptfmt.torch` has in the state of an optimizer, and
    nowhere else: two paths may begin alike, because keys may contain dots. Then those that it has
    elsewhere, and the paths of what this version does not know."""
    found: set[str] = set()
    others: set[str] = set()
    unknown: list[str] = []
    try:
        state = state_tree.parse(metadata[state_tree.KEY])["state"]
        for one in state_tree.leaves(state, unknown):
            (found if one.where == "state" else others).add(one.name)
    except UnsupportedError:  # of another version
        return set(), set(), [""]
    except state_tree.DAMAGED:
        return set(), set(), []
    return found - others, others, unknown
