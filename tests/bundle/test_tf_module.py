# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.tf`, without TensorFlow: its functions' answers as TensorFlow's documentation and its
tests state them. The comparison with the real one is in `tests/interop`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interop.values import KINDS
from support import index

import ckptfmt
from ckptfmt import tf

FOUND_NONE = "Couldn't find 'checkpoint' file or checkpoints in given directory {}"


@pytest.fixture
def ck(tmp_path: Path) -> str:
    """In the order of saving, which is not that of the names."""
    tensors: dict[str, Any] = {
        "b/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.int64(7),
        "text": np.array([b"x", b"\xff\0"], object),
        "word": np.array(b"hello", object),
        "b/empty": np.zeros((0, 4), np.uint8),
        "Z": np.array([1, -2], np.int8).view([("qint8", "i1")]),
    }
    prefix = tmp_path / "d" / "ck-1"
    ckptfmt.save_v2(prefix, list(tensors), [""] * len(tensors), list(tensors.values()))
    return str(prefix)


LISTED = [
    ("Z", [2]),
    ("a", []),
    ("b/empty", [0, 4]),
    ("b/kernel", [2, 3]),
    ("text", [2]),
    ("word", []),
]


def point_to(ck: str, named: str) -> str:
    """Writes the state file beside a checkpoint; its directory."""
    directory = os.path.dirname(ck)
    Path(directory, "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
    return directory


def test_it_needs_no_tensorflow(ck: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"  # importing it fails
        "import ckptfmt.tf\n"
        "print(ckptfmt.tf.load_variable(sys.argv[1], 'a'))\n"
    )
    command = [sys.executable, "-c", code, ck]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "7\n"


# ---- list_variables ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_list_variables(ck: str, form: Callable[[str], Any]) -> None:
    found = tf.list_variables(form(ck))
    assert found == LISTED
    assert all(type(shape) is list for _, shape in found)
    assert all(type(size) is int for _, shape in found for size in shape)


def test_partitioned_tensors_are_listed_once(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(4, 3)
    specs = ["4 3 0,2:-", "4 3 2,2:-"]
    ckptfmt.save_v2(tmp_path / "ck", ["w", "w"], specs, [values[:2], values[2:]])
    assert tf.list_variables(tmp_path / "ck") == [("w", [4, 3])]
    assert tf.load_variable(tmp_path / "ck", "w").tolist() == values.tolist()


def test_debug_string(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck", level="v2") as writer:
        writer.add("\udcff", np.ones((2, 3), np.float32))
        writer.add("s", [b"a", b"b"])
        writer.add("n", np.int64(1))
        writer.add_slice("p", np.ones(1), [2], [1])
    assert tf.load_checkpoint(tmp_path / "ck").debug_string() == (
        b"n (DT_INT64) []\ns (DT_STRING) [2]\n\xff (DT_FLOAT) [2,3]\n"
    )


def test_reserved_tensors_are_listed_as_tensorflow_does(tmp_path: Path) -> None:
    """To TensorFlow they are tensors as others are."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(3)}, metadata={"k": "v"})
    assert [name for name, _ in tf.list_variables(tmp_path / "ck")] == ["_CKPTFMT_METADATA", "x"]
    assert tf.load_checkpoint(tmp_path / "ck").has_tensor("_CKPTFMT_METADATA")


# ---- load_variable -------------------------------------------------------------------------------


def test_load_variable(ck: str) -> None:
    kernel = tf.load_variable(ck, "b/kernel")
    assert kernel.dtype == np.float32
    assert kernel.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    empty = tf.load_variable(ck, "b/empty")
    assert (empty.shape, empty.dtype) == ((0, 4), np.uint8)
    assert tf.load_variable(ck, "text").tolist() == [b"x", b"\xff\0"]
    # Scalars are no arrays, and quantized types plain integers.
    number, word = tf.load_variable(ck, "a"), tf.load_variable(ck, "word")
    assert (type(number), number, type(word), word) == (np.int64, 7, bytes, b"hello")
    quantized = tf.load_variable(ck, "Z")
    assert (quantized.dtype, quantized.tolist()) == (np.int8, [1, -2])


@pytest.mark.parametrize("name", ["a:0", "a"])
def test_a_trailing_zero_is_dropped(ck: str, name: str) -> None:
    assert tf.load_variable(ck, name) == 7


@pytest.mark.parametrize("name", ["a:1", "a:0:0", "A", "", "b", "a:0 "])
def test_load_variable_of_no_such_name(ck: str, name: str) -> None:
    with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
        tf.load_variable(ck, name)
    assert caught.value.tensor == name.removesuffix(":0")
    assert caught.value.path == ck
    assert caught.value.message.startswith("not found in checkpoint")


# ---- load_checkpoint -----------------------------------------------------------------------------


def test_the_reader(ck: str) -> None:
    reader = tf.load_checkpoint(ck)
    assert type(reader) is tf.CheckpointReader
    assert reader.get_variable_to_shape_map() == dict(LISTED)
    assert reader.get_variable_to_dtype_map() == {
        "Z": np.dtype([("qint8", "i1")]),
        "a": np.dtype(np.int64),
        "b/empty": np.dtype(np.uint8),
        "b/kernel": np.dtype(np.float32),
        "text": np.dtype(object),
        "word": np.dtype(object),
    }
    assert [reader.has_tensor(name) for name in ("a", b"a", "a:0", "b", "")] == [
        *(True, True, False, False, False)
    ]
    assert reader.get_tensor("a") == reader.get_tensor(b"a") == 7
    for name in ("a:0", "none", ""):
        with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
            reader.get_tensor(name)
        assert caught.value.tensor == name


def test_dtypes_of_every_kind(tmp_path: Path) -> None:
    names = {code: f"t{code:02d}" for code in KINDS}
    arrays = [np.zeros(1, KINDS[code].numpy_type) for code in KINDS if code != 7]
    arrays.insert(list(KINDS).index(7), np.array([b""], object))
    ckptfmt.save_v2(tmp_path / "ck", list(names.values()), [""] * len(names), arrays)
    found = tf.load_checkpoint(tmp_path / "ck").get_variable_to_dtype_map()
    assert found == {names[code]: KINDS[code].numpy_type for code in KINDS}


def test_a_dtype_that_nobody_knows(tmp_path: Path) -> None:
    built = index.index_of([(b"", index.header()), (b"x", index.stored_entry(99, (2,), b"abcd"))])
    index.write(tmp_path / "ck", built, b"abcd")
    reader = tf.load_checkpoint(tmp_path / "ck")
    assert reader.get_variable_to_shape_map() == {"x": [2]}
    assert reader.get_variable_to_dtype_map() == {"x": None}


def test_the_state_file_names_the_checkpoint(ck: str) -> None:
    ckptfmt.save(f"{os.path.dirname(ck)}/ck-2", {"other": np.arange(2)}, level="v2")
    directory = point_to(ck, "ck-2")
    assert tf.list_variables(directory) == [("other", [2])]
    assert tf.list_variables(directory + "/") == [("other", [2])]
    point_to(ck, "ck-1")
    assert tf.list_variables(directory) == LISTED


@pytest.mark.parametrize("use", [tf.load_checkpoint, tf.list_variables])
def test_a_directory_without_a_state_file(ck: str, use: Callable[[str], Any]) -> None:
    """TensorFlow does not look for the only index, as `ckptfmt.open` does."""
    directory = os.path.dirname(ck)
    with pytest.raises(ValueError, match="checkpoint") as caught:
        use(directory)
    assert type(caught.value) is ckptfmt.InvalidError
    assert str(caught.value) == FOUND_NONE.format(directory)


def test_a_state_file_that_names_nothing_there(ck: str) -> None:
    directory = point_to(ck, "ck-9")
    with pytest.raises(ckptfmt.InvalidError) as caught:
        tf.load_checkpoint(directory)
    assert str(caught.value) == FOUND_NONE.format(directory)


def test_a_state_file_that_leads_outside(ck: str, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "out", {"secret": np.arange(2)})
    for named in ("../out", str(tmp_path / "out")):
        directory = point_to(ck, named)
        with pytest.raises(ckptfmt.InvalidError) as caught:
            tf.load_checkpoint(directory)
        assert caught.value.failure == "BAD_PATH"


def test_a_damaged_state_file(ck: str) -> None:
    directory = os.path.dirname(ck)
    Path(directory, "checkpoint").write_text("model_checkpoint_path: unquoted")
    with pytest.raises(ckptfmt.CorruptError) as caught:
        tf.load_checkpoint(directory)
    assert (caught.value.failure, caught.value.offset) == ("BAD_PROTO", 0)


@pytest.mark.parametrize("suffix", ["x", ".index", ".data-00000-of-00001"])
def test_anything_else_is_a_prefix(ck: str, suffix: str) -> None:
    with pytest.raises(ckptfmt.CheckpointNotFoundError) as caught:
        tf.load_checkpoint(ck + suffix)
    assert caught.value.path is not None and caught.value.path.startswith(ck + suffix)


# ---- checkpoint_exists ---------------------------------------------------------------------------


def test_anything_at_the_prefix_exists(ck: str) -> None:
    """As for TensorFlow, where a V1 checkpoint is one file."""
    assert tf.checkpoint_exists(f"{ck}.index") is True
    assert tf.checkpoint_exists(os.path.dirname(ck)) is True


def test_data_files_do_not_count(ck: str) -> None:
    os.unlink(f"{ck}.data-00000-of-00001")
    assert tf.checkpoint_exists(ck) is True
    os.unlink(f"{ck}.index")
    assert tf.checkpoint_exists(ck) is False


@pytest.mark.parametrize("use", [tf.checkpoint_exists, tf.load_checkpoint, tf.list_variables])
def test_no_path(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ckptfmt.InvalidError, match="not int"):
        use(3)
    with pytest.raises(ckptfmt.InvalidError, match="NUL") as caught:
        use("a\0b")
    assert caught.value.failure == "BAD_PATH"


def test_the_reader_offers_near_names(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"model/kernel": np.ones(1)})
    with pytest.raises(ckptfmt.TensorNotFoundError, match="the nearest are 'model/kernel'"):
        tf.load_checkpoint(tmp_path / "ck").get_tensor("model/kernle")
