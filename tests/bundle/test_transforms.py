# SPDX-License-Identifier: Apache-2.0
"""`rename` may give a transform of the tensor with its new name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A whole tensor, a partitioned one, strings, and one that keeps its name."""
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        writer.add("a/kernel", KERNEL)
        writer.add_slice("b/kernel", KERNEL[:1], shape=(2, 3), offset=(0, 0))
        writer.add_slice("b/kernel", KERNEL[1:], shape=(2, 3), offset=(1, 0))
        writer.add("bias", np.ones(3, np.float32))
        writer.add("words", np.array([[b"a", b"bc"]], object))
    return tmp_path / "ck"


def by_function(name: str) -> Any:
    return (name.replace("kernel", "weight"), np.transpose) if name != "bias" else name


RENAMES = {
    "function": by_function,
    "mapping": {
        **{f"{one}/kernel": (f"{one}/weight", np.transpose) for one in "ab"},
        "words": ("words", np.transpose),
    },
    "rules": [("kernel$", "weight", np.transpose), ("^words$", "words", np.transpose)],
    "composed": [
        ("/kernel$", "/weight", lambda array: array.reshape(3, 2)),
        ("/weight$", "/weight", lambda array: array.reshape(2, 3).T),
        ("words", "words", np.transpose),
    ],
}


@pytest.mark.parametrize("name", RENAMES)
def test_a_transform_changes_the_tensor(prefix: Path, name: str) -> None:
    names = ["a/weight", "b/weight"]
    targets: dict[str, Any] = {name: np.zeros((3, 2), np.float32) for name in names}
    targets |= {"bias": np.zeros(3, np.float32), "words": np.full((2, 1), b"", object)}
    report = ckptfmt.load_into(prefix, targets, rename=RENAMES[name])
    assert report.matched == (*names, "bias", "words")
    assert all(np.array_equal(targets[one], KERNEL.T) for one in names)
    assert targets["words"].tolist() == [[b"a"], [b"bc"]]

    tree = {one: {"weight": np.zeros((3, 2), np.float32)} for one in "ab"}
    tree |= {"bias": np.zeros(3, np.float32), "words": np.full((2, 1), b"", object)}
    assert ckptfmt.load_tree_into(prefix, tree, rename=RENAMES[name]).complete
    assert all(np.array_equal(tree[one]["weight"], KERNEL.T) for one in "ab")
    loaded = ckptfmt.load_tree(prefix, rename=RENAMES[name])
    assert all(np.array_equal(loaded[one]["weight"], KERNEL.T) for one in "ab")
    assert loaded["words"].tolist() == [[b"a"], [b"bc"]]


def test_values_of_an_object_graph(tmp_path: Path) -> None:
    ckptfmt.save_tree(tmp_path / "ck", {"a": {"kernel": KERNEL}, "step": 3})
    tree = {"a": {"weight": np.zeros((3, 2))}, "step": 0}
    rename = [("kernel$", "weight", np.transpose), ("step", "step", np.negative)]
    ckptfmt.Checkpoint(a=tree["a"], step=np.zeros((), np.int64)).read(
        tmp_path / "ck", rename=rename, cast=True
    ).assert_consumed()
    assert np.array_equal(tree["a"]["weight"], KERNEL.T)
    ckptfmt.load_tree_into(tmp_path / "ck", tree, rename=rename, cast=True)
    assert tree["step"] == -3


def test_the_result_is_what_is_cast_and_compared(prefix: Path) -> None:
    rename = [("kernel$", "weight", np.transpose)]
    for wrong in (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float16)):
        targets = {"a/weight": wrong}
        for into in (ckptfmt.load_into, into_tree):
            report = into(prefix, targets, rename=rename, strict=False)
            found = report.shape_mismatch or report.dtype_mismatch
            assert found[0].stored_name == "a/kernel"
            assert str(found[0].stored) == ("(3, 2)" if report.shape_mismatch else "float32")
            assert not wrong.any()
    targets = {"a/weight": np.zeros((3, 2), np.float16)}
    ckptfmt.load_into(prefix, targets, rename=rename, strict=False, cast=True)
    assert np.array_equal(targets["a/weight"], KERNEL.T)


def into_tree(prefix: Path, targets: dict[str, Any], **options: Any) -> ckptfmt.types.MatchReport:
    return ckptfmt.load_tree_into(prefix, {"a": {"weight": targets["a/weight"]}}, **options)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda array: array.reshape(7), "rename: the transform fails for float32.2, 3.: cannot"),
        (lambda array: array.tolist(), "rename: the result of the transform must be a numpy"),
        (
            lambda array: array[: int(array.sum())],
            r"rename: the transform gives \S+\[0, 3\] for zeros, and \S+\[2, 3\] for the tensor",
        ),
    ],
)
def test_a_transform_that_fails(prefix: Path, transform: Any, words: str) -> None:
    rename = {"a/kernel": ("x", transform)}
    targets = {"x": np.zeros((0, 3), np.float32)}
    for into in (ckptfmt.load_into, ckptfmt.load_tree_into):
        with pytest.raises(ckptfmt.InvalidError, match=words) as caught:
            into(prefix, targets, rename=rename, strict=False)
        assert caught.value.tensor == "a/kernel"
    assert not targets["x"].any()


def test_a_slice_cannot_be_transformed(tmp_path: Path) -> None:
    class Half:
        def serialize_to_tensors(self) -> Any:
            return {"VARIABLE_VALUE": {"2 3 0,1:-": np.zeros((1, 3), np.float32)}}

        def restore_from_tensors(self, tensors: Any) -> None:
            raise AssertionError

    ckptfmt.save_tree(tmp_path / "ck", {"a": KERNEL})
    rename = {"a": ("a", np.transpose)}
    with pytest.raises(ckptfmt.InvalidError, match="a transform takes whole tensors"):
        ckptfmt.Checkpoint(a=Half()).read(tmp_path / "ck", rename=rename)
