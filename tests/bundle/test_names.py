# SPDX-License-Identifier: Apache-2.0
"""Names of files, and of tensors as they cross into C."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index

import ckptfmt
from ckptfmt import tf
from ckptfmt._base import names
from ckptfmt.saving.specs import SaveSpec

# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("basename", "shard", "count", "expected"),
    [
        ("part", 0, 1, "part-00000-of-00001"),
        ("part", 1, 3, "part-00001-of-00003"),
        ("/d/ck_temp/part", 99_999, 99_999, "/d/ck_temp/part-99999-of-99999"),
        (b"x", 0, 1, "x-00000-of-00001"),
        (Path("x"), 0, 1, "x-00000-of-00001"),
        ("p", 100_000, 1_234_567, "p-100000-of-1234567"),
        ("", 0, 1, "-00000-of-00001"),
        # No range check, five characters with the sign: as printf's %05d.
        ("p", 5, 2, "p-00005-of-00002"),
        ("p", -1, 3, "p--0001-of-00003"),
        ("p", -123_456, 0, "p--123456-of-00000"),
        ("{0}%s", 0, 1, "{0}%s-00000-of-00001"),
    ],
)
def test_sharded_filename(basename: Any, shard: int, count: int, expected: str) -> None:
    assert ckptfmt.sharded_filename(basename, shard, count) == expected


@pytest.mark.parametrize("number", ["0", 1.5, None, np.arange(2)])
def test_sharded_filename_needs_integers(number: Any) -> None:
    for what in ("shard", "num_shards"):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.sharded_filename("x", **({"shard": 0, "num_shards": 1} | {what: number}))
        assert caught.value.argument == what


@pytest.mark.parametrize("basename", [None, 3, ["x"]])
def test_sharded_filename_needs_a_path(basename: Any) -> None:
    with pytest.raises(ckptfmt.InvalidError, match=r"basename must be str, bytes or os.PathLike"):
        ckptfmt.sharded_filename(basename, 0, 1)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("q/", "prefix 'q/' ends with '/': add a file name, for example 'q/model'"),
        ("", "prefix '' has no file name"),
        ("..", "prefix '..' has no file name"),
        (
            "x.index",
            "prefix 'x.index' is the name of a checkpoint's file: pass the prefix alone, 'x'",
        ),
        (
            "x.data-00000-of-00002",
            "prefix 'x.data-00000-of-00002' is the name of a checkpoint's file: pass the prefix "
            "alone, 'x'",
        ),
    ],
)
def test_prefixes_that_are_probably_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for save in (ckptfmt.save, ckptfmt.save_async, lambda path, _: ckptfmt.Writer(path)):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            save(prefix, {"x": [1]})
        assert caught.value.message == message
        assert caught.value.failure == "BAD_PATH"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("directory", ["", "a/", "s3://b/"])
@pytest.mark.parametrize("base", ["", ".", "..", "x", "x.index", "x.data-00000-of-00001", "x.npz"])
@pytest.mark.parametrize("end", [".pt", ".PT", ".safetensors.index.json", ".index", ".zip"])
def test_a_suggested_prefix_is_valid(directory: str, base: str, end: str) -> None:
    """Errors about a prefix offer another one only if that is a prefix."""
    with pytest.raises(ckptfmt.InvalidError) as caught:
        names.prefix_text(f"{directory}{base}{end}", urls=True)
    suggested = re.findall(r"(?:alone,|example) '(.*)'", caught.value.message)
    assert len(suggested) == (base == "x"), caught.value.message
    for one in suggested:
        assert names.prefix_text(one, urls=True) == one


def test_save_v2_takes_any_prefix(tmp_path: Path) -> None:
    """As TensorFlow's op."""
    for name in ("x.index", "d/"):
        ckptfmt.save_v2(f"{tmp_path}/{name}", ["x"], [""], [np.ones(2)])
    assert (tmp_path / "x.index.index").exists()
    assert (tmp_path / "d" / ".index").exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("ck.data-00000-of-00001", ("ck", 0, 1)),
        ("/d/ck.data-00003-of-00017", ("/d/ck", 3, 17)),
        ("ck.data-123456-of-200000", ("ck", 123_456, 200_000)),
        (".data-00000-of-00001", ("", 0, 1)),
        ("/d/.data-00000-of-00001", ("/d/", 0, 1)),
        ("a\nb.data-00000-of-00001", ("a\nb", 0, 1)),
        ("\udcff.data-00000-of-00001", ("\udcff", 0, 1)),
        ("ck.data-00000-of-00001.data-00001-of-00002", ("ck.data-00000-of-00001", 1, 2)),
        # What cannot be a checkpoint's file is still named like one.
        ("ck.data-00005-of-00002", ("ck", 5, 2)),
    ],
)
def test_names_of_data_files(path: str, expected: tuple[str, int, int]) -> None:
    parsed = names.parse_data_name(path)
    assert parsed == expected
    assert isinstance(parsed, names.DataName)
    assert names.data_name(*parsed) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "ck", "ck.index", "ck.data", "ck.data-00000-of-00001.index"),
        *("ck.data-0000-of-00001", "ck.data-00000-of-0001", "ck.data-00000-of-00001 "),
        *("ck.data-00000-of-00001\n", "ck.data-00000-of-00001.tempstate12"),
        *("ck.data-000001-of-00002", "ck.data-00001-of-000002"),  # more digits than it takes
        *("ck.data--0001-of-00002", "ck-00000-of-00001", "ck.data_00000-of-00001"),
        "ck.data-{0}-of-{0}".format("\u0661" * 5),  # digits, and not those of a name
    ],
)
def test_other_names(path: str) -> None:
    assert names.parse_data_name(path) is None


# ---- tensors -------------------------------------------------------------------------------------

TEXT_AND_BYTES = [
    ("w", b"w"),
    ("layer/kernel:0", b"layer/kernel:0"),
    ("größe", "größe".encode()),
    ("日本", "日本".encode()),
    ("😀", b"\xf0\x9f\x98\x80"),
    ("a\0b", b"a\0b"),
    ("a\nb", b"a\nb"),
    ("\udcff", b"\xff"),
    ("a\udc80\udcfeb", b"a\x80\xfeb"),
    ("\udced\udca0\udc80", b"\xed\xa0\x80"),  # a surrogate in UTF-8, which UTF-8 does not have
]


@pytest.mark.parametrize("name", ["\ud800", "a\udbffb", "\udc00", "\udc7f"])
def test_names_that_cannot_be_encoded(tmp_path: Path, name: str) -> None:
    """Surrogates that stand for no byte."""
    with pytest.raises(ckptfmt.InvalidError) as caught:
        names.tensor_bytes(name)
    assert str(caught.value) == (f"tensor name {name!r} cannot be encoded: surrogates not allowed")
    with pytest.raises(ckptfmt.InvalidError, match="cannot be encoded"):
        ckptfmt.save(tmp_path / "ck", {name: np.arange(3)})
    assert not list(tmp_path.iterdir())


def test_names_through_a_checkpoint(tmp_path: Path) -> None:
    """Listed as text, in the order of their bytes, and found by either form."""
    tensors = {text: np.full(2, number) for number, (text, _) in enumerate(TEXT_AND_BYTES)}
    ckptfmt.save(tmp_path / "ck", tensors, level="v2")
    with ckptfmt.open(tmp_path / "ck") as reader:
        order = sorted(tensors, key=names.tensor_bytes)
        assert list(reader) == order
        for number, (text, stored) in enumerate(TEXT_AND_BYTES):
            assert reader[text].name == text
            assert reader[stored].name == text
            assert reader[stored].read().tolist() == [number, number]
            assert text in reader and stored in reader
        for absent in ("W", b"w\0", "größ", "", b"", 3, None, "\ud800"):
            assert absent not in reader
    content = (tmp_path / "ck.index").read_bytes()
    offset, size = index.regions(content).data_blocks[0]
    stored_keys = [key for _, key, _, _ in index.block_rows(content[offset : offset + size])]
    assert stored_keys == [b"", *sorted(stored for _, stored in TEXT_AND_BYTES)]


def test_one_name_in_two_forms_is_a_duplicate(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.save_v2(tmp_path / "ck", ["ä", "ä".encode()], ["", ""], [np.arange(2)] * 2)
    assert caught.value.tensor == "ä"
    assert not list(tmp_path.iterdir())


# ---- classes derived from str --------------------------------------------------------------------


class Name(str, enum.Enum):  # noqa: UP042 (str() of a StrEnum is its value, which hides much)
    OLD = "w"
    NEW = "v"
    OTHER = "\N{GREEK SMALL LETTER LAMDA}"


@pytest.mark.parametrize("old", [np.str_("w"), Name.OLD, Name.OTHER])
@pytest.mark.parametrize("new", [np.str_("v"), Name.NEW])
def test_names_of_other_classes_are_plain_afterwards(tmp_path: Path, old: str, new: str) -> None:
    def plain(found: Any, name: str) -> bool:
        """Return whether the only name that was found is this one, as str."""
        return [type(one) for one in found] == [str] and list(found) == [str.__str__(name)]

    path = tmp_path / "ck"
    ckptfmt.save(path, {old: np.zeros(2)}, durability="none")
    with ckptfmt.open(path) as reader:
        assert plain(reader, old) and plain([reader[old].name], old)
        assert repr(str.__str__(old)) in repr(reader[old])
    assert plain(ckptfmt.load(path, names=[old]), old)
    for rename in ({old: new}, lambda _: new, lambda _: (new, np.copy)):
        assert plain(ckptfmt.load(path, rename=rename), new)
        ckptfmt.convert(path, tmp_path / "x", rename=rename, durability="none")
        assert plain(ckptfmt.load(tmp_path / "x"), new)
    for one in (old, new):
        for function in (names.tensor_name, names.saved_name, names.tensor_text):
            assert plain([function(one)], one)
        assert plain([tf.SaveableObject(None, [SaveSpec(0.0, "", one)], "s").specs[0].name], one)
    for call in (
        lambda: ckptfmt.load(path, names=[new]),
        lambda: tf.load_variable(path, new),
        lambda: tf.load_checkpoint(path).get_tensor(new),
        lambda: ckptfmt.open(path)[new],
        lambda: ckptfmt.save(tmp_path / "y", [(new, np.zeros(1)), (new, np.zeros(1))]),
        lambda: ckptfmt.save(tmp_path / "y", {new: np.zeros(1, "M8[s]")}),
    ):
        with pytest.raises(ckptfmt.CkptfmtError) as caught:
            call()
        assert plain([caught.value.tensor], new) and "tensor 'v'" in str(caught.value)
    with pytest.raises(ckptfmt.InvalidError, match=r"missing in the checkpoint \(1\): 'v'"):
        ckptfmt.load_into(path, {new: np.zeros(2)})
