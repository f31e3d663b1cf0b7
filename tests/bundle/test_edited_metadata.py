# SPDX-License-Identifier: Apache-2.0
"""Metadata that name tensors follow an edit: the tree of ckptfmt.torch, and what ckptfmt.jax
notes. tests/peers/test_torch_edits.py loads the results with torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drawn_edits import named_in_tree

import ckptfmt
from ckptfmt import InvalidError, UnsupportedError
from ckptfmt.naming.roles import model_roles

ONE = {"$tensor": True}
NAMES = ["a.w", "a.b", "l.0", "l.1", "s.0", "s.1", "o.state.0.m", "o.param_groups.0.lr", "t.q"]
STATE: dict[str, Any] = {
    "a": {"$state_dict": [["w", ONE], ["b", ONE]], "versions": {}},
    "l": [ONE, {"$tuple": []}, 7],
    "s": {"$set": [ONE, ONE]},
    "o": {"state": {"$dict": [[0, {"m": ONE}]]}, "param_groups": [{"lr": ONE, "params": [0]}]},
    "t": {"q": {"$tensor": True, "dtype": "qint8", "scale": 0.1, "zero_point": 3}},
    "tied": {"$tensor": "a.w"},
    "x": {"$float": "nan"},
}
STATE["l"][1]["$tuple"] = [{"$tensor": "l.1"}, 3]


def save(prefix: Path, state: Any = STATE, names: list[str] = NAMES, **more: Any) -> None:
    text = json.dumps({"version": 1, "state": state, "more": 5})
    values = {name: np.full(3, number, "f4") for number, name in enumerate(names)}
    ckptfmt.save(prefix, values, metadata={"ckptfmt.torch": text, "step": 3, **more})


def edited(tmp_path: Path, **options: Any) -> Any:
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", drop_weights=True, **options)
    with ckptfmt.open(tmp_path / "b") as reader:
        whole = json.loads(reader.metadata["ckptfmt.torch"])
        assert reader.metadata["step"] == 3 and whole["more"] == 5
        assert set(named_in_tree(whole["state"])) <= set(reader)
        return whole["state"]


@pytest.mark.filterwarnings("ignore:names of dropped tensors")
@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"strip_optimizer": True}, {"o": None}),
        ({"drop": "o.*"}, {"o": None}),
        ({"drop": "a.w"}, {"a": {"$state_dict": [["b", ONE]], "versions": {}}, "tied": None}),
        ({"drop": "l.0"}, {"l": [None, {"$tuple": [{"$tensor": "l.1"}, 3]}, 7]}),
        ({"drop": "l.1"}, {"l": [ONE, {"$tuple": [None, 3]}, 7]}),
        ({"drop": "s.0"}, {"s": {"$set": [{"$tensor": "s.1"}]}}),
        ({"drop": "s.*"}, {"s": {"$set": []}}),
        (
            {"rename": {"a.w": "a.b", "a.b": "a.w"}},
            {
                "a": {"$state_dict": [["b", ONE], ["w", ONE]], "versions": {}},
                "tied": {"$tensor": "a.b"},
            },
        ),
        (
            {"rename": {"a.w": "a.x.y"}},
            {
                "a": {"$state_dict": [["x.y", ONE], ["b", ONE]], "versions": {}},
                "tied": {"$tensor": "a.x.y"},
            },
        ),
        ({"rename": {"l.0": "n"}}, {"l": [{"$tensor": "n"}, *STATE["l"][1:]]}),
        ({"rename": {"t.q": "t.$q"}}, {"t": {"q": {**STATE["t"]["q"], "$tensor": "t.$q"}}}),
        ({"rename": {"t.q": "t.p"}}, {"t": {"p": STATE["t"]["q"]}}),
        ({"cast": {"a.*": "float16"}}, {}),
        ({"cast": "float16"}, {}),
    ],
)
def test_the_tree_follows(options: dict[str, Any], changes: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "a")
    expected = {key: one for key, one in (STATE | changes).items() if one is not None}
    assert edited(tmp_path, **options) == expected


def test_a_new_key_that_another_has(tmp_path: Path) -> None:
    state = {"a": {"w": ONE, "v": {"x": ONE}}, "n": 1}
    save(tmp_path / "a", state, ["a.w", "a.v.x"])
    assert edited(tmp_path, rename={"a.w": "a.v"}) == {
        **state,
        "a": {"w": {"$tensor": "a.v"}, "v": {"x": ONE}},
    }


def test_an_optimizer_of_which_a_tensor_stays(tmp_path: Path) -> None:
    state = {"w": ONE, "o": {"state": {"0": ONE}, "param_groups": [{"params": [ONE]}], "n": 1}}
    save(tmp_path / "a", state, ["w", "o.state.0", "o.param_groups.0.params.0"])
    found = edited(tmp_path, strip_optimizer=True)
    assert found == {**state, "o": {**state["o"], "state": {}}}
    state["o"]["param_groups"] = [{"params": [{"$tensor": "w"}]}]
    save(tmp_path / "a", state, ["w", "o.state.0"])
    assert edited(tmp_path, strip_optimizer=True) == {"w": ONE, "o": {"n": 1}}


@pytest.mark.filterwarnings("ignore:names of dropped tensors")
def test_a_tree_that_names_missing_tensors(tmp_path: Path) -> None:
    save(tmp_path / "a", names=NAMES[1:])
    for options in ({"drop": "a.b"}, {"cast": "float16"}):
        with pytest.raises(InvalidError, match=r"'ckptfmt.torch' refer.*'a.w'.*drop_missing"):
            edited(tmp_path, **options)
    assert edited(tmp_path, drop_missing=True) == {
        **{key: one for key, one in STATE.items() if key != "tied"},
        "a": {"$state_dict": [["b", ONE]], "versions": {}},
    }
    done = ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", drop_missing=True, dry_run=True)
    assert done.missing == ("a.w",)
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", metadata={})


@pytest.mark.parametrize("ours", ["ckptfmt.torch", "ckptfmt.optimizer_states", "jax_prng_impls"])
def test_metadata_of_ours_are_not_replaced(ours: str, tmp_path: Path) -> None:
    stored = {"by": "you", ours: "[]"}
    ckptfmt.save(tmp_path / "a", {"w": np.ones(2)}, metadata=stored)
    with pytest.raises(InvalidError, match=ours):
        ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", metadata={"by": "me"})
    for given in ({**stored, "by": "me"}, {}):
        ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", metadata=given)
        with ckptfmt.open(tmp_path / "b") as reader:
            assert reader.metadata == given


@pytest.mark.parametrize(
    "text",
    [
        *("{", "3", "[" * 100_000, '{"version":2,"state":{}}', '{"version":1}'),
        *('{"version":1,"state":{"a":{"$new":1}}}', '{"version":1,"state":{"$dict":[3]}}'),
        *('{"version":1,"state":{"$dict":[[[],1]]}}', '{"version":1,"state":{"$state_dict":[]}}'),
        *(
            '{"version":1,"state":{"$dict":[[{"$set":[]},1]]}}',
            '{"version":1,"state":{"q":{"$tensor":true,"scales":3}}}',
        ),
        '{"version":1,"state":' + '{"a":' * 3000 + "1" + "}" * 3001,
    ],
)
def test_a_tree_that_is_not_known(text: str, tmp_path: Path) -> None:
    values = {"w": np.ones(2), "v": np.ones(2)}
    ckptfmt.save(tmp_path / "a", values, metadata={"ckptfmt.torch": text})
    for options in ({"drop": "w"}, {"rename": {"w": "u"}}, {"cast": "float16"}):
        kind = UnsupportedError if '"version":2' in text or "$new" in text else InvalidError
        with pytest.raises(kind, match=r"metadata=\{\} \(--set-metadata"):
            ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", drop_weights=True, **options)
        done = ckptfmt.editing.edit(
            tmp_path / "a", tmp_path / "b", drop_weights=True, metadata={}, **options
        )
        assert done.tensors == 2 - ("drop" in options)
    ckptfmt.editing.edit(
        tmp_path / "a", tmp_path / "b", metadata={"ckptfmt.torch": text, "step": 1}
    )


def test_metadata_that_are_given(tmp_path: Path) -> None:
    """What is as stored is edited; what is not is the caller's."""
    save(tmp_path / "a")
    with ckptfmt.open(tmp_path / "a") as reader:
        stored = reader.metadata
    for given in (stored, {"ckptfmt.torch": "{}"}):
        options: dict[str, Any] = {"metadata": {**given, "run": 5}, "rename": {"a.b": "a.c"}}
        ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", **options)
        with ckptfmt.open(tmp_path / "b") as reader:
            assert reader.metadata["run"] == 5
            assert ('"c"' in reader.metadata["ckptfmt.torch"]) == (given is stored)


PATHS = ["opt/0", "opt/1"]
OF_JAX = ["opt/0/mu/w", "opt/0/nu/w", "opt/1/mu/w", "w", "key"]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"strip_optimizer": True}, None),
        ({"drop": "opt/1/*"}, ["opt/0"]),
        ({"rename": [("^w$", "v")]}, PATHS),
        ({"rename": [("^opt/", "state/")]}, ["state/0", "state/1"]),
        ({"rename": [("/mu/", "/m/")]}, PATHS),
        ({"rename": [("^opt/0/mu", "mean")]}, ["mean", "opt/0", "opt/1"]),
        ({"rename": {"w": "opt/w", "key": "opt/0"}}, PATHS),
        ({"rename": {"opt/0/mu/w": "w2"}}, InvalidError),
        ({"rename": {"w": "opt/0/w"}}, ["opt/0/mu", "opt/0/nu", "opt/1/mu"]),
        ({"rename": {"w": "opt/0/mu/v"}}, InvalidError),
    ],
)
def test_the_paths_of_optimizers_follow(
    options: dict[str, Any], paths: Any, tmp_path: Path
) -> None:
    metadata = {"ckptfmt.optimizer_states": PATHS, "jax_prng_impls": [["key", "rbg"]]}
    values = {name: np.full(3, number) for number, name in enumerate(OF_JAX)}
    ckptfmt.save(tmp_path / "a", values, metadata=metadata)
    if paths is InvalidError:
        with pytest.raises(InvalidError, match="paths that only the state of optimizers"):
            ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", **options)
        ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", metadata={}, **options)
        return
    done = ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", **options)
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.metadata.get("ckptfmt.optimizer_states") == paths
        new = done.renamed.get("key", "key")
        assert reader.metadata["jax_prng_impls"] == [[new, "rbg"]]
        state = {name for name, role in model_roles(reader).items() if role == "optimizer"}
    old = {name for name in OF_JAX if name.startswith("opt/")} - set(done.dropped)
    assert state == {done.renamed.get(name, name) for name in old}


def test_implementations_of_keys_follow(tmp_path: Path) -> None:
    metadata = {"jax_prng_impls": [["a", "rbg"], ["b", "threefry2x32"]]}
    ckptfmt.save(tmp_path / "a", dict.fromkeys("abc", np.ones(2, "u4")), metadata=metadata)
    options: dict[str, Any] = {"drop": "b", "rename": {"a": "b"}, "drop_weights": True}
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", **options)
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.metadata == {"jax_prng_impls": [["b", "rbg"]]}
    ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", keep="c", drop_weights=True)
    with ckptfmt.open(tmp_path / "b") as reader:
        assert reader.metadata == {}
