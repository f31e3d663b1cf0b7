# SPDX-License-Identifier: Apache-2.0
"""Which tensors are weights and which the state of an optimizer. tests/interop/test_edit.py asks
the same of checkpoints that TensorFlow and Keras write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.bundle.graph import Attribute, Node, ObjectGraph, SlotVariable, attribute_key
from ckptfmt.naming.roles import model_roles, optimizer_nodes, tensor_roles


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

    def spread(self, owner: int, path: str, names: tuple[str, ...]) -> dict[str, int]:
        """Add variables at these paths below a node; return the numbers of all that is there."""
        numbers = {"": owner}
        for name in names:
            folder, _, last = name.rpartition("/")
            if folder not in numbers:
                numbers[folder] = self.add(owner, folder)
            numbers[name] = self.leaf(numbers[folder], last, f"{path}/{name}")
        return numbers

    def link(self, parent: int, name: str, child: int) -> None:
        self.nodes[parent].children.append((name, child))

    def paths(self, role: str) -> list[str]:
        shapes = dict.fromkeys(self.keys, (3,))
        found = tensor_roles(self.keys, ObjectGraph(self.nodes), None, shapes)
        keys = [key for key in self.keys if found[key] == role]
        return sorted(key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key in keys)

    def optimizer_paths(self) -> list[str]:
        return self.paths("optimizer")


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
    if nested:
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
    state = graph.add(optimizer, "_variables")
    shared = graph.leaf(state, "0", "optimizer/_variables/0")
    steps = graph.leaf(optimizer, "_iterations", "optimizer/_iterations")
    graph.link(state, "1", steps)
    graph.link(graph.add(0, "model"), "scale", shared)
    assert graph.optimizer_paths() == ["optimizer/_iterations"]
    assert graph.paths("weight") == ["optimizer/_variables/0"]


def test_what_only_looks_like_an_optimizer(tmp_path: Path) -> None:
    """Agents, trainers, vector quantizers; learned optimizers are not decided."""
    graph = Graph()
    for owner, own in (
        ("agent", ("iterations", "learning_rate")),
        ("vq", ("iter", "decay")),
        ("trainer", ("step_counter", "learning_rate")),
        ("learned_optimizer", ()),
        ("optimizer", ("_iterations", "scale")),
    ):
        number = graph.add(0, owner)
        for name in own:
            graph.leaf(number, name, f"{owner}/{name}")
        net = graph.add(number, "net")
        graph.leaf(net, "w", f"{owner}/net/w")
        graph.leaf(graph.add(number, "_variables"), "0", f"{owner}/_variables/0")
    assert graph.optimizer_paths() == []
    assert {path.partition("/")[0] for path in graph.paths("unknown")} == {
        "learned_optimizer",
        "optimizer",
    }


def test_a_network_of_an_optimizer_with_slots_is_not_decided() -> None:
    graph = keras_2("optimizer")
    net = graph.add(graph.nodes[0].children[1][1], "net")
    graph.leaf(net, "w", "optimizer/net/w")
    assert graph.paths("unknown") == ["optimizer/net/w"]
    assert len(graph.optimizer_paths()) == 4


@pytest.mark.parametrize(
    "children",
    [
        ("iter", "decay", "learning_rate", "maps/0", "maps/1"),
        ("iterations", "_variables/0"),
        ("_iterations", "_variables/0", "prototypes/0"),
        ("mom/0", "ms/0", "heads/0"),
        ("step_counter", "params/0"),
        ("loss_scale", "_iterations", "policy/0"),
    ],
)
def test_lists_of_variables_are_not_state(children: tuple[str, ...]) -> None:
    """Of objects with some children of an optimizer, and perhaps with an optimizer."""
    graph = Graph()
    graph.leaf(graph.add(0, "model"), "w", "model/w")
    owner = graph.add(0, "o")
    graph.spread(owner, "o", children)
    if {"step_counter", "loss_scale"} & set(children):
        inner = graph.add(owner, "optimizer")
        graph.spread(inner, "o/optimizer", ("iter", "decay", "learning_rate"))
    assert not {f"o/{name}" for name in children} & set(graph.optimizer_paths())


@pytest.mark.parametrize(
    ("names", "wrapper"),
    [
        (("step", "m/0", "m/1", "v/0", "v/1", "learning_rate"), False),
        (("accumulated_momentum/0", "learning_rate"), False),
        (("mom/0", "ms/0", "mg/0"), False),
        (("iter", "decay", "learning_rate", "momentum"), False),
        (("_variables/0", "_variables/1", "_learning_rate", "_velocities/0"), False),
        (("step_counter", "dynamic_scale"), True),
        (("loss_scale/current_loss_scale", "loss_scale/good_steps"), True),
    ],
)
def test_known_optimizers(names: tuple[str, ...], wrapper: bool) -> None:
    """Sonnet's, Keras 2's, and wrappers that scale the loss."""
    graph = Graph()
    graph.leaf(graph.add(0, "model"), "w", "model/w")
    optimizer = graph.add(0, "o")
    places = graph.spread(optimizer, "o", names)
    if "_velocities/0" in places:
        graph.link(optimizer, "_iterations", places["_variables/0"])
        graph.link(places["_variables"], "9", places["_velocities/0"])
    expected = [f"o/{name}" for name in names]
    if wrapper:
        inner = graph.add(optimizer, "inner_optimizer")
        graph.spread(inner, "o/inner_optimizer", ("iter", "decay", "learning_rate"))
        expected += [f"o/inner_optimizer/{name}" for name in ("iter", "decay", "learning_rate")]
    assert graph.optimizer_paths() == sorted(expected)
    assert graph.paths("weight") == ["model/w"] and graph.paths("unknown") == []


class Counted(list[tuple[str, int]]):
    """Children whose iteration is counted."""

    steps = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for one in super().__iter__():
            Counted.steps += 1
            yield one


@pytest.mark.parametrize(
    "names",
    [
        ("_variables", "_momentums", "_trainable_variables"),
        ("m", "v"),
        ("iter", "decay", "learning_rate", "loss_scale", "_trainable_variables"),
        ("iter", "decay", "learning_rate", "maps"),
        ("optimizer", "opt_state"),
    ],
)
def test_shared_lists_take_linear_time(names: tuple[str, ...]) -> None:
    """Each list of a hostile graph is iterated a few times, however many objects share it."""
    graph = Graph()
    shared = graph.add(0, "shared")
    variables = [graph.leaf(shared, str(number), f"shared/{number}") for number in range(1000)]
    short = [graph.leaf(0, f"short_{number}", f"short_{number}") for number in range(3)]
    for number in range(1000):
        owner = graph.add(0, f"owner_{number}")
        for name in names:
            single = short[0] if name in ("iter", "decay", "learning_rate") else shared
            graph.link(owner, name, single)
        graph.link(owner, "step", short[1])
        if "_variables" in names:
            graph.link(owner, "_iterations", variables[number])
    for node in graph.nodes:
        node.children = Counted(node.children)
    entries = sum(len(node.children) for node in graph.nodes)
    Counted.steps = 0
    found = tensor_roles(
        graph.keys, ObjectGraph(graph.nodes), None, dict.fromkeys(graph.keys, (3,))
    )
    assert len(found) == len(graph.keys)
    assert Counted.steps < 20 * entries


def test_partitioned_variables_of_tensorflow_1(tmp_path: Path) -> None:
    one = np.ones((8, 4), np.float32)
    with ckptfmt.Writer(tmp_path / "a") as out:
        out.add_slice("linear/w", one, shape=(8, 4), offset=(0, 0))
        for part in range(2):
            for slot in ("Adam", "Adam_1"):
                out.add_slice(f"linear/w/part_{part}/{slot}", one, shape=(8, 4), offset=(0, 0))
        out.add("linear/head/beta1_power", np.float32(0.9))
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert set(ckptfmt.load(tmp_path / "b")) == {"linear/w"}


def test_states_of_torch_by_their_metadata(tmp_path: Path) -> None:
    one, text = {"$tensor": True}, {"version": 1}
    groups = {"lr": one, "betas": {"$tuple": [0.9, one]}, "params": [one]}
    described: dict[str, Any] = {
        "model": {"$state_dict": [["w", one], ["state.w", one]], "versions": {}},
        "opts": [
            {"state": {"$dict": [[0, {"m": one}]]}, "param_groups": []},
            {"state": {"0": {"$tuple": [one, {"$array": True}]}}, "param_groups": [groups]},
        ],
        "opts.1.state": {"7": one},  # a key with dots
        "run": {"any": {"state": {"q": {"$tensor": True, "scales": one}}, "param_groups": []}},
        "average": {"$ordered_dict": [["w", {"$tensor": "run.any.state.shared"}]]},
    }
    described["run"]["any"]["state"]["shared"] = one
    # Below keys that are not text, and what a later version may write.
    described["many"] = {"$dict": [[{"$tuple": [1, "a"]}, {"state": [one], "param_groups": []}]]}
    described |= {"new": {"$new": True}, "more": [{"$newer": [one]}, one], "more.0": {"known": one}}
    names = {"model.w": "weight", "model.state.w": "weight", "opts.1.state.7": "unknown"}
    names |= {"new": "unknown", "more.0.0": "unknown", "more.1": "weight", "more.0.known": "weight"}
    names |= {"opts.1.param_groups.0.params.0": "unknown", "run.any.state.shared": "weight"}
    names |= dict.fromkeys(
        [
            *("opts.0.state.0.m", "opts.1.state.0.0", "opts.1.state.0.1"),
            *("run.any.state.q", "run.any.state.q.scales", "many.(1, 'a').state.0"),
            *("opts.1.param_groups.0.lr", "opts.1.param_groups.0.betas.1"),
        ],
        "optimizer",
    )
    ckptfmt.save(
        tmp_path / "a",
        dict.fromkeys(names, np.ones(3)),
        metadata={"ckptfmt.torch": json.dumps(text | {"state": described})},
    )
    with ckptfmt.open(tmp_path / "a") as reader:
        assert model_roles(reader) == names
    for text in ("{", "[]", "3", json.dumps({"state": [{}, {"$dict": [3]}]}), "[" * 5000):
        ckptfmt.save(tmp_path / "b", {"w": np.ones(3)}, metadata={"ckptfmt.torch": text})
        with ckptfmt.open(tmp_path / "b") as reader:
            assert model_roles(reader) == {"w": "weight"}
    ckptfmt.save(tmp_path / "b", {"w": np.ones(3)}, metadata={"ckptfmt.torch": '{"version":2}'})
    with ckptfmt.open(tmp_path / "b") as reader:
        assert model_roles(reader) == {"w": "unknown"}


def test_paths_of_optimizer_states_in_the_metadata(tmp_path: Path) -> None:
    """ckptfmt.jax and ckptfmt.convert write them."""
    names = {"a/0/mu": "optimizer", "a/0/optimizer/w": "optimizer", "a/1/w": "weight"}
    names |= {"a/01/w": "weight", "a/0": "weight", "optimizer/vars/0": "unknown"}
    values = dict.fromkeys(names, np.ones(3))
    for paths, expected in (
        (["a/0", 3, True], names),
        ([""], dict.fromkeys(names, "optimizer")),
        ([], {**names, "a/0/mu": "unknown", "a/0/optimizer/w": "unknown"}),
        ("a/0", {**names, "a/0/mu": "unknown", "a/0/optimizer/w": "unknown"}),
    ):
        ckptfmt.save(tmp_path / "a", values, metadata={"ckptfmt.optimizer_states": paths})
        with ckptfmt.open(tmp_path / "a") as reader:
            assert model_roles(reader) == expected


def test_slots_with_long_names() -> None:
    """The owner is found below any of 64 name scopes; a name with more costs no more."""
    scopes = [f"s{number}/" for number in range(63)]
    slots = {f"{''.join(scopes[:count])}w/Adam": "optimizer" for count in range(64)}
    hostile = "x/" * 500_000 + "y/Adam"
    names: list[str] = ["w", *slots, hostile]
    started = time.process_time()
    found = tensor_roles(names, None)
    assert time.process_time() - started < 5
    assert found == {"w": "weight", **slots, hostile: "unknown"}


def test_names_of_tensorflow_1(tmp_path: Path) -> None:
    expected = {
        "beta1_power": "optimizer",
        "opt/beta2_power_1": "optimizer",
        "global_step": "other",
        "words": "unknown",
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
        "v/Adam": "unknown",
        "ww/Momentum": "unknown",
        "x_slot_v": "unknown",
        "opt_state/0/mu/w": "unknown",
        "optimizer.state.0": "unknown",
        "w/Adamant": "unknown",
        "w/ExponentialMovingAverage": "unknown",
    }
    values = {name: np.ones(3) for name in expected} | {"global_step": np.int64(3)}
    ckptfmt.save(tmp_path / "a", {**values, "words": np.array([b"one"], object)})
    with ckptfmt.open(tmp_path / "a") as reader:
        assert model_roles(reader) == expected
    done = ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    assert set(done.dropped) == {name for name, role in expected.items() if role == "optimizer"}
    assert set(done.undecided) == {name for name, role in expected.items() if role == "unknown"}


def test_states_of_random_numbers(tmp_path: Path) -> None:
    """By their sizes wherever they are, by their names if these say so; in metadata or not."""
    tensors = {
        "r.rank_0.torch": np.zeros(5056, np.uint8),
        "r.rank_0.numpy.1": np.zeros(624, np.uint32),
        "r.cuda.0": np.zeros(16, np.uint8),
        "rng_state": np.zeros(7, np.uint8),
        "rng": np.zeros(100, np.uint32),
        "dropout": np.zeros(2, np.uint32),  # a key of JAX, by the metadata
        "model.codes": np.zeros(16, np.uint8),
        "model.random.table": np.zeros((2, 3), np.uint8),
        "model.random.weight": np.zeros(3, np.float32),
        "model.orange": np.zeros(3, np.uint8),
    }
    pairs = [["dropout", "threefry2x32"], ["no", ""], ["model.codes"][:0]]
    ckptfmt.save(tmp_path / "a", tensors, metadata={"jax_prng_impls": pairs})
    with ckptfmt.open(tmp_path / "a") as reader:
        roles = model_roles(reader)
    assert {name for name in roles if roles[name] == "weight"} == set(list(tensors)[6:])
    assert {roles[name] for name in list(tensors)[:6]} == {"other"}
