# SPDX-License-Identifier: Apache-2.0
"""Saving by name: what becomes which saveables, and what is refused, in TensorFlow's words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptfmt.errors import InvalidError
from ckptfmt.saving.saveables import ArraySaveable, op_list_to_dict, validate_and_slice_inputs
from ckptfmt.saving.specs import SaveableObject, SaveSpec
from ckptfmt.slices import SaveSliceInfo


def refused(call: Any, message: str, tensor: str | None = None) -> None:
    with pytest.raises(InvalidError) as caught:
        call()
    assert caught.value.message == message
    assert caught.value.tensor == tensor


def rows(full_name: str, first: int, count: int) -> SaveSliceInfo:
    return SaveSliceInfo(full_name, [4, 2], [first, 0], [count, 2])


class Variable:
    """Has a name and may be a slice, as TensorFlow's."""

    def __init__(self, name: str, shape: tuple[int, ...], info: SaveSliceInfo | None = None):
        self.name = name
        self.shape = shape
        self.dtype = np.dtype(np.float32)
        self.value = np.zeros(shape, np.float32)
        self.save_slice_info = info

    def assign(self, value: Any) -> None:
        self.value = np.array(value)


def described(saveables: list[SaveableObject]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(s.name, [(spec.name, spec.slice_spec) for spec in s.specs]) for s in saveables]


def test_sorted_by_name() -> None:
    arrays = {name: np.zeros(2) for name in ("b", "a/x", "a", "ä", "B")}
    found = validate_and_slice_inputs(arrays)
    assert described(found) == [(name, [(name, "")]) for name in ("B", "a", "a/x", "b", "ä")]
    for saveable in found:
        assert saveable.op is arrays[saveable.name]
        assert saveable.specs[0].tensor is arrays[saveable.name]


def test_parts() -> None:
    first, second = np.zeros((1, 2)), np.zeros((3, 2))
    pieces = [(first, rows("w", 0, 1)), (second, rows("w", 1, 3))]
    found = validate_and_slice_inputs({"w": pieces, "v": [Variable("p", (4, 2), rows("v", 0, 4))]})
    assert described(found) == [
        ("v", [("v", "4 2 0,4:0,2")]),
        ("w", [("w", "4 2 0,1:0,2")]),
        ("w", [("w", "4 2 1,3:0,2")]),
    ]
    assert [saveable.op for saveable in found[1:]] == [first, second]
    # The name in the mapping counts, not that of the slices.
    assert described(validate_and_slice_inputs({"x": pieces[0]})) == [("x", [("x", "4 2 0,1:0,2")])]


def test_a_scalar_part_has_no_spec() -> None:
    part = (np.float32(1), SaveSliceInfo("s", [], [], []))
    assert described(validate_and_slice_inputs({"s": [part]})) == [("s", [("s", "")])]


def test_a_slice_by_itself_is_a_whole_tensor() -> None:
    """As for TensorFlow: in a mapping only lists are slices."""
    lone = Variable("p", (1, 2), rows("w", 0, 1))
    assert described(validate_and_slice_inputs({"w": lone})) == [("w", [("w", "")])]


def test_saveable_objects_pass() -> None:
    own = SaveableObject(object(), [SaveSpec(1.0, "", "a-x"), SaveSpec(2.0, "", "a-y")], "a")
    in_list = SaveableObject(None, [SaveSpec(np.zeros((1, 2)), "4 2 0,1:0,2", "w")], "w")
    found = validate_and_slice_inputs({"z": own, "w": [in_list]})
    assert found == [in_list, own]


def test_saveables_without_an_op_are_not_the_same() -> None:
    two = [SaveableObject(None, [SaveSpec(1.0, "", name)], name) for name in "ab"]
    assert validate_and_slice_inputs({"a": two[0], "b": two[1]}) == two


def test_equal_arrays_are_not_the_same() -> None:
    found = validate_and_slice_inputs({"a": np.zeros(2), "b": np.zeros(2)})
    assert [saveable.name for saveable in found] == ["a", "b"]


ARRAY = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("given", "message", "tensor"),
    [
        (
            {"a": ARRAY, "b": ARRAY},
            "The same saveable will be restored with two names: b",
            "b",
        ),
        (
            {"a": [(ARRAY, rows("a", 0, 4)), (ARRAY, rows("a", 0, 4))]},
            "The same saveable will be restored with two names: a",
            "a",
        ),
        (
            {"a": ARRAY, "b": SaveableObject(None, [SaveSpec(1.0, "", "a")], "b")},
            "At least two variables have the same name: a",
            "a",
        ),
        (
            {"a": [(np.zeros((2, 2)), rows("a", 0, 2)), (np.zeros((2, 2)), rows("a", 0, 2))]},
            "At least two variables have the same name: a",
            "a",
        ),
        (
            {
                "a": [(np.zeros((2, 2)), rows("a", 0, 2))],
                "b": SaveableObject(None, [SaveSpec(ARRAY, "", "a")], "b"),
            },
            "Mixing slices and non-slices with the same name: a",
            "a",
        ),
        (
            {"a": [(np.zeros((2, 2)), rows("a", 0, 2)), (np.zeros((2, 2)), rows("b", 2, 2))]},
            "Slices must all be from the same tensor: a != b",
            "a",
        ),
        ({"a": [ARRAY]}, "Slices must all be slices: ndarray", "a"),
        ({"a": [Variable("p", (2,))]}, "Slices must all be slices: Variable", "a"),
        ({"a": ["text"]}, "Slices must all be Variables: str", "a"),
        (
            {3: ARRAY},
            "names_to_saveables must be a dict mapping string names to trackable operations. Name "
            "is not a string: 3",
            None,
        ),
        (
            {"a": "text"},
            "names_to_saveables must be a dict mapping string names to Tensors/Variables. Not a "
            "variable: str",
            "a",
        ),
        (
            "abc",
            "Variables to save should be passed in a dict or a list. Got str",
            None,
        ),
    ],
)
def test_refused(given: Any, message: str, tensor: str | None) -> None:
    refused(lambda: validate_and_slice_inputs(given), message, tensor)


# ---- lists ---------------------------------------------------------------------------------------


def test_lists_of_named_things() -> None:
    whole = Variable("v", (2,))
    first, second = (
        Variable("w_0", (1, 2), rows("w", 0, 1)),
        Variable("w_1", (3, 2), rows("w", 1, 3)),
    )
    own = SaveableObject(None, [SaveSpec(1.0, "", "o")], "o")
    pair = (ARRAY, rows("u", 0, 4))
    given = [whole, [second, [own, first]], pair]
    found = op_list_to_dict(given)
    assert list(found) == ["o", "u", "v", "w"]
    assert found["v"] is whole
    assert found["o"] is own
    assert found["w"] == [second, first]
    assert described(validate_and_slice_inputs(given)) == [
        ("o", [("o", "")]),
        ("u", [("u", "4 2 0,4:0,2")]),
        ("v", [("v", "")]),
        ("w", [("w", "4 2 1,3:0,2")]),
        ("w", [("w", "4 2 0,1:0,2")]),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_lists_with_mixed_slices(order: int) -> None:
    given = [Variable("w", (4, 2)), Variable("w_0", (1, 2), rows("w", 0, 1))][::order]
    refused(
        lambda: op_list_to_dict(given), "Mixing slices and non-slices with the same name: w", "w"
    )


def test_lists_with_two_of_one_name() -> None:
    given = [Variable("w", (4, 2)), Variable("w", (4, 2))]
    refused(lambda: op_list_to_dict(given), "At least two variables have the same name: w", "w")


def test_lists_with_things_without_names() -> None:
    refused(lambda: op_list_to_dict([ARRAY]), "Variable to save has no name: a ndarray")


# ---- restoring -----------------------------------------------------------------------------------


def test_restores_in_place() -> None:
    array = np.zeros((2, 3), np.float32)
    view = array[:, :]
    saveable = ArraySaveable(array, "", "w")
    fresh = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert saveable.restore([fresh], None) is array
    assert view.tolist() == fresh.tolist()
    saveable.restore([fresh.reshape(-1)[::-1]], [(2, 3)])
    assert view.tolist() == fresh.reshape(-1)[::-1].reshape(2, 3).tolist()


def test_restores_strings_and_other_byte_orders() -> None:
    strings = np.array([b"", b""], object)
    ArraySaveable(strings, "", "s").restore([np.array([b"a\0", b"bc"], object)], None)
    assert strings.tolist() == [b"a\0", b"bc"]
    swapped = np.zeros(2, ">i4")
    ArraySaveable(swapped, "", "n").restore([np.array([1, -2], np.int32)], None)
    assert swapped.tolist() == [1, -2]


def test_restores_variables() -> None:
    variable = Variable("v", (2,))
    assert ArraySaveable(variable, "", "v").restore([np.ones(2)], None) is variable
    assert variable.value.tolist() == [1, 1]


def frozen() -> Any:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("target", "tensors", "shapes", "message"),
    [
        (
            np.zeros((2, 3)),
            [np.zeros((3, 2))],
            None,
            "Received incompatible tensor with shape (3, 2) when attempting to restore variable "
            "with shape (2, 3) and name w.",
        ),
        (
            np.zeros((2, 3)),
            [np.zeros((2, 3))],
            [(6,)],
            "Received incompatible tensor with shape (6,) when attempting to restore variable "
            "with shape (2, 3) and name w.",
        ),
        (np.zeros(2), [np.zeros(2)], [(3,)], "variable w has 2 elements, not shape (3,)"),
        (np.zeros(2), [], None, "variable w takes one tensor, not 0"),
        (
            np.zeros(2, np.float32),
            [np.zeros(2)],
            None,
            "variable w has dtype float32, and float64 was read",
        ),
        (
            np.array([b"ab"], "S2"),
            [np.array([b"abc"], object)],
            None,
            "variable w has dtype |S2, and object was read",
        ),
        (frozen(), [np.zeros(2)], None, "variable w is a read-only array"),
        (
            SimpleNamespace(shape=(2,), dtype=np.dtype(np.float64)),
            [np.zeros(2)],
            None,
            "variable w is a SimpleNamespace, which cannot be changed in place",
        ),
    ],
)
def test_does_not_restore(target: Any, tensors: Any, shapes: Any, message: str) -> None:
    before = np.array(target) if isinstance(target, np.ndarray) else None
    saveable = ArraySaveable(target, "", "w")
    refused(lambda: saveable.restore(tensors, shapes), message, "w")
    if before is not None:
        assert target.tolist() == before.tolist()
