# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of names that TensorFlow 1's Saver wrote are loaded in every way there is; and that
Saver finds in our checkpoints of objects what it knows by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.trees import assert_same_tree

import ckptfmt

from .workers import ask

Named = tuple[Path, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Named:
    """A folder with the Saver's checkpoint `theirs`, and its values by name."""
    folder = tmp_path_factory.mktemp("names")
    told = ask("tf_names.py", "write", folder)
    return folder, {name: array_of(name, value) for name, value in told.items()}


def array_of(name: str, value: Any) -> np.ndarray:
    if name == "text":
        texts = np.empty(len(value), object)
        texts[:] = [one.encode("latin-1") for one in value]
        return texts
    return np.array(value, np.int64 if name == "global_step" else np.float32)


def blank(array: np.ndarray) -> np.ndarray:
    return np.zeros_like(array) if array.dtype != object else np.full(array.shape, b"", object)


def nested(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    """Dicts by the parts of the names, none of which is a name itself."""
    root: dict[str, Any] = {}
    for name, array in flat.items():
        *branches, last = name.split("/")
        target = root
        for branch in branches:
            target = target.setdefault(branch, {})
        target[last] = array
    return root


class Variable(ckptfmt.Trackable):
    """An object that names itself, whatever its path."""

    untracked = ("name", "array")

    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name = name
        self.array = array

    def serialize_to_tensors(self) -> dict[str, Any]:
        return {"VARIABLE_VALUE": self.array}

    def restore_from_tensors(self, tensors: dict[str, Any]) -> None:
        self.array = tensors["VARIABLE_VALUE"]


def test_what_the_saver_wrote_is_restored_by_name(theirs: Named) -> None:
    folder, values = theirs
    assert {"dense/kernel", "dense/kernel/Adam_1", "parts/Adam", "beta1_power"} < values.keys()
    objects = [Variable(name, blank(array)) for name, array in values.items()]
    checkpoint = ckptfmt.Checkpoint(any=objects)
    status = checkpoint.restore(folder / "theirs").assert_consumed()
    assert status.report.unexpected == ()
    for one in objects:
        np.testing.assert_array_equal(one.array, values[one.name], strict=True)
    assert int(checkpoint.save_counter) == 0

    plain = {name: blank(values[name]) for name in ("dense/bias", "parts", "text", "global_step")}
    tree = nested(plain)
    ckptfmt.Checkpoint(**tree).read(folder / "theirs").assert_existing_objects_matched()
    for name, array in plain.items():
        np.testing.assert_array_equal(array, values[name], strict=True)


def test_what_the_saver_wrote_is_loaded_as_a_tree(theirs: Named) -> None:
    folder, values = theirs
    assert_same_tree(ckptfmt.load(folder / "theirs"), values)
    tree = ckptfmt.load_tree(folder / "theirs")
    kernel = tree["dense"]["kernel"]
    np.testing.assert_array_equal(kernel.attributes["VARIABLE_VALUE"], values["dense/kernel"])
    np.testing.assert_array_equal(kernel["Adam_1"], values["dense/kernel/Adam_1"])
    into = nested({"dense/bias": blank(values["dense/bias"]), "parts": blank(values["parts"])})
    report = ckptfmt.load_tree_into(folder / "theirs", into, strict=False)
    assert sorted(report.matched) == ["dense/bias", "parts"]
    np.testing.assert_array_equal(into["parts"], values["parts"], strict=True)


def test_the_saver_finds_the_names_of_our_objects(theirs: Named, tmp_path: Path) -> None:
    _, values = theirs
    wanted = {name: array for name, array in values.items() if not name.startswith("parts")}
    objects = [Variable(name, array) for name, array in wanted.items()]
    prefixes = [ckptfmt.Checkpoint(any=objects).write(tmp_path / "objects")]
    # As the variables of a tree: what has slots is a node with a value and children.
    ckptfmt.save(tmp_path / "names", wanted)
    tree = ckptfmt.load_tree(tmp_path / "names")
    prefixes += [
        ckptfmt.save_tree(tmp_path / "tree", tree),
        ckptfmt.save_tree(tmp_path / "again", ckptfmt.load_tree(tmp_path / "tree")),
        str(tmp_path / "names"),
    ]
    (tmp_path / "prefixes.json").write_text(json.dumps(prefixes), encoding="utf-8")
    for told in ask("tf_names.py", "read", tmp_path).values():
        assert_same_tree({name: array_of(name, value) for name, value in told.items()}, wanted)
