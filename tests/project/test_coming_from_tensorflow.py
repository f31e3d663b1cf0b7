# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-tensorflow.md: its names exist, and errors have the words of TensorFlow that it
quotes. The rows about behaviour are tested where the behaviour is; tests/interop has TensorFlow's
side of this file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.page import NAMES, in_backticks, quoted_words, sections

import ckptfmt
from ckptfmt import Checkpoint, Saver, SaveSpec, errors, tf
from ckptfmt.sharded import Layout, Mesh, SingleProcess

V = np.array([1, 2], np.float32)
LAYOUT = Layout(["x"], Mesh({"x": 1}))
OPTIONS = tf.CheckpointOptions(durability="none")
WORDS = quoted_words()
WORKS_HERE = {"restoring the whole of a tensor that was saved in slices"}


def test_names() -> None:
    """Each name is there, and takes what is in parentheses: `name` first, `name=` by keyword."""
    for name in [name for names in sections()[NAMES] for name in in_backticks(names.second)]:
        path, _, arguments = name.rstrip(")").partition("(")
        found: Any = ckptfmt
        assert path.split(".")[0] == "ckptfmt", name
        for part in path.split(".")[1:]:
            assert part in dir(found), name
            found = getattr(found, part)
        given = [text.strip() for text in arguments.split(",") if text]
        known = inspect.signature(found).parameters if given else {}
        assert {text.removesuffix("=") for text in given} <= set(known), name
        positional = [text for text in given if not text.endswith("=")]
        assert list(known)[: len(positional)] == positional, name


class Holder:
    """The owner of a tensor that a Saver restores."""

    def restore(self, tensors: Any) -> None:
        raise AssertionError("nothing is restored")


def on_mesh(x: Any) -> Checkpoint:
    parts = {LAYOUT.mesh.devices[0]: x}
    return Checkpoint(x=parts, coordinator=SingleProcess(), layouts={"x": LAYOUT})


def restore_by_saver(prefix: str, name: str = "x", array: Any = V) -> None:
    Saver({Holder(): {name: array}}).restore(prefix)


def reads(prefix: str, name: str = "x") -> list[Callable[[], object]]:
    """The calls that read one tensor by its name."""
    return [
        lambda: ckptfmt.restore_v2(prefix, [name], [""]),
        lambda: ckptfmt.open(prefix)[name].read(),  # noqa: PLW0108 (open fails in the call)
        lambda: ckptfmt.open(prefix).read(name),
        lambda: ckptfmt.load(prefix, [name]),
        lambda: tf.load_variable(prefix, name),
        lambda: tf.load_checkpoint(prefix).get_tensor(name),
        lambda: ckptfmt.sharded.restore(prefix, {name: LAYOUT}, SingleProcess()),
        lambda: restore_by_saver(prefix, name),
    ]


def objects(prefix: str, array: Any = V) -> list[Callable[[], object]]:
    """The calls that restore an object's tensor."""
    return [
        lambda: Checkpoint(x=array.copy()).read(prefix),
        lambda: Checkpoint(x=array.copy()).restore(prefix),
        lambda: on_mesh(array.copy()).read(prefix),
    ]


def parallel(array: Any) -> list[Callable[[], object]]:
    made = tf.ParallelVariable([array])
    saver = Saver({made: made.serialize("x")})
    return [lambda: Checkpoint(x=made).read("object"), lambda: saver.restore("object")]


def merges(inputs: list[str]) -> list[Callable[[], object]]:
    return [
        lambda: ckptfmt.merge_v2_checkpoints(inputs, "m"),
        lambda: ckptfmt.merge(inputs, "m"),
    ]


DOUBLES, FOUR = np.zeros(2), np.zeros(4, np.float32)
CALLS: dict[str, tuple[type[Exception], list[Callable[[], object]]]] = {
    "a tensor that you name is missing": (errors.TensorNotFoundError, reads("ck", "y")),
    "a checkpoint is missing": (
        errors.CheckpointNotFoundError,
        [*reads("kc"), *objects("kc"), lambda: tf.list_variables("kc")],
    ),
    "`load_checkpoint` of a directory without a state file": (
        errors.InvalidError,
        [
            lambda: tf.load_checkpoint("."),
            lambda: tf.list_variables("."),
            lambda: tf.load_variable(".", "x"),
        ],
    ),
    "the dtype differs": (
        errors.InvalidError,
        [
            lambda: ckptfmt.restore_v2("ck", ["x"], [""], [np.int32]),
            lambda: restore_by_saver("ck", array=DOUBLES),
            *[*objects("object", DOUBLES), *objects("ck", DOUBLES), *parallel(DOUBLES)],
        ],
    ),
    "the shape differs": (
        errors.InvalidError,
        [
            lambda: ckptfmt.restore_v2("ck", ["x"], ["4 0,2"]),
            lambda: restore_by_saver("ck", array=SaveSpec(V, "4 0,2", "x")),
            *[*objects("object", FOUR), *objects("ck", FOUR), *parallel(FOUR)],
        ],
    ),
    "a tensor's bytes have changed": (
        errors.CorruptError,
        [*reads("damaged"), *objects("damaged"), *objects("damaged-object")],
    ),
    "two inputs of a merge have the same tensor or slice": (
        errors.MergeConflictError,
        merges(["ck", "copy"]),
    ),
    "an input of a merge is missing": (errors.CheckpointNotFoundError, merges(["ck", "gone"])),
}


def test_all_quoted_words_are_tested() -> None:
    assert CALLS.keys() | WORKS_HERE == WORDS.keys()


@pytest.mark.parametrize("title", CALLS)
def test_words(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ck", "copy", "damaged"):
        ckptfmt.save(name, {"x": V}, durability="none")
    for name in ("object", "damaged-object"):
        Checkpoint(x=V).write(name, OPTIONS)
    for name in ("damaged", "damaged-object"):
        with open(f"{name}.data-00000-of-00001", "r+b") as file:
            file.write(b"?" * V.nbytes)
    kind, calls = CALLS[title]
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert WORDS[title] in str(caught.value)
        if isinstance(caught.value, errors.CorruptError):
            assert caught.value.tensor is not None and caught.value.offset == 0
