# SPDX-License-Identifier: Apache-2.0
"""ckptfmt.Checkpoint and tf.train.Checkpoint restore what the other saved, write the same graph,
and come to the same status.

Both build their objects from the descriptions of support/graphs.py.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import Builder, Tree, attach, blank, described
from support.strategies import OBJECTS, SEEDS, count_graph, object_graphs, property_test

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, decode_graph, encode_graph

from .workers import Worker, ask

ASSERTIONS = ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match")


def variable(value: Any, number: int | None = None, dtype: str = "float32") -> Tree:
    array = np.array(value, dtype)
    tree = {
        "kind": "variable",
        "dtype": dtype,
        "shape": list(array.shape),
        "data": described(array),
    }
    return tree if number is None else {**tree, "is": number}


def module(**items: Tree) -> Tree:
    return {"kind": "module", "items": items}


def dictionary(**items: Tree) -> Tree:
    return {"kind": "dict", "items": items}


# ---- running both --------------------------------------------------------------------------------


def tensorflow(folder: Path, jobs: list[dict[str, Any]]) -> list[Any]:
    results: list[Any] = ask("tf_checkpoint.py", folder, question=jobs)
    return results


def reached(start: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(start, (list, tuple)):
            start = start[int(name)]
        else:
            start = start[name] if isinstance(start, dict) else getattr(start, name)
    return start


def outcome(status: Any, assertion: str) -> str:
    try:
        assert getattr(status, assertion)() is status
    except AssertionError as error:
        assert isinstance(error, ckptfmt.errors.MatchError)
        return "AssertionError"
    return "ok"


def restored(job: Mapping[str, Any]) -> dict[str, Any]:
    """What tf_checkpoint.py's `restore` does."""
    builder = Builder()
    checkpoint = builder.checkpoint(job)
    options = ckptfmt.tf.CheckpointOptions(
        experimental_skip_slot_variables=job.get("skip_slots", False)
    )
    try:
        status = (checkpoint.read if job.get("read") else checkpoint.restore)(job["path"], options)
    except ckptfmt.InvalidError:
        return {"error": "InvalidError"}
    for path, tree in job.get("later", ()):
        attach(reached(checkpoint, path[:-1]), path[-1], builder.build(tree))
    at_once = builder.values()
    outcomes = [outcome(status, assertion) for assertion in ASSERTIONS]
    status.expect_partial()
    # Elements of dicts and lists get their values by the assertions.
    if not any(len(path) > 1 for path, _ in job.get("later", ())):
        assert builder.values() == at_once
    return {"outcomes": outcomes, "shared": builder.values()}


def tensors_in_order(prefix: str) -> list[str]:
    with ckptfmt.open(prefix) as reader:
        return sorted(reader, key=lambda name: (reader[name].shard, reader[name].offset))


def plain_graph(prefix: str) -> bytes:
    """The object graph without what is another in ours."""
    with ckptfmt.open(prefix) as reader:
        content: Any = reader[OBJECT_GRAPH_KEY].read()
    graph = decode_graph(content[()])
    for node in graph.nodes:
        node.kind = None
        for attribute in node.attributes:
            attribute.full_name = ""
    return encode_graph(graph)


@pytest.fixture(scope="module")
def tensorflow_worker() -> Iterator[Worker]:
    worker = Worker("tf_checkpoint.py")
    yield worker
    worker.close()


# ---- structures ----------------------------------------------------------------------------------


def check_both_ways(
    tmp_path: Path, cases: list[dict[str, Any]], run: Callable[..., list[Any]] = tensorflow
) -> None:
    """Each side saves all cases, writes the same graph, and restores what the other saved."""
    jobs = []
    for number, case in enumerate(cases):
        builder = Builder()
        case["saved"] = builder.checkpoint(case).save(tmp_path / f"ours{number}")
        case["values"] = builder.values()
        jobs.append({**case, "do": "save", "path": str(tmp_path / f"theirs{number}")})
        jobs.append({**blank(case), "do": "restore", "path": case["saved"], "values": None})
    results = run(tmp_path, jobs)
    for case, theirs, outcome_of_ours in zip(cases, results[::2], results[1::2], strict=True):
        assert outcome_of_ours["shared"] == case["values"], case
        assert outcome_of_ours["outcomes"] == ["ok"] * 3, case
        ours = restored({**blank(case), "path": theirs})
        assert ours["shared"] == case["values"], case
        assert ours["outcomes"] == ["ok"] * 3, case
        assert plain_graph(case["saved"]) == plain_graph(theirs), case
        assert tensors_in_order(case["saved"]) == tensors_in_order(theirs), case


@property_test(100, 5000, object_graphs(back_to=OBJECTS))
def test_object_graphs_go_both_ways(
    tmp_path: Path, tensorflow_worker: Worker, case: dict[str, Any]
) -> None:
    count_graph(case)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:

        def run(_: Path, jobs: list[dict[str, Any]]) -> list[Any]:
            answer = tensorflow_worker("run", directory=folder, jobs=jobs)
            assert "results" in answer, answer["error"]
            results: list[Any] = answer["results"]
            return results

        check_both_ways(Path(folder), [case], run)


def test_slot_variables_go_both_ways(tmp_path: Path) -> None:
    v, w = variable([1.0, 2.0], 1), variable(3.0, 2)
    optimizer = {
        "kind": "optimizer",
        "items": {"rate": variable(0.1, 3)},
        "slots": [
            [v, "momentum", variable([4.0, 5.0], 4)],
            [w, "momentum", variable(6.0, 5)],
            [w, "x/y", variable([[7.0]], 6)],
        ],
        "is": 7,
    }
    model = module(v=v, deep=dictionary(w=w))
    cases = [
        {"objects": {"o": optimizer, "model": model}},
        {"objects": {"z": optimizer, "model": model, "a": optimizer}},
    ]
    check_both_ways(tmp_path, cases)


def split(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """The same objects, of which some come later and some never."""
    nodes = {node["is"]: dict(node) for node in case["nodes"]}
    now: dict[str, Tree] = {}
    later: list[list[Any]] = []
    for name, tree in case["objects"].items():
        node = nodes[tree["is"]]
        moved = []
        if node["kind"] in ("dict", "module", "checkpoint"):
            items = node["items"] = dict(node["items"])
            for child in [child for child in items if rng.random() < 0.4]:
                item = items.pop(child)
                if rng.random() < 0.8:
                    moved.append([[name, child], item])
        if rng.random() < 0.4:
            later = [[[name], tree], *later, *moved]
        elif rng.random() >= 0.1:
            now[name] = tree
            later += moved
    return {**case, "nodes": list(nodes.values()), "objects": now, "later": later}


# TensorFlow does not restore what is attached later to a Checkpoint with a root of its own.
@property_test(60, 1000, object_graphs(back_to=(), roots=False), SEEDS)
def test_objects_that_come_later(
    tmp_path: Path, tensorflow_worker: Worker, case: dict[str, Any], seed: int
) -> None:
    restoring = blank(split(random.Random(seed), case))
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        path = f"{folder}/ck"
        saving = {**case, "do": "save", "path": path}
        job = {**restoring, "do": "restore", "path": f"{path}-1"}
        answer = tensorflow_worker("run", directory=folder, jobs=[saving, job])
        assert "results" in answer, answer["error"]
        theirs = answer["results"][1]
        ours = restored(job)
        assert {key: theirs[key] for key in ours} == ours


# ---- what a status says --------------------------------------------------------------------------

A, B = variable(1.0), variable(2.0)
TWO = {"a": A, "b": B}
NEW = variable(9.0, 1)
OTHER = variable(8.0, 2)
OPTIMIZER = {"kind": "optimizer", "items": {}, "slots": [[variable(1.0, 1), "m", variable(5.0, 2)]]}
EMPTY_OPTIMIZER = {"kind": "optimizer", "items": {}}

# name: (what is saved, how it is restored)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same": ({"objects": TWO}, {"objects": {"a": NEW, "b": OTHER}}),
    "less": ({"objects": TWO}, {"objects": {"a": NEW}}),
    "more": ({"objects": TWO}, {"objects": {"a": NEW, "b": OTHER, "c": variable(0.0, 3)}}),
    "another name": ({"objects": TWO}, {"objects": {"c": NEW}}),
    "nothing": ({"objects": TWO}, {"objects": {}}),
    "a dict for a variable": ({"objects": TWO}, {"objects": {"a": dictionary()}}),
    "an empty dict more": ({"objects": TWO}, {"objects": {**TWO, "d": dictionary()}}),
    "an empty module more": ({"objects": TWO}, {"objects": {**TWO, "d": module()}}),
    "a list for a tuple": (
        {"objects": {"a": {"kind": "list", "items": [A, B]}}},
        {"objects": {"a": {"kind": "tuple", "items": [NEW, OTHER]}}},
    ),
    "a module for a dict": (
        {"objects": {"a": dictionary(x=A)}},
        {"objects": {"a": module(x=NEW)}},
    ),
    "one where there were two": ({"objects": TWO}, {"objects": {"a": NEW, "b": NEW}}),
    "restore of write": ({"objects": TWO, "write": True}, {"objects": {"a": NEW, "b": OTHER}}),
    "read of write": (
        {"objects": TWO, "write": True},
        {"objects": {"a": NEW, "b": OTHER}, "read": True},
    ),
    "read of save": ({"objects": TWO}, {"objects": {"a": NEW, "b": OTHER}, "read": True}),
    "another shape": ({"objects": TWO}, {"objects": {"a": variable([1.0, 2.0], 1)}}),
    "another dtype": ({"objects": TWO}, {"objects": {"a": variable(1, 1, "int64")}}),
    "all later": (
        {"objects": TWO},
        {"objects": {}, "later": [[["a"], NEW], [["b"], OTHER]]},
    ),
    "half later": ({"objects": TWO}, {"objects": {}, "later": [[["a"], NEW]]}),
    "set anew": (
        {"objects": TWO},
        {"objects": {}, "later": [[["a"], NEW], [["b"], OTHER], [["a"], variable(7.0, 3)]]},
    ),
    "into a module later": (
        {"objects": {"m": module(x=A, y=module(z=B))}},
        {"objects": {"m": module()}, "later": [[["m", "x"], NEW], [["m", "y"], module(z=OTHER)]]},
    ),
    "a module first, then what is in it": (
        {"objects": {"m": module(x=A, y=module(z=B))}},
        {
            "objects": {},
            "later": [[["m"], module(y=module())], [["m", "y", "z"], OTHER], [["m", "x"], NEW]],
        },
    ),
    "into a dict later": (
        {"objects": {"d": dictionary(x=A), "l": {"kind": "list", "items": [B]}}},
        {
            "objects": {"d": dictionary(), "l": {"kind": "list", "items": []}},
            "later": [[["d", "x"], NEW], [["l", "0"], OTHER]],
        },
    ),
    "a root, restored without": (
        {"root": module(w=A), "objects": {"e": B}},
        {"objects": {"w": NEW, "e": OTHER}},
    ),
    "no root, restored with one": (
        {"objects": {"w": A, "e": B}},
        {"root": module(w=NEW), "objects": {"e": OTHER}},
    ),
    "slots": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {
            "objects": {
                "o": {**OPTIMIZER, "slots": [[NEW, "m", OTHER]]},
                "v": NEW,
            }
        },
    ),
    "slots left out": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {
            "objects": {
                "o": {**OPTIMIZER, "slots": [[NEW, "m", OTHER]]},
                "v": NEW,
            },
            "skip_slots": True,
        },
    ),
    "slots without an optimizer": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {"objects": {"v": NEW}},
    ),
    "an optimizer without slots": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {"objects": {"o": EMPTY_OPTIMIZER, "v": NEW}},
    ),
    "slots of a variable that comes later": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {"objects": {"o": {**OPTIMIZER, "slots": [[NEW, "m", OTHER]]}}, "later": [[["v"], NEW]]},
    ),
    "slots of an optimizer that comes later": (
        {"objects": {"o": OPTIMIZER, "v": variable(1.0, 1)}},
        {"objects": {"v": NEW}, "later": [[["o"], {**OPTIMIZER, "slots": [[NEW, "m", OTHER]]}]]},
    ),
    "a state": (
        {"objects": {"s": {"kind": "state", "text": "old"}}},
        {"objects": {"s": {"kind": "state", "text": "new", "is": 1}}},
    ),
}


def both(
    tmp_path: Path, cases: dict[str, tuple[dict[str, Any], dict[str, Any]]]
) -> dict[str, tuple[dict[str, Any], Any]]:
    """Saves and restores with TensorFlow; name to the job of restoring and what it came to."""
    jobs: list[dict[str, Any]] = []
    for number, (saved, restoring) in enumerate(cases.values()):
        path = str(tmp_path / f"case{number}")
        jobs.append({**saved, "do": "save", "path": path})
        jobs.append({**restoring, "do": "restore", "path": path + "-1" * ("write" not in saved)})
    results = tensorflow(tmp_path, jobs)
    return dict(zip(cases, zip(jobs[1::2], results[1::2], strict=True), strict=True))


def test_both_come_to_the_same_status(tmp_path: Path) -> None:
    results = both(tmp_path, CASES)
    for name, (job, theirs) in results.items():
        ours = restored(job)
        if "error" in theirs:
            assert ours == {"error": "InvalidError"}, name
            continue
        assert {key: theirs[key] for key in ours} == ours, name


def test_what_got_no_value_is_not_matched(tmp_path: Path) -> None:
    """TensorFlow calls a variable matched where the checkpoint has anything at all for it."""
    cases = {"": ({"objects": {"a": dictionary(x=A)}}, {"objects": {"a": NEW}})}
    job, theirs = both(tmp_path, cases)[""]
    ours = restored(job)
    assert theirs["outcomes"] == ["AssertionError", "ok", "ok"]
    assert ours["outcomes"] == ["AssertionError", "AssertionError", "ok"]
    assert ours["shared"] == theirs["shared"]


def test_one_object_that_became_two(tmp_path: Path) -> None:
    """TensorFlow restores the first one as well, and says nothing before its assertions."""
    one = variable(1.0, 1)
    cases = {"": ({"objects": {"a": one, "b": one}}, {"objects": {"a": NEW, "b": OTHER}})}
    job, theirs = both(tmp_path, cases)[""]
    with pytest.warns(ckptfmt.CkptfmtWarning, match="'a' and the object at 'b' are one object in"):
        ours = restored(job)
    assert {key: theirs[key] for key in ours} == ours
    assert ours["outcomes"] == ["AssertionError", "AssertionError", "ok"]


# ---- names ---------------------------------------------------------------------------------------


def test_checkpoints_of_names_restore_by_full_names(tmp_path: Path) -> None:
    tensors = {"dense/kernel": variable([1.0, 2.0]), "b": variable(3.0), "unused": variable(4.0)}
    path = str(tmp_path / "names")

    def named(value: Any, name: str, number: int) -> Tree:
        return {**variable(value, number), "name": name}

    kernel, bias = named([0.0, 0.0], "dense/kernel", 1), named(0.0, "b", 2)
    cases = [
        {"objects": {"dense": dictionary(kernel=kernel), "b": bias}},
        {"objects": {"b": bias, "c": named(0.0, "c", 3)}},
        {"objects": {}, "later": [[["b"], bias]]},
        {"objects": {}, "later": [[["dense"], module()], [["dense", "kernel"], kernel]]},
    ]
    jobs = [{**case, "do": "restore", "path": path} for case in cases]
    _, *results = tensorflow(tmp_path, [{"do": "names", "path": path, "tensors": tensors}, *jobs])
    for job, theirs in zip(jobs, results, strict=True):
        ours = restored(job)
        assert {key: theirs[key] for key in ours} == ours, job["objects"]


# ---- Keras ---------------------------------------------------------------------------------------


def mirrored(prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects of a checkpoint as dicts, and its variables by key."""
    with ckptfmt.open(prefix) as reader:
        content: Any = reader[OBJECT_GRAPH_KEY].read()
        nodes = decode_graph(content[()]).nodes
        made: list[Any] = []
        found = {}
        for node in nodes:
            keys = [a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"]
            made.append(np.array(reader[keys[0]].read()) if keys else {})
            found.update(dict.fromkeys(keys, made[-1]))
    for node, value in zip(nodes, made, strict=True):
        if isinstance(value, dict):
            value.update({name: made[child] for name, child in node.children})
    return made[0], found


def test_keras_models_go_both_ways(tmp_path: Path) -> None:
    path = str(tmp_path / "keras")
    weights = tensorflow(tmp_path, [{"do": "keras_save", "path": path}])[0]
    root, variables = mirrored(path)
    expected = {key: array.copy() for key, array in variables.items()}
    for array in variables.values():
        array[...] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ckptfmt.Checkpoint(**root).read(path).assert_consumed()
    for key, array in variables.items():
        np.testing.assert_array_equal(array, expected[key])
    ours = ckptfmt.Checkpoint(**root).write(tmp_path / "ours")
    assert tensors_in_order(ours) == tensors_in_order(path)
    assert tensorflow(tmp_path, [{"do": "keras_restore", "path": ours}])[0] == weights
