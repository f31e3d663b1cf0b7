# SPDX-License-Identifier: Apache-2.0
"""Mesh and Layout: which device holds which box."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.saving import distinct_boxes
from support.strategies import layouts, meshes, property_test, shapes

from ckptfmt._base.slices import parse_spec
from ckptfmt.errors import InvalidError
from ckptfmt.objects.layouts import layouts_by_path
from ckptfmt.saving.mesh import Layout, Mesh, blocks


def message_of(call: Any) -> str:
    with pytest.raises(InvalidError) as caught:
        call()
    return str(caught.value)


def test_mesh() -> None:
    mesh = Mesh([("x", 2), ("y", 3)])
    assert (mesh.size, mesh.shape, mesh.dim_names) == (6, (2, 3), ("x", "y"))
    assert mesh.devices[4] == "/job:mesh/task:4/device:CPU:0"
    assert [mesh.coordinates(device) for device in mesh.devices] == list(np.ndindex(2, 3))
    assert mesh == Mesh({"x": 2, "y": 3})
    assert hash(mesh) == hash(Mesh({"x": 2, "y": 3}))
    assert mesh != Mesh({"y": 2, "x": 3})
    assert mesh != Mesh({"x": 2, "y": 3}, list("abcdef"))
    assert mesh != "mesh"
    assert repr(mesh) == "<Mesh [x=2, y=3] of 6 devices>"
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert Mesh([]).size == 1


def test_local_devices() -> None:
    mesh = Mesh({"x": 5}, list("abcde"))
    assert [mesh.local_devices(rank, 2) for rank in range(2)] == [tuple("abc"), tuple("de")]
    assert [mesh.local_devices(rank, 7) for rank in range(7)] == [*map(tuple, "abcde"), (), ()]
    assert message_of(lambda: mesh.local_devices(2, 2)) == "rank 2 is not in [0, 2)"


@pytest.mark.parametrize(
    ("dims", "devices", "message"),
    [
        ([("x", 2), ("x", 1)], None, "two dimensions of the mesh have the name 'x'"),
        ([("", 2)], None, "'' cannot be the name of a mesh dimension"),
        ({"unsharded": 2}, None, "'unsharded' cannot be the name of a mesh dimension"),
        ({"x": 0}, None, "mesh dimension 'x' has size 0, which is below 1"),
        ({"x": 1.5}, None, "the size of mesh dimension 'x' must be an int, not float"),
        ({1: 2}, None, "the name of a mesh dimension must be a str, not int"),
        (["x"], None, "a mesh dimension must be a pair of a name and a size, not str"),
        (3, None, "dims must be a list of pairs of a name and a size, not int"),
        ({"x": 2}, ["a"], "a mesh of shape (2,) has 2 devices, not 1"),
        ({"x": 2}, ["a", "a"], "the device 'a' is in the mesh twice"),
        ({"x": 2}, ["a", 1], "the name of a device must be a str, not int"),
        ({"x": 2}, "ab", "devices must be a list of names of devices, not one"),
    ],
)
def test_meshes_that_are_none(dims: Any, devices: Any, message: str) -> None:
    assert message_of(lambda: Mesh(dims, devices)) == message


def test_layout() -> None:
    mesh = Mesh([("x", 2), ("y", 2)], list("abcd"))
    layout = Layout(["y", "unsharded", None], mesh)
    assert layout.sharding_specs == ("y", None, None)
    assert layout.num_shards == (2, 1, 1)
    assert layout.rank == 3
    assert not layout.is_replicated
    box = layout.slice_of((4, 6, 1), "d")
    assert box == parse_spec("4 6 1 2,2:-:-")
    assert list(distinct_boxes(layout, [4, 6, 1]).values()) == [["a", "c"], ["b", "d"]]
    assert repr(layout) == "<Layout (y, unsharded, unsharded) on [x=2, y=2]>"
    assert layout == Layout(("y", None, None), mesh)
    assert hash(layout) == hash(Layout(("y", None, None), mesh))
    assert layout != Layout(("x", None, None), mesh)
    assert layout != 3
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_replicated() -> None:
    mesh = Mesh({"x": 2, "y": 1})
    layout = Layout.replicated(mesh, 2)
    assert layout.sharding_specs == (None, None)
    assert layout.is_replicated
    assert Layout(["y"], mesh).is_replicated
    assert list(distinct_boxes(layout, (3, 4)).values()) == [list(mesh.devices)]
    assert message_of(lambda: Layout.replicated(mesh, -1)) == "rank -1 is negative"


def test_uneven_blocks() -> None:
    """As torch.chunk: blocks of ceil(n/k), the last ones shorter or empty."""
    mesh = Mesh({"x": 4}, list("abcd"))
    layout = Layout(["x"], mesh)

    def cut(size: int) -> list[tuple[int, int, int]]:
        found = [layout.slice_of((size,), device) for device in "abcd"]
        assert [box.shape[0] for box in found] == blocks(size, 4)
        return [(box.start[0], box.shape[0], box.lengths[0]) for box in found]

    assert cut(8) == [(0, 2, 2), (2, 2, 2), (4, 2, 2), (6, 2, 2)]
    assert cut(7) == [(0, 2, 2), (2, 2, 2), (4, 2, 2), (6, 1, 1)]
    assert cut(5) == [(0, 2, 2), (2, 2, 2), (4, 1, 1), (5, 0, 0)]
    assert cut(1) == [(0, 1, -1), (1, 0, 0), (1, 0, 0), (1, 0, 0)]
    assert cut(0) == [(0, 0, -1)] * 4
    assert list(distinct_boxes(layout, (1,)).values()) == [["a"], ["b", "c", "d"]]


@property_test(80, 5000, st.data(), meshes(), shapes())
def test_boxes_tile_the_tensor(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, len(shape)))
    count = np.zeros(shape, np.int64)
    devices: list[str] = []
    for box, holders in distinct_boxes(layout, shape).items():
        count[box.slices] += 1
        devices += holders
    assert (count == 1).all()
    assert sorted(devices) == sorted(mesh.devices)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["x", "x"], "the mesh dimension 'x' is used twice in one layout"),
        (["z"], "dimension 'z' is not in the mesh [x=2, y=2]"),
        ([1], "a sharding spec must be the name of a mesh dimension or None, not int"),
        ("xy", "sharding_specs must be a list of names of mesh dimensions or None, not one"),
        ([None] * 300, "a tensor has at most 254 dimensions"),
    ],
)
def test_layouts_that_are_none(specs: Any, message: str) -> None:
    assert message_of(lambda: Layout(specs, Mesh({"x": 2, "y": 2}))) == message


def test_wrong_uses() -> None:
    mesh = Mesh({"x": 2}, ["a", "b"])
    layout = Layout(["x"], mesh)
    odd: Any = "mesh"
    assert message_of(lambda: Layout(["x"], odd)) == "mesh must be a Mesh, not str"
    for call, message in (
        (lambda: layout.slice_of((1, 2), "a"), "a layout of rank 1 does not fit the shape (1, 2)"),
        (lambda: layout.slice_of((1,), "c"), "device 'c' is not in the mesh [x=2]"),
        (lambda: layout.slice_of((-1,), "a"), "global_shape (-1,) is not in range"),
        (
            lambda: layout.slice_of([1.5], "a"),
            "global_shape must be a sequence of integers, got [1.5]",
        ),
        (lambda: mesh.coordinates("c"), "device 'c' is not in the mesh [x=2]"),
    ):
        with pytest.raises(InvalidError, match=f"^{re.escape(message)}$"):
            call()


# ---- texts ---------------------------------------------------------------------------------------

TEXT = "sharding_specs:x,unsharded, mesh:|x=2,y=1|0,1|0,1|/task:0/device:CPU:0,/task:0/device:CPU:1"


def test_texts() -> None:
    layout = Layout.from_string(TEXT)
    assert (layout.sharding_specs, layout.mesh.shape) == (("x", None), (2, 1))
    assert layout.mesh.devices == ("/task:0/device:CPU:0", "/task:0/device:CPU:1")
    assert layout.to_string() == TEXT
    scalar = Layout([], layout.mesh)
    assert scalar.to_string().startswith("sharding_specs: mesh:|x=2,y=1|")
    assert Layout.from_string(scalar.to_string()) == scalar
    # Each process of TensorFlow has other local devices; with all devices the meshes are equal.
    texts = [f"name|x=2|2,3|{rank + 2}|{'ab'[rank]}|a,b|use_xla_spmd" for rank in range(2)]
    assert {Mesh.from_string(text) for text in texts} == {Mesh({"x": 2}, ["a", "b"])}
    assert Mesh.from_string("|x=2|0,1|1,0|b,a") == Mesh({"x": 2}, ["a", "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "the text of a layout must be 'sharding_specs:<names>, mesh:<mesh>', got"),
        ("parted:x, mesh:|x=1|0|0|a", "the text of a layout must be 'sharding_specs:"),
        ("sharding_specs:x, mesh:", "the text of a mesh must be 'name|x=2|0,1|0,1|<devices>'"),
        ("sharding_specs:x, mesh:|x=a|0|0|a", "the text of a mesh '|x=a|0|0|a' is malformed"),
        ("sharding_specs:x, mesh:|x=2|0,1|0|a", "names 1 of 2 devices: create the mesh with its"),
        ("sharding_specs:y, mesh:|x=1|0|0|a", "dimension 'y' is not in the mesh [x=1]"),
        ("sharding_specs:x, mesh:|x=2|0|0|a", "a mesh of shape (2,) has 2 devices, not 1"),
    ],
)
def test_malformed_texts(text: str, message: str) -> None:
    assert message in message_of(lambda: Layout.from_string(text))


def test_names_that_no_text_can_hold() -> None:
    for mesh in (Mesh({"x=": 1}), Mesh({"x": 1}, ["a,b"])):
        assert "has no text" in message_of(mesh.to_string)


def test_layouts_of_other_libraries() -> None:
    class Foreign:
        def __init__(self, **attributes: Any) -> None:
            vars(self).update(attributes)

    mesh = Mesh({"x": 2})
    layout = Layout(["x", None], mesh)
    for given in (
        layout,
        layout.to_string(),
        Foreign(sharding_specs=["x", "unsharded"], mesh=mesh),
        Foreign(sharding_specs=["x", "unsharded"], mesh=Foreign(to_string=mesh.to_string)),
        Foreign(sharding_specs=[], mesh=None, to_string=layout.to_string),
    ):
        assert Layout.of(given) == layout
        assert layouts_by_path({"w": given, "b": None}) == {"w": layout, "b": None}
        assert layouts_by_path({"a": [None, given]}) == {"a/0": None, "a/1": layout}
    for wrong in (3, Foreign(sharding_specs=["x"], mesh=3)):
        assert "or TensorFlow's, or its text" in message_of(lambda wrong=wrong: Layout.of(wrong))


@property_test(80, 5000, st.data(), meshes(), shapes())
def test_every_layout_is_the_one_of_its_text(
    data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]
) -> None:
    layout = data.draw(layouts(mesh, len(shape)))
    assert Layout.from_string(layout.to_string()) == layout
