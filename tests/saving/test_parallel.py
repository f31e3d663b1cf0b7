# SPDX-License-Identifier: Apache-2.0
"""ParallelVariable: where its components are saved, and restored from."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.parallel import ParallelVariable, independent_buffers
from ckptfmt.saving.saver import Saver

DEFAULT = "/job:parallel/replica:0/task:{}/device:CPU:0"


def variable(count: int, first: float = 0.0, **more: Any) -> ParallelVariable:
    return ParallelVariable([np.full((2, 3), first + i, np.float32) for i in range(count)], **more)


def values(parallel: ParallelVariable) -> list[float]:
    for component in parallel.components:
        assert (component == component[0, 0]).all()
    return [float(component[0, 0]) for component in parallel.components]


def test_serialize() -> None:
    three = variable(3)
    specs = three.serialize("model/w")
    assert list(specs) == [
        "model/w/.ATTRIBUTES/VARIABLE_VALUE",
        "model/w/.ATTRIBUTES/parallel_component_1",
        "model/w/.ATTRIBUTES/parallel_component_2",
    ]
    for index, (key, spec) in enumerate(specs.items()):
        assert (spec.name, spec.slice_spec, spec.dtype) == (key, "", np.dtype(np.float32))
        assert spec.device == DEFAULT.format(index)
        assert spec.tensor is three.components[index]


def test_devices() -> None:
    assert variable(2).devices == (DEFAULT.format(0), DEFAULT.format(1))
    assert variable(2, devices=["/gpu:0", "/gpu:1"]).devices == ("/gpu:0", "/gpu:1")
    with independent_buffers(["a", "b"]) as names:
        assert names == ("a", "b")
        assert variable(2).devices == ("a", "b")
        assert variable(2, devices=["c", "d"]).devices == ("c", "d")
        with independent_buffers() as none:
            assert none is None
            assert variable(1).devices == (DEFAULT.format(0),)
        with pytest.raises(InvalidError) as caught:
            variable(3)
        assert caught.value.message == "3 components have 2 devices"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(variable(1).devices))
        thread.start()
        thread.join()
        assert seen == [(DEFAULT.format(0),)]
    assert variable(1).devices == (DEFAULT.format(0),)


SHARED = np.zeros(8)


def read_only() -> np.ndarray:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("components", "devices", "words"),
    [
        (np.zeros((2, 3)), None, "must be a list of numpy arrays, not ndarray"),
        (3, None, "must be a list of numpy arrays, not int"),
        ([], None, "at least one component"),
        ([[1.0]], None, "component 0 of a parallel variable must be a numpy array, not list"),
        ([read_only()], None, "it is read-only"),
        ([np.zeros(2), np.zeros(3)], None, "component 1 of a parallel variable is float64[3]"),
        ([np.zeros(2), np.zeros(2, np.int8)], None, "component 1 of a parallel variable is int8"),
        ([np.array([b"abc"])], None, "dtype |S3, into which strings of other lengths do not fit"),
        ([np.array(["abc"])], None, "dtype <U3, into which strings of other lengths do not fit"),
        ([SHARED[:4], np.zeros(4), SHARED[3:7]], None, "components 0 and 2"),
        ([SHARED] * 2, None, "components 0 and 1 of a parallel variable share memory"),
        ([np.zeros(2)], [], "devices are empty"),
        ([np.zeros(2)], "/cpu:0", "devices must be a list of device names, not str"),
        ([np.zeros(2)], [0], "a device must be a str, not int"),
        ([np.zeros(2)], ["a", "b"], "1 components have 2 devices"),
    ],
)
def test_refused(components: Any, devices: Any, words: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(words)):
        ParallelVariable(components, devices)


def saved(tmp_path: Path, count: int) -> str:
    parallel = variable(count, 10.0)
    return Saver({parallel: parallel.serialize("w")}).save(tmp_path / "ckpt")


def test_each_component_has_its_own_data_file(tmp_path: Path) -> None:
    prefix = saved(tmp_path, 3)
    with ckptfmt.open(prefix) as reader:
        assert reader.header.num_shards == 3
        assert [reader[key].shard for key in variable(3).keys("w")] == [0, 1, 2]
        # An ordinary reader knows the first name only.
        assert (reader["w/.ATTRIBUTES/VARIABLE_VALUE"].read() == 10).all()


@pytest.mark.parametrize(
    ("stored", "wanted", "expected"),
    [
        (3, 3, [10, 11, 12]),
        (3, 1, [10]),
        (4, 2, [10, 11]),
        (2, 4, [10, 11, 10, 10]),
        (1, 3, [10, 10, 10]),
    ],
)
@pytest.mark.parametrize("way", ["reader", "mapping", "saver"])
def test_restore(tmp_path: Path, stored: int, wanted: int, expected: list[float], way: str) -> None:
    prefix = saved(tmp_path, stored)
    parallel = variable(wanted)
    before = parallel.components
    if way == "reader":
        with ckptfmt.open(prefix) as reader:
            parallel.restore(reader, "w")
    elif way == "mapping":
        parallel.restore(ckptfmt.load(prefix))
    else:
        assert Saver({parallel: parallel.serialize("w")}).restore(prefix) == {}
    assert values(parallel) == expected
    assert all(new is old for new, old in zip(parallel.components, before, strict=True))


def test_restore_of_an_ordinary_variable_among_others(tmp_path: Path) -> None:
    arrays = {
        f"{path}/.ATTRIBUTES/VARIABLE_VALUE": np.full((2, 3), i, np.float32)
        for i, path in enumerate(("v", "w"))
    }
    ckptfmt.save(tmp_path / "ckpt", arrays)
    parallel = variable(2)
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        parallel.restore(reader, "w")
        assert values(parallel) == [1, 1]
        with pytest.raises(InvalidError) as caught:
            parallel.restore(reader)
    assert caught.value.message == (
        "restore needs a path: 2 of the names given end with '/.ATTRIBUTES/VARIABLE_VALUE'"
    )


def test_strings_and_views() -> None:
    text = ParallelVariable([np.array([b"a", b"b"], object), np.array([b"c", b"d"], object)])
    text.restore({"t/.ATTRIBUTES/VARIABLE_VALUE": np.array([b"xx", b""], object)}, "t")
    assert [component.tolist() for component in text.components] == [[b"xx", b""]] * 2
    whole = np.zeros((2, 4), np.int32)
    views = ParallelVariable([whole[0, ::2], whole[1, ::2]])
    views.restore(
        {
            "v/.ATTRIBUTES/VARIABLE_VALUE": np.array([1, 2], np.int32),
            "v/.ATTRIBUTES/parallel_component_1": np.array([3, 4], np.int32),
        },
        "v",
    )
    assert whole.tolist() == [[1, 0, 2, 0], [3, 0, 4, 0]]


def test_components_between_each_other() -> None:
    whole = np.zeros((3, 2, 2))
    assert len(ParallelVariable([whole[:, 0], whole[:, 1]]).components) == 2
    assert len(ParallelVariable([whole[:0], whole[:0]]).components) == 2


@pytest.mark.parametrize("dtypes", [(">f4", ">f4"), ("<f4", ">f4")])
@pytest.mark.parametrize("way", ["reader", "saver"])
def test_the_other_byte_order(tmp_path: Path, dtypes: tuple[str, str], way: str) -> None:
    arrays = [np.arange(6, dtype=kind).reshape(2, 3) + i for i, kind in enumerate(dtypes)]
    parallel = ParallelVariable(arrays)
    saver = Saver({parallel: parallel.serialize("w")})
    prefix = saver.save(tmp_path / "ckpt", CheckpointOptions(durability="none"))
    expected = [array.tolist() for array in arrays]
    for array in arrays:
        array[:] = 9
    if way == "saver":
        saver.restore(prefix)
    else:
        with ckptfmt.open(prefix) as reader:
            parallel.restore(reader, "w")
    assert [array.tolist() for array in parallel.components] == expected


KEYS = variable(4).keys("w")
GOOD = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("source", "error", "tensor"),
    [
        ({}, TensorNotFoundError, KEYS[0]),
        ({KEYS[1]: GOOD}, TensorNotFoundError, KEYS[0]),
        ({KEYS[0]: GOOD, KEYS[3]: GOOD}, TensorNotFoundError, KEYS[1]),
        ({KEYS[0]: GOOD, KEYS[1]: GOOD[0]}, InvalidError, KEYS[1]),
        ({KEYS[0]: GOOD, KEYS[1]: GOOD.astype(np.int32)}, InvalidError, KEYS[1]),
        ({KEYS[0]: GOOD, KEYS[1]: {"2 3 0,2:0,3": GOOD}}, InvalidError, KEYS[1]),
    ],
)
def test_nothing_is_written_where_something_is_wrong(
    source: dict[str, Any], error: type[Exception], tensor: str
) -> None:
    parallel = variable(4)
    with pytest.raises(error) as caught:
        parallel.restore(source, "w")
    assert caught.value.tensor == tensor
    assert values(parallel) == [0, 1, 2, 3]


def test_a_stored_component_of_another_shape(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ckpt", {KEYS[0]: GOOD, KEYS[1]: GOOD[:1]})
    parallel = variable(2)
    with ckptfmt.open(tmp_path / "ckpt") as reader, pytest.raises(InvalidError) as caught:
        parallel.restore(reader, "w")
    assert caught.value.message == "cannot read shape (1, 3) into an array of shape (2, 3)"
    assert caught.value.tensor == KEYS[1]
    assert values(parallel) == [0, 1]


def test_path_must_be_text() -> None:
    with pytest.raises(InvalidError) as caught:
        variable(1).serialize(b"w")
    assert caught.value.message == "path must be a str, not bytes"


# ---- as an array ---------------------------------------------------------------------------------


def test_it_is_an_array_of_its_first_component() -> None:
    two = variable(2, 5.0)
    assert (two.shape, two.dtype) == ((2, 3), np.dtype(np.float32))
    assert np.asarray(two) is two.components[0]
    assert np.array(two) is not two.components[0]
    assert (np.asarray(two, np.float64) == 5).all()


def test_assign() -> None:
    two = variable(2, 5.0)
    two.assign(np.full((2, 3), 7))
    assert values(two) == [7, 7]
    two.assign(variable(2, 1.0))
    assert values(two) == [1, 2]
    for wrong, message in (
        (np.zeros(2), r"float64\[2\] does not fit a component of float32\[2, 3\]"),
        (np.full((2, 3), "x"), "does not fit a component"),
        (variable(3), "3 components do not fit 2"),
        (variable(1), "1 components do not fit 2"),
    ):
        with pytest.raises(InvalidError, match=message):
            two.assign(wrong)
    assert values(two) == [1, 2]


def test_an_array_inside_independent_buffers_has_a_component_for_each_device() -> None:
    source = np.arange(3.0)
    with independent_buffers(["/gpu:0", "/gpu:1"]):
        both = ParallelVariable(source)
    assert both.devices == ("/gpu:0", "/gpu:1")
    both.components[0][:] = 9
    assert [one.tolist() for one in both.components] == [[9, 9, 9], [0, 1, 2]]
    assert source.tolist() == [0, 1, 2]


def test_the_first_component_counts_as_all(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(w=variable(3, 5.0)).write(tmp_path / "ck")
    array = np.zeros((2, 3), np.float32)
    status = ckptfmt.Checkpoint(w=array).read(path)
    status.assert_consumed()
    del status  # without a warning
    assert (array == 5).all()


def test_assign_views_of_the_components() -> None:
    variable = ParallelVariable([np.arange(3), np.arange(3)])
    variable.assign(variable.components[0][::-1])
    for component in variable.components:
        np.testing.assert_array_equal(component, [2, 1, 0])
    first, second = np.zeros(2), np.ones(2)
    variable = ParallelVariable([first, second])
    variable.assign(ParallelVariable([second, first]))
    np.testing.assert_array_equal(variable.components, [[1, 1], [0, 0]])
