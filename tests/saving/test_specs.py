# SPDX-License-Identifier: Apache-2.0
"""SaveSpec, DSaveSpec and SaveableObject."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt._base.slices import SliceSpec
from ckptfmt.errors import InvalidError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.specs import DSaveSpec, SaveableObject, SaveSpec, as_array

QINT8 = np.dtype([("qint8", np.int8)])


def refused(call: Any, message: str, tensor: str | None) -> None:
    with pytest.raises(InvalidError) as caught:
        call()
    assert caught.value.message == message
    assert caught.value.tensor == tensor


def test_an_array() -> None:
    array = np.zeros((2, 3), np.float32)
    spec = SaveSpec(array, "4 3 0,2:0,3", "w")
    assert spec.tensor is array
    assert (spec.name, spec.slice_spec, spec.device) == ("w", "4 3 0,2:0,3", "")
    assert spec.dtype == np.float32
    assert spec.box == SliceSpec((4, 3), (0, 0), (2, 3), (2, 3))
    assert repr(spec) == (
        "SaveSpec(name='w', slice_spec='4 3 0,2:0,3', dtype='float32', device='')"
    )


@pytest.mark.parametrize("spec", ["", " "])
def test_no_box_is_the_whole(spec: str) -> None:
    assert SaveSpec(1.0, spec, "w").box is None


def test_a_box_that_is_none() -> None:
    spec = SaveSpec(np.zeros(3), "3 2,2", "w")
    with pytest.raises(InvalidError) as caught:
        _ = spec.box
    assert caught.value.tensor == "w"
    assert caught.value.message.startswith("TXT-")


# ---- callables -----------------------------------------------------------------------------------


def test_a_function_is_called_once_and_late() -> None:
    calls = []

    def make() -> Any:
        calls.append(1)
        return np.arange(3)

    spec = SaveSpec(make, "", "w", dtype=np.int64, device="/cpu:0")
    assert not calls
    assert spec.tensor is spec.tensor
    assert calls == [1]
    assert spec.tensor.tolist() == [0, 1, 2]


def test_a_fresh_spec_asks_again() -> None:
    values = iter([1, 2, 3])
    spec = SaveSpec(lambda: next(values), "", "w", dtype="int64", device="")
    assert spec.tensor == 1
    fresh = spec.fresh()
    assert [fresh.tensor, fresh.tensor, spec.tensor, spec.fresh().tensor] == [2, 2, 1, 3]
    array = np.ones(2)
    assert SaveSpec(array, "", "w").fresh().tensor is array


def test_a_function_that_failed_is_called_again() -> None:
    answers: list[Any] = [RuntimeError("not yet"), 5]

    def make() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    spec = SaveSpec(make, "", "w", dtype="int64", device="")
    with pytest.raises(RuntimeError, match="not yet"):
        _ = spec.tensor
    assert spec.tensor == 5


@pytest.mark.parametrize("given", [{}, {"dtype": "float32"}, {"device": "/cpu:0"}])
def test_a_function_needs_dtype_and_device(given: dict[str, Any]) -> None:
    refused(
        lambda: SaveSpec(lambda: 1.0, "", "w", **given),
        "When passing a callable `tensor` to a SaveSpec, an explicit dtype and device must be "
        "provided.",
        "w",
    )


def test_nothing() -> None:
    assert SaveSpec(None, "", "w", dtype="half").tensor is None
    refused(lambda: SaveSpec(None, "", "w"), "a SaveSpec without a tensor needs a dtype", "w")


# ---- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "given", "dtype"),
    [
        (np.zeros(2, np.float16), None, np.dtype(np.float16)),
        (np.zeros(2, ">i4"), None, np.dtype(np.int32)),
        (np.zeros(2, ml_dtypes.bfloat16), None, np.dtype(ml_dtypes.bfloat16)),
        (np.zeros(2, ml_dtypes.int4), None, np.dtype(ml_dtypes.int4)),
        (np.zeros(2, np.int8), "qint8", QINT8),
        (np.zeros(2, QINT8), None, QINT8),
        (b"text", None, np.dtype(object)),
        (["a", "bc"], None, np.dtype(object)),
        (np.array([b"a"], "S1"), None, np.dtype(object)),
        (b"payload", "variant", "variant"),
        (3, None, np.dtype(np.int64)),
        ([[1.0, 2.0]], None, np.dtype(np.float64)),
        ([[1.0, 2.0]], "bfloat16", np.dtype(ml_dtypes.bfloat16)),
        (None, "float", np.dtype(np.float32)),
        (None, str, np.dtype(object)),
        (None, 1, np.dtype(np.float32)),
    ],
)
def test_dtypes(tensor: Any, given: Any, dtype: Any) -> None:
    spec = SaveSpec(tensor, "", "w", dtype=given)
    assert spec.dtype == dtype
    assert type(spec.dtype) is type(dtype)


def test_the_dtype_of_a_stored_tensor(tmp_path: Path) -> None:
    """It is known without reading it, also where numpy cannot tell it."""
    with ckptfmt.Writer(tmp_path / "ckpt") as writer:
        writer.add("v", b"payload", dtype="variant")
        writer.add("w", np.zeros(2, np.float32))
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert SaveSpec(reader["v"], "", "v").dtype == "variant"
        assert SaveSpec(reader["w"], "", "w").dtype == np.float32


def test_an_array_elsewhere_is_not_fetched_for_its_dtype() -> None:
    class Elsewhere:
        dtype = np.dtype(np.float32)
        shape = (2,)
        device = "/job:far/task:9/device:GPU:0"

        def __array__(self, *unused: Any) -> Any:
            raise AssertionError

    spec = SaveSpec(Elsewhere(), "", "w")
    assert spec.dtype == np.float32
    assert spec.device == "/job:far/task:9/device:GPU:0"


def test_a_framework_with_dtypes_of_its_own() -> None:
    class Theirs:
        dtype = SimpleNamespace(name="their float32")
        shape = (2,)

        def __array__(self, *unused: Any, **options: Any) -> Any:
            return np.zeros(2, np.float32)

    assert SaveSpec(Theirs(), "", "w").dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message", "tensor"),
    [
        ((np.zeros(2, "M8[s]"), "", "w"), "dtype datetime64[s] cannot be stored", "w"),
        ((1.0, "", "w", "no such"), "'no such' is not a dtype that a checkpoint can store", "w"),
        ((1.0, None, "w"), "a slice_spec must be a str, not NoneType", "w"),
        ((1.0, b"", "w"), "a slice_spec must be a str, not bytes", "w"),
        ((1.0, "", "w", None, 3), "a device must be a str or a DeviceSpec, not int", "w"),
        ((1.0, "", 7), "a tensor name must be str or bytes, not int", None),
    ],
)
def test_refused(arguments: tuple[Any, ...], message: str, tensor: str | None) -> None:
    refused(lambda: SaveSpec(*arguments), message, tensor)


def test_names_of_bytes() -> None:
    assert SaveSpec(1.0, "", b"a\xff").name == "a\udcff"  # type: ignore[arg-type]


def test_as_array() -> None:
    array = np.zeros((2, 3), np.float32)
    assert as_array("w", array)[0] is array
    assert as_array("w", array, np.dtype(np.float32))[0] is array
    found, dtype = as_array("w", [1, 2], "float32")
    assert found.dtype == dtype == np.float32
    refused(
        lambda: as_array("w", array, np.dtype(np.float64)),
        "the array must have dtype float64, not float32",
        "w",
    )


# ---- DSaveSpec, SaveableObject -------------------------------------------------------------------


MESH = Mesh([("x", 2)])
ROWS = Layout(["x"], MESH)


def test_dsavespec() -> None:
    spec = DSaveSpec(np.zeros(2), "4 0,2", "w", [4], ROWS, device="/cpu:0")
    assert isinstance(spec, SaveSpec)
    assert spec.global_shape == (4,)
    assert spec.layout is ROWS
    assert (spec.device, spec.slice_spec, spec.is_empty) == ("/cpu:0", "4 0,2", False)
    assert spec.tensor.shape == (2,)


@pytest.mark.parametrize(
    ("global_shape", "axes", "device", "text", "shape"),
    [
        ((5,), ["x"], 0, "5 0,3", (3,)),
        ((5,), ["x"], 1, "5 3,2", (2,)),
        ((3, 4), [None, "x"], 1, "3 4 -:2,2", (3, 2)),
        ((3, 4), [None, None], 1, "", (3, 4)),
        ((1,), ["x"], 0, "", (1,)),
        ((1,), ["x"], 1, "1 1,0", (0,)),
        ((0, 4), [None, "x"], 0, "0 4 -:0,2", (0, 2)),
        ((), [], 0, "", ()),
        ((4,), ["x"], None, "", (4,)),
    ],
)
def test_the_slice_of_a_layout(
    global_shape: Any, axes: Any, device: int | None, text: str, shape: Any
) -> None:
    name = "" if device is None else MESH.devices[device]
    layout = Layout(axes, MESH)
    spec = DSaveSpec(np.zeros(shape), "", "w", global_shape, layout, device=name)
    assert (spec.slice_spec, spec.block_shape) == (text, shape)
    assert spec.is_empty == text.endswith(",0")
    assert spec.tensor.shape == shape
    wrong = DSaveSpec(np.zeros((*shape, 1)), "", "w", global_shape, layout, device=name)
    with pytest.raises(InvalidError) as caught:
        _ = wrong.tensor
    assert caught.value.tensor == "w"
    assert caught.value.message.startswith(f"a tensor of shape {(*shape, 1)} on device '{name}' is")
    late = DSaveSpec(lambda: [9.0] * 9, "", "w", global_shape, layout, "float64", name)
    with pytest.raises(InvalidError) as caught:
        _ = late.tensor
    assert caught.value.message.startswith("a tensor of shape (9,) on")


def test_devices_of_a_mesh_in_another_spelling() -> None:
    mesh = Mesh([("x", 2)], ["/job:a/task:0/device:CPU:0", "/job:a/task:1/device:CPU:0"])
    spec = DSaveSpec(1.0, "", "w", (4,), Layout(["x"], mesh), device="/job:a/task:1/cpu:0")
    assert spec.slice_spec == "4 2,2"


@pytest.mark.parametrize(
    ("slice_spec", "global_shape", "layout", "words"),
    [
        ("", "ab", ROWS, "global_shape must be a sequence of integers, got 'ab'"),
        ("", (4,), 3, "layout must be a Layout, or TensorFlow's, or its text, not int"),
        ("", (4, 2), ROWS, "a layout of rank 1 does not fit the shape (4, 2)"),
        ("", (-4,), ROWS, "global_shape (-4,) is not in range"),
        ("6 0,2", (4,), ROWS, "is of a tensor of another shape than global_shape (4,)"),
        ("4 3,2", (4,), ROWS, "TXT-"),
    ],
)
def test_dsavespec_refuses(slice_spec: str, global_shape: Any, layout: Any, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DSaveSpec(np.zeros(2), slice_spec, "w", global_shape, layout)
    assert caught.value.tensor == "w" and words in caught.value.message


def test_saveable_objects() -> None:
    specs = [SaveSpec(1.0, "", "a", device="/gpu:1"), SaveSpec(2, "", "b", device="/device:GPU:1")]
    saveable = SaveableObject("op", specs, "both")
    assert (saveable.op, saveable.specs, saveable.name) == ("op", specs, "both")
    assert saveable.device in ("/gpu:1", "/device:GPU:1")
    refused(
        lambda: saveable.restore([np.ones(())], None),
        "Calling an abstract method. SaveableObject must override restore",
        "both",
    )


class DeviceSpec:
    """As `tf.DeviceSpec`."""

    device_type = "GPU"

    def to_string(self) -> str:
        return "/task:1/device:GPU:3"


def test_device_specs_are_taken() -> None:
    assert SaveSpec(1.0, "", "a", device=DeviceSpec()).device == "/task:1/device:GPU:3"
    assert SaveSpec(lambda: 1.0, "", "a", "float32", DeviceSpec()).device.endswith("GPU:3")
    # Text that DeviceSpec cannot parse is the name of a custom device.
    assert SaveSpec(1.0, "", "a", device="nonsense").device == "nonsense"


def test_dsavespec_takes_texts_of_layouts() -> None:
    layout = Layout(["x"], Mesh({"x": 2}))
    for given in (layout, layout.to_string()):
        spec = DSaveSpec(np.zeros(2), "", "w", (4,), given, device=layout.mesh.devices[1])
        assert (spec.layout, spec.slice_spec) == (layout, "4 2,2")


def test_saveable_objects_are_on_one_device() -> None:
    specs = [SaveSpec(1.0, "", "a", device="/cpu:0"), SaveSpec(2, "", "b", device="/gpu:0")]
    refused(
        lambda: SaveableObject(None, specs, "both").device,
        "the specs of a SaveableObject are on one device, not on "
        "['/device:CPU:0', '/device:GPU:0']",
        "both",
    )
    refused(
        lambda: SaveableObject(None, [], "none").device,
        "a SaveableObject without specs is on no device",
        "none",
    )


def test_saveable_objects_refuse() -> None:
    refused(
        lambda: SaveableObject(None, [1.0], "s"),  # type: ignore[list-item]
        "each of specs must be a SaveSpec, not float",
        "s",
    )
    refused(
        lambda: SaveableObject(None, [], 3),  # type: ignore[arg-type]
        "a SaveableObject's name must be a str, not int",
        None,
    )
