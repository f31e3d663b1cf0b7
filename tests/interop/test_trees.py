# SPDX-License-Identifier: Apache-2.0
"""Trees and TensorFlow's objects: what one saved, the other restores, whole models with their
optimizers too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.trees import assert_same_tree

import ckptfmt
from ckptfmt.objects.nodes import TreeNode
from ckptfmt.objects.trees import load_tree, save_tree

from .generate import seed_from_environment
from .trees import Nodes, Ours, ask_about, random_tree
from .workers import ask

COUNT = 60
MODELS = [
    *("dense", "convolution", "recurrent", "shared_layer", "nested", "subclassed", "slots"),
]


def random_trees(what: str) -> dict[str, Nodes]:
    rng = random.Random(f"{what} {seed_from_environment()}")
    return {f"tree{number}": random_tree(rng) for number in range(COUNT)}


def variables_of(nodes: Nodes) -> dict[str, Any]:
    return {str(i): node["variable"] for i, node in enumerate(nodes) if "variable" in node}


def test_what_tensorflow_saved_is_loaded(tmp_path: Path) -> None:
    trees = random_trees("theirs")
    ask_about(trees, "write", tmp_path)
    for name, nodes in trees.items():
        assert_same_tree(load_tree(tmp_path / name), Ours(nodes, tuples=False).root)


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_what_is_saved_tensorflow_restores(tmp_path: Path, level: str) -> None:
    trees = random_trees(level)
    for name, nodes in trees.items():
        tree = Ours(nodes, tuples=True).root
        save_tree(tmp_path / name, tree, level=level, durability="rename")
        assert_same_tree(load_tree(tmp_path / name), tree)
    restored = ask_about(trees, "read", tmp_path)
    for name, nodes in trees.items():
        assert restored[name] == variables_of(nodes)


def test_what_tensorflow_saved_is_saved_anew(tmp_path: Path) -> None:
    trees = random_trees("anew")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    ask_about(trees, "write", theirs)
    for name in trees:
        save_tree(tmp_path / name, load_tree(theirs / name), durability="rename")
    restored = ask_about(trees, "read", tmp_path)
    for name, nodes in trees.items():
        assert restored[name] == variables_of(nodes)


def test_tensorflow_restores_python_scalars_as_variables(tmp_path: Path) -> None:
    tree = {"step": 7, "rates": (0.1, [True, None]), "text": "für", "none": None, "raw": b"\0b"}
    save_tree(tmp_path / "ckpt", tree)
    nodes: Nodes = [
        {"dict": [["none", 6], ["rates", 1], ["raw", 8], ["step", 2], ["text", 3]]},
        {"tuple": [4, 5]},
        {"variable": 7},
        {"variable": "für"},
        {"variable": 0.1, "dtype": "float64"},
        {"list": [7]},
        {"dict": []},
        {"variable": True},
        {"variable": "\0b"},
    ]
    assert ask_about({"ckpt": nodes}, "read", tmp_path)["ckpt"] == variables_of(nodes)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with each model as TensorFlow saved it and as it was loaded and saved here, and how
    TensorFlow restored both."""
    folder = tmp_path_factory.mktemp("models")
    counts = ask("tf_keras.py", "write", folder)
    assert list(counts) == MODELS
    for name in MODELS:
        save_tree(folder / f"ours-{name}", load_tree(folder / f"{name}-1"))
    return folder, ask("tf_keras.py", "read", folder)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_optimizers(models: tuple[Path, dict[str, str]], name: str) -> None:
    folder, outcomes = models
    # All that TensorFlow itself can do.
    assert outcomes[f"{name}-1"] == outcomes[f"ours-{name}"] == "consumed"
    with np.load(folder / f"{name}.npz") as trained:
        assert len(trained.files) >= 6
        for file in (f"{name}-1", f"ours-{name}"):
            with np.load(folder / f"{file}.read.npz") as read:
                assert read.files == trained.files
                for one in trained.files:
                    np.testing.assert_array_equal(read[one], trained[one], strict=True)
    tree = load_tree(folder / f"ours-{name}")
    assert_same_tree(tree, load_tree(folder / f"{name}-1"))
    assert tree["save_counter"] == 1


def test_variables_of_a_layer_are_those_of_its_optimizer(models: tuple[Path, Any]) -> None:
    folder, _ = models
    tree = load_tree(folder / "dense-1")
    kernels = [layer["_kernel"] for layer in tree["model"]["_functional"]["_operations"] if layer]
    assert tree["optimizer"]["_trainable_variables"][0] is kernels[0]
    assert tree["optimizer"]["_trainable_variables"][2] is kernels[1]
    tree = load_tree(folder / "slots-1")
    assert isinstance(tree["optimizer"], TreeNode)
    slots = {(id(slot.variable), slot.name) for slot in tree["optimizer"].slots}
    variables = [tree["model"]["kernel"], tree["model"]["bias"]]
    assert slots == {(id(variable), name) for variable in variables for name in ("m", "v")}


def test_objects_that_are_no_variables(tmp_path: Path) -> None:
    told = ask("tf_objects.py", "write", tmp_path)
    tree = load_tree(tmp_path / "objects")
    assert tree["table"].attributes["table"].keys() == {"-keys", "-values"}
    assert tree["words"].attributes["py_state"].item() == "für".encode()
    save_tree(tmp_path / "ours", tree)
    assert ask("tf_objects.py", "read", tmp_path) == told

    tree = load_tree(tmp_path / "registered")
    assert tree["own"].registered_saver[0] == "tests.own"
    with pytest.raises(ckptfmt.UnsupportedError, match=r"at 'own' .* registered saver 'tests.own'"):
        save_tree(tmp_path / "registered", tree)
    np.testing.assert_array_equal(load_tree(tmp_path / "model")["v"], np.float32([1, 2]))


def test_names_of_a_name_based_checkpoint(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ckpt", {"w": np.ones(2), "w/Adam": np.zeros(2), "b/x": np.ones(1)})
    assert_same_tree(
        load_tree(tmp_path / "ckpt"),
        {
            "b": {"x": np.ones(1)},
            "w": TreeNode({"Adam": np.zeros(2)}, attributes={"VARIABLE_VALUE": np.ones(2)}),
        },
    )
