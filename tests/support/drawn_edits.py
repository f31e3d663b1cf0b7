# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints of objects that are optimizers or look like them, random edits of them, and
what each edit must do.

The roles of the tensors are known from how a checkpoint is made, not from its names: nothing here
asks ckptfmt.naming.roles.
"""

from __future__ import annotations

import fnmatch
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import ckptfmt
from ckptfmt.bundle.graph import (
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
# Names of objects. What has one of the latter and is not a known optimizer may be one.
PLAIN = ("model", "trainer", "agent", "iter", "x", "vq", "adam")
LIKE = ("optimizer", "my_optimizer", "opt", "learned_optimizer", "opt_state", "gen_opts")
# Values of a shape that no other variable has, so that no list of them mirrors weights.
LONE = ((5,), (6,), (7,))


class Drawn:
    """A checkpoint. Each tensor is in one of the sets of names.

    Attributes:
        values: all tensors but the graph, by name.
        weights: those that only a model has.
        state: those that only a known optimizer has.
        doubtful: weights and state of which a reader cannot know what they are: of objects with the
            name of an optimizer, of networks in an optimizer, of slots of unknown optimizers,
            strings.
        other: counters of steps and saves.
        missing: keys of the graph without a tensor.
        graph: None for a name-based checkpoint.
        metadata: of a state of PyTorch.
        described: the tree in them.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.values: dict[str, NDArray[Any]] = {}
        self.weights: set[str] = set()
        self.state: set[str] = set()
        self.doubtful: set[str] = set()
        self.other: set[str] = set()
        self.missing: set[str] = set()
        self.fixed: set[str] = set()  # never missing
        self.nodes = [Node()]
        self.graph: ObjectGraph | None = None
        self.metadata: dict[str, Any] | None = None
        self.described: dict[str, Any] | None = None
        self.model: list[int] = []  # variables that are certainly weights
        kind = chance.random()
        if kind < 0.2:
            self._names()
        elif kind < 0.3:
            self._torch()
        else:
            self._objects()

    def save(self, prefix: Path) -> None:
        tensors: dict[str, Any] = dict(self.values)
        if self.graph is not None:
            tensors[OBJECT_GRAPH_KEY] = np.array(encode_graph(self.graph), object)
        ckptfmt.save(prefix, tensors, metadata=self.metadata)

    def all_names(self) -> dict[str, set[str]]:
        """Return the names of each tensor by which filters match: the stored one, and the paths of
        its object but for those through slots. Only variables are children of several objects."""
        found = {name: {name, name.removesuffix(VALUE)} for name in self.values}
        paths = {0: ""}
        for number in (order := [0]):
            node, path = self.nodes[number], paths[number]
            for label, child in node.children:
                if not self.nodes[child].attributes:
                    order.append(child)
                    paths[child] = f"{path}/{label}".lstrip("/")
                elif self._key(child) in found:
                    found[self._key(child)].add(f"{path}/{label}".lstrip("/"))
        return found

    def matching(self, pattern: str) -> set[str]:
        """Return the tensors of which a name matches."""
        return {
            stored
            for stored, names in self.all_names().items()
            if any(fnmatch.fnmatchcase(name, pattern) for name in names)
        }

    def role(self, name: str) -> str:
        """Return the role that a reader must find."""
        if name in self.weights:
            return "weight"
        if name in self.state:
            return "optimizer"
        return "unknown" if name in self.doubtful else "other"

    # ---- values

    def _name(self, number: int, words: Iterable[str] = PLAIN + LIKE) -> tuple[str, set[str]]:
        """Return the name of an object, and the role of weights below it."""
        word = self.chance.choice(list(words))
        return f"{f'n{number}_' if number else ''}{word}", (
            self.doubtful if word in LIKE else self.weights
        )

    def _value(self) -> NDArray[Any]:
        scale = self.chance.choice([1.0, 1.0, 1e-9, 1e6])
        shape = self.chance.choice([(2, 3), (4,), (3,)])
        generator = np.random.default_rng(self.chance.randrange(1 << 30))
        if self.chance.random() < 0.2:
            dtype = self.chance.choice(["i4", "i8", "u2"])
            return generator.integers(0, 1000, shape).astype(dtype)
        return (generator.normal(size=shape) * scale).astype(self.chance.choice(["f4", "f4", "f8"]))

    def _scalar(self) -> NDArray[Any]:
        return np.asarray(np.float32(self.chance.random()))

    def _add(self, name: str, kind: set[str], value: NDArray[Any] | None = None) -> str:
        self.values[name] = self._value() if value is None else value
        kind.add(name)
        return name

    # ---- graphs

    def _objects(self) -> None:
        chance = self.chance
        optimizers = [self._keras_3] * 3 + [self._slots] * 2 + [self._keras_2, self._sonnet]
        others = [self._agent, self._quantizer, self._trainer, self._keras_model, self._unbuilt]
        for number in range(chance.randint(1, 4)):
            chance.choice([*optimizers, *others, *[self._learned] * 3])(number)
        if chance.random() < 0.3:
            self._variable(0, "save_counter", "", self.other, np.asarray(np.int64(3)))
        if chance.random() < 0.25:
            self._lose()
        self.graph = ObjectGraph(self.nodes)
        mark_checkpoint_values(self.graph)

    def _lose(self) -> None:
        """Leave out tensors to which the graph refers."""
        possible = sorted(self.values.keys() - self.fixed)
        for name in self.chance.sample(
            possible, min(len(possible) // 2, self.chance.randint(1, 2))
        ):
            del self.values[name]
            self.missing.add(name)
            for kind in (self.weights, self.state, self.doubtful, self.other):
                kind.discard(name)

    def _child(self, parent: int, name: str) -> int:
        self.nodes.append(Node())
        self.nodes[parent].children.append((name, len(self.nodes) - 1))
        return len(self.nodes) - 1

    def _link(self, parent: int, name: str, child: int) -> None:
        self.nodes[parent].children.append((name, child))

    def _store(self, number: int, path: str, kind: set[str], value: NDArray[Any] | None) -> int:
        key = self._add(attribute_key(path), kind, value)
        self.nodes[number].attributes.append(Attribute("VARIABLE_VALUE", "", key))
        return number

    def _variable(
        self, parent: int, name: str, path: str, kind: set[str], value: NDArray[Any] | None = None
    ) -> int:
        if value is None and kind is self.state:
            value = self._scalar()
        return self._store(self._child(parent, name), f"{path}/{name}".lstrip("/"), kind, value)

    def _key(self, number: int) -> str:
        return self.nodes[number].attributes[0].checkpoint_key

    def _list(
        self, parent: int, name: str, path: str, kind: set[str], values: Iterable[Any]
    ) -> list[int]:
        number = self._child(parent, name)
        return [
            self._variable(number, str(position), f"{path}/{name}", kind, value)
            for position, value in enumerate(values)
        ]

    def _net(self, parent: int, name: str, path: str, kind: set[str]) -> list[int]:
        number, path = self._child(parent, name), f"{path}/{name}".lstrip("/")
        names = self.chance.sample(["kernel", "bias", "momentum", "iter", "m"], 2)
        made = [self._variable(number, one, path, kind) for one in names]
        if kind is self.weights:
            self.model += made
        return made

    def _trained(self, variables: list[int]) -> None:
        """A known optimizer trains these: they are weights wherever they are."""
        keys = set(map(self._key, variables))
        self.doubtful -= keys
        self.weights |= keys

    # ---- what only looks like an optimizer

    def _keras_model(self, number: int) -> None:
        """A model of Keras is never an optimizer."""
        name, _ = self._name(number)
        layers = self._child(self._child(0, name), "layers")
        self._net(layers, "0", f"{name}/layers", self.weights)

    def _agent(self, number: int) -> None:
        name, kind = self._name(number)
        agent = self._child(0, name)
        for one in self.chance.sample(["iterations", "learning_rate", "decay", "step"], 2):
            self._variable(agent, one, name, kind)
        self._net(agent, "net", name, kind)
        self._list(agent, "heads", name, kind, [None] * 2)
        if self.chance.random() < 0.5:
            words = np.array([b"one", b"two"], object)
            self._variable(agent, "vocabulary", name, self.doubtful, words)

    def _quantizer(self, number: int) -> None:
        name, kind = self._name(number)
        quantizer = self._child(0, name)
        for one in ("embedding", "decay", "iter"):
            self._variable(quantizer, one, name, kind)
        self._list(quantizer, "codebooks", name, kind, [None] * 2)

    def _unbuilt(self, number: int) -> None:
        """An optimizer of Keras 2 that has counted and nothing else."""
        name, kind = self._name(number, LIKE)
        self._variable(self._child(0, name), "iter", name, kind, np.asarray(np.int64(7)))

    def _trainer(self, number: int) -> None:
        name, kind = self._name(number)
        trainer = self._child(0, name)
        self._variable(trainer, "step_counter", name, kind)
        variables = self._net(trainer, "net", name, kind)
        self._optimizer(trainer, "optimizer", name, variables, listed=False)

    def _learned(self, number: int) -> None:
        """All but the last have what a known optimizer has, and weights besides: a learned
        optimizer, or a layer that counts."""
        name, kind = self._name(number)
        learned = self._child(0, name)
        which = self.chance.randrange(6)
        lone = [np.full(self.chance.choice(LONE), 3, "f4") for _ in range(2)]
        if which == 0:  # of Keras 3
            (steps, rate) = self._list(learned, "_variables", name, kind, [self._scalar()] * 2)
            self._link(learned, "_iterations", steps)
            self._link(learned, "_learning_rate", rate)
            self._list(learned, "prototypes", name, kind, [None] * 2)
        elif which == 1:  # of Keras 2
            for one in ("iter", "decay", "learning_rate"):
                self._variable(learned, one, name, kind, self._scalar())
            self._list(learned, "maps", name, kind, [None] * 2)
        elif which == 2:  # of Sonnet
            self._list(learned, "mom", name, kind, lone[:1])
            self._list(learned, "ms", name, kind, [np.full((8,), 3, "f4")])
        elif which == 3:  # a wrapper of an optimizer
            self._variable(learned, "step_counter", name, kind, self._scalar())
            self._list(learned, "parameters", name, kind, lone)
            self._marks(learned, "optimizer", name)
        elif which == 4:  # counters that are not in the list
            self._variable(learned, "iterations", name, kind, self._scalar())
            self._list(learned, "_variables", name, kind, lone)
        else:
            self._net(learned, "net", name, kind)
        if self.model and self.chance.random() < 0.5:
            self._link(learned, "target", self.chance.choice(self.model))

    # ---- optimizers

    def _marks(self, parent: int, name: str, path: str) -> int:
        number, path = self._child(parent, name), f"{path}/{name}".lstrip("/")
        for one in ("iter", "decay", "learning_rate"):
            self._variable(number, one, path, self.state)
        return number

    def _keras_2(self, number: int) -> None:
        """Without slots, perhaps several in a list."""
        self._net(0, f"n{number}_net", "", self.weights)
        name, _ = self._name(number)
        if self.chance.random() < 0.5:
            self._marks(0, name, "")
            return
        several = self._child(0, name)
        for position in range(2):
            self._marks(several, str(position), name)

    def _sonnet(self, number: int) -> None:
        variables = self._net(0, f"n{number}_net", "", self.weights)
        name, _ = self._name(number)
        optimizer, before = self._child(0, name), set(self.values)
        for one in ("step", "learning_rate"):
            self._variable(optimizer, one, name, self.state)
        for one in ("m", "v"):
            values = [np.zeros_like(self.values[self._key(each)]) for each in variables]
            self._list(optimizer, one, name, self.state, values)
        self.fixed |= self.values.keys() - before
        self.fixed |= set(map(self._key, variables))

    def _keras_3(self, number: int) -> None:
        """The variables of the model are stored at their paths in it, or in the optimizer."""
        name, _ = self._name(number)
        listed = self.chance.random() < 0.5
        model = self._child(0, f"{name}_model")
        variables = [] if listed else self._net(model, "dense", f"{name}_model", self.weights)
        owner, path = 0, ""
        if self.chance.random() < 0.4:
            owner, path = self._wrapper(f"{name}_scaled")
            name = "inner_optimizer"
        made = self._optimizer(owner, name, path, variables, listed=listed)
        for position, variable in enumerate(made if listed else []):
            self._link(model, f"w{position}", variable)

    def _wrapper(self, path: str) -> tuple[int, str]:
        """Make a wrapper that scales the loss, of Keras 3 or 2."""
        wrapper = self._child(0, path)
        if self.chance.random() < 0.5:
            self._variable(wrapper, "dynamic_scale", path, self.state)
        else:
            scale = self._child(wrapper, "loss_scale")
            for one in ("current_loss_scale", "good_steps"):
                self._variable(scale, one, f"{path}/loss_scale", self.state)
        return wrapper, path

    def _optimizer(
        self, parent: int, name: str, path: str, variables: list[int], *, listed: bool
    ) -> list[int]:
        number, path = self._child(parent, name), f"{path}/{name}".lstrip("/")
        if listed:
            place = (number, "_trainable_variables", path)
            variables = self._list(*place, self.weights, [None] * 2)
            self.model += variables
        else:
            own = self._child(number, "_trainable_variables")
            for position, one in enumerate(variables):
                self._link(own, str(position), one)
        self._trained(variables)
        state = [self._scalar(), self._scalar()]
        state += [np.zeros_like(self.values[self._key(one)]) for one in variables]
        made = self._list(number, "_variables", path, self.state, state)
        self._link(number, "_iterations", made[0])
        self._link(number, "_learning_rate", made[1])
        momentums = self._child(number, "_momentums")
        for position, one in enumerate(made[2:]):
            self._link(momentums, str(position), one)
        if self.chance.random() < 0.2:  # the model has one of its variables as well
            self._link(self._child(0, f"also_{len(self.nodes)}"), "scale", made[-1])
            self.state.discard(self._key(made[-1]))
            self.weights.add(self._key(made[-1]))
        return variables

    def _slots(self, number: int) -> None:
        name, _ = self._name(number)
        variables = self._net(0, f"{name}_net", "", self.weights)
        optimizer = self._child(0, name)
        for one in self.chance.sample(["beta1_power", "iter", "learning_rate"], 2):
            self._variable(optimizer, one, name, self.state)
        if self.chance.random() < 0.4:  # an optimizer that is learned
            if self.chance.random() < 0.5:
                self._net(optimizer, "net", name, self.doubtful)
            else:
                self._list(optimizer, "heads", name, self.doubtful, [None] * 2)
        for variable in variables:
            owner = self._key(variable).removesuffix(VALUE)
            self.nodes.append(Node())
            slot = self._store(
                len(self.nodes) - 1, f"{owner}/.OPTIMIZER_SLOT/{name}/m", self.state, self._value()
            )
            self.nodes[optimizer].slot_variables.append(SlotVariable(variable, "m", slot))

    # ---- names

    def _names(self) -> None:
        """Of TensorFlow 1, some variables partitioned, some of them of optimizers that others
        wrote."""
        chance = self.chance
        for number in range(chance.randint(1, 4)):
            last = chance.choice(["w", "kernel", "w", "table", "Adam", "optimizer/b"])
            kind = self.doubtful if last in ("Adam", "optimizer/b") else self.weights
            name = self._add(f"layer_{number}/{last}", kind)
            slots = chance.sample(["Adam", "Adam_1", "Momentum", "RMSProp", "MyOpt", "my_opt"], 2)
            for part in chance.choice([[""], ["/part_0", "/part_1"]]):
                for slot in slots:
                    known = slot not in ("MyOpt", "my_opt")
                    self._add(f"{name}{part}/{slot}", self.state if known else self.doubtful)
        if chance.random() < 0.7:
            self._add("beta1_power", self.state, self._scalar())
        if chance.random() < 0.3:
            self._add("global_step", self.other, np.asarray(np.int64(3)))
        if chance.random() < 0.3:
            self._add("words", self.doubtful, np.array([b"one", b"two"], object))

    def _torch(self) -> None:
        """A state that ckptfmt.torch saved: the metadata describes the tree."""
        stored: dict[str, Any] = {"$tensor": True}
        optimizer = self.chance.choice(["opt", "optimizer", "o"])
        described: dict[str, Any] = {"model": {}}
        for one in self.chance.sample(["w", "b", "state"], 2):
            described["model"][one] = stored
            self._add(f"model.{one}", self.weights)
        described[optimizer] = {
            "state": {"$dict": [[0, {"m": stored, "v": stored}], [1, {"m": stored}]]},
            "param_groups": [{"lr": 0.1, "params": [0, 1]}],
        }
        if self.chance.random() < 0.3:
            described[optimizer]["param_groups"][0]["lr"] = stored
            self._add(f"{optimizer}.param_groups.0.lr", self.state, self._scalar())
        if self.chance.random() < 0.5:
            described["run"] = {"list": [stored, 3, {"$tuple": [stored, stored]}], "epoch": 3}
            for one in ("0", "2.0", "2.1"):
                self._add(f"run.list.{one}", self.weights)
        if self.chance.random() < 0.3:
            described["tied"] = {"$tensor": next(iter(self.values))}
        for one in ("0.m", "0.v", "1.m"):
            self._add(f"{optimizer}.state.{one}", self.state)
        if self.chance.random() < 0.5:  # names are joined by dots, and keys may have some
            key = self.chance.choice([f"{optimizer}.state", f"{optimizer}.state.2"])
            described[key] = {"w": stored}
            self._add(f"{key}.w", self.weights if optimizer == "o" else self.doubtful)
        if self.chance.random() < 0.3:  # a tensor of the optimizer that is the model's as well
            described[optimizer]["state"]["$dict"].append([3, {"m": {"$tensor": "model.w2"}}])
            described["model"]["w2"] = stored
            self._add("model.w2", self.weights)
        self.described = described
        self.metadata = {"ckptfmt.torch": json.dumps({"version": 1, "state": described})}


def named_in_tree(node: Any, path: str = "") -> dict[str, list[str]]:
    """Return the tensors that a tree of ckptfmt.torch names, with the paths of their leaves. Dicts
    and tuples are followed, and what the leaves have besides."""
    found: dict[str, list[str]] = {}
    pairs: list[Any] = []
    if isinstance(node, list):
        pairs = list(enumerate(node))
    elif isinstance(node, dict):
        tag = next((key for key in node if key.startswith("$")), "")
        content = node.get(tag)
        if tag == "$tensor":
            found[path if content is True else content] = [path]
        elif tag in ("$dict", "$state_dict"):
            pairs = content
        elif tag in ("$tuple", "$set"):
            pairs = list(enumerate(content))
        elif not tag:
            pairs = list(node.items())
    for key, one in pairs:
        for name, paths in named_in_tree(one, f"{path}.{key}".removeprefix(".")).items():
            found.setdefault(name, []).extend(paths)
    return found


# ---- edits ---------------------------------------------------------------------------------------


def drawn_edit(chance: random.Random, drawn: Drawn) -> dict[str, Any]:
    """Return arguments of `ckptfmt.editing.edit`."""
    given: dict[str, Any] = {}
    names = sorted(drawn.values)
    known = sorted(set[str]().union(*drawn.all_names().values()))
    first = sorted({name.partition("/")[0] for name in known})
    if drawn.described is not None and chance.random() < 0.5:
        known = [f"{name.rpartition('.')[0]}.*" for name in known]
    last = sorted({name.rpartition("/")[2] for name in known})
    if chance.random() < 0.5:
        given["strip_optimizer"] = True
    if chance.random() < 0.35:
        given[chance.choice(["drop", "keep"])] = chance.choice(
            [f"{chance.choice(first)}/*", f"*/{chance.choice(last)}", chance.choice(known)]
        )
    if chance.random() < 0.3:
        given["rename"] = [(f"^{chance.choice(first)}/", "renamed/")]
        if drawn.described is not None:
            given["rename"] = [(f"^{chance.choice(names).rpartition('.')[0]}.", "renamed.")]
        siblings = _siblings(names)
        if siblings and not given.keys() & {"strip_optimizer", "drop", "keep"}:
            one, other = chance.choice(siblings)
            given["rename"] = {one: other, other: one}
    if chance.random() < 0.1:
        given["metadata"] = {"edited": True}
    if chance.random() < 0.35:
        given["drop_weights"] = True
    if chance.random() < (0.7 if drawn.missing else 0.1):
        given["drop_missing"] = True
    return given if given.keys() - {"drop_weights"} else {**given, "strip_optimizer": True}


def _siblings(names: list[str]) -> list[tuple[str, str]]:
    """Return pairs of variables of one object."""
    found: dict[str, list[str]] = {}
    for name in names:
        if ".OPTIMIZER_SLOT" not in name:
            path = name.removesuffix(VALUE).replace(".", "/")
            found.setdefault(path.rpartition("/")[0], []).append(name)
    return [(several[0], several[1]) for several in found.values() if len(several) > 1]


class Expected(NamedTuple):
    """What an edit must do.

    Attributes:
        refusals: parts of the messages of which one must be in the error; without any, the edit
            must succeed.
        dropped: names of the tensors that are dropped.
        renamed: new name by stored name of all others.
    """

    refusals: list[str]
    dropped: set[str]
    renamed: dict[str, str]


def expected_of(drawn: Drawn, given: dict[str, Any]) -> Expected:
    """Return what an edit must do, by how the checkpoint was made."""
    names, refusals, dropped = set(drawn.values), [], set[str]()
    for what in ("drop", "keep"):
        if what in given:
            found = drawn.matching(given[what])
            if not found:
                refusals.append(f"{what}: ")
            dropped |= found if what == "drop" else names - found
    if given.get("strip_optimizer"):
        dropped |= drawn.state
        if not drawn.state:
            refusals.append("no tensor is known to be the state of an optimizer")
        elif not drawn.weights:
            refusals.append("no weight would be left")
    if given.get("metadata") and drawn.described is not None:
        refusals.append("it lacks")
    rest = names - dropped
    if not rest:
        refusals.append("no tensor is left")
    if dropped & (drawn.weights | drawn.doubtful) and not given.get("drop_weights"):
        refusals.append("drop_weights=True")
    rename = given.get("rename", {})
    if isinstance(rename, list):
        ((pattern, new),) = rename
        first = pattern.removeprefix("^")
        rename = {name: new + name.removeprefix(first) for name in rest if name.startswith(first)}
    if "rename" in given and not rest & rename.keys():
        refusals.append("changes none of the")
    if drawn.missing and (dropped or rest & rename.keys()) and not given.get("drop_missing"):
        refusals.append("tensors that are missing")
    return Expected(refusals, dropped, {name: rename.get(name, name) for name in rest})
