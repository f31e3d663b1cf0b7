# SPDX-License-Identifier: Apache-2.0
"""What a path means, and what is said when it means no checkpoint."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index

import ckptfmt
from ckptfmt.files.locate import kind_of_file, locate

VALUES = [3, 1, 4]
NOTHING = "Failed to find any matching files for this prefix"


def save(prefix: Path | str | bytes) -> None:
    ckptfmt.save_v2(prefix, ["x"], [""], [np.array(VALUES)])


def assert_opens(path: Any, prefix: str) -> None:
    assert locate(path) == prefix
    with ckptfmt.open(path) as reader:
        assert reader.prefix == prefix
        assert reader["x"].read().tolist() == VALUES


def not_found(path: Any) -> ckptfmt.CheckpointNotFoundError:
    with pytest.raises(ckptfmt.CheckpointNotFoundError) as caught:
        ckptfmt.open(path)
    assert caught.value.path == os.fsdecode(path)
    assert caught.value.failure == "CHECKPOINT_NOT_FOUND"
    return caught.value


@pytest.fixture
def ck(tmp_path: Path) -> str:
    save(tmp_path / "d" / "ck-1")
    return str(tmp_path / "d" / "ck-1")


# ---- every kind of path --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_prefix_and_its_files(ck: str, suffix: str, form: Callable[[str], Any]) -> None:
    assert_opens(form(ck + suffix), ck)


def test_pathlike_of_bytes(ck: str) -> None:
    class Given:
        def __fspath__(self) -> bytes:
            return os.fsencode(ck)

    assert_opens(Given(), ck)


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("ck-1", "ck-1"),
        ("./ck-1", "./ck-1"),
        ("../d/ck-1.index", "../d/ck-1"),
        (".", "./ck-1"),
        ("../d", "../d/ck-1"),
    ],
)
def test_relative_paths(ck: str, monkeypatch: pytest.MonkeyPatch, path: str, prefix: str) -> None:
    monkeypatch.chdir(Path(ck).parent)
    assert_opens(path, prefix)


def test_any_data_file_even_one_that_is_gone(tmp_path: Path) -> None:
    """The index says what there is."""
    for number in range(2):
        with ckptfmt.Writer(tmp_path / f"p{number}") as writer:
            writer.add(f"t{number}", np.arange(3))
    ckptfmt.merge([tmp_path / "p0", tmp_path / "p1"], tmp_path / "m", inputs="consume")
    for name in ("m.data-00000-of-00002", "m.data-00001-of-00002", "m.data-00000-of-00007"):
        assert locate(tmp_path / name) == str(tmp_path / "m")


def test_saved_model(tmp_path: Path) -> None:
    save(tmp_path / "model" / "variables" / "variables")
    (tmp_path / "model" / "saved_model.pb").write_bytes(b"\x08\x01")
    assert_opens(tmp_path / "model", str(tmp_path / "model" / "variables" / "variables"))
    assert_opens(tmp_path / "model" / "variables", str(tmp_path / "model/variables/variables"))


def test_order_of_meanings(tmp_path: Path) -> None:
    """The prefix before the file, the state file before a single checkpoint."""
    save(tmp_path / "ck")
    save(tmp_path / "ck.index")  # its files: ck.index.index, ck.index.data-...
    assert locate(tmp_path / "ck.index") == str(tmp_path / "ck.index")
    assert locate(tmp_path / "ck.index.index") == str(tmp_path / "ck.index")
    (tmp_path / "ck").mkdir()
    save(tmp_path / "ck" / "other")
    assert locate(tmp_path / "ck") == str(tmp_path / "ck")
    assert locate(f"{tmp_path / 'ck'}/") == str(tmp_path / "ck" / "other")


def test_a_state_file_comes_first(tmp_path: Path) -> None:
    save(tmp_path / "a")
    save(tmp_path / "b")
    save(tmp_path / "variables" / "variables")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "b"\n')
    assert_opens(tmp_path, str(tmp_path / "b"))


# ---- names that others would take for patterns ---------------------------------------------------

NAMES = [
    *("ck[1]", "ck*", "ck?", "[a-z]", "{a,b}", "ck{0}", "%s%d", "$HOME", "~", "a b", " ck "),
    *("a\\b", "ck.data-00000-of-00001"),
    *("line\nbreak", "tab\there", "'quoted'", '"', "größe", "日本", "-rf", "a;b", "a#b", "..ck"),
    *("ck.index", ".hidden", "checkpoint", "file:x", "s3:", "\x1b[2J"),
    "n" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_literal(tmp_path: Path, name: str) -> None:
    """In the base name and in the directory, with a neighbour that a pattern would match."""
    prefix = tmp_path / name / name
    save(prefix)
    for suffix in ("", ".index", ".data-00000-of-00001"):
        assert_opens(f"{prefix}{suffix}", str(prefix))
    assert_opens(prefix.parent, str(prefix))
    assert ckptfmt.verify(prefix).ok
    neighbour = tmp_path / name / "ck1"
    save(neighbour)
    save(prefix)  # once more over itself
    assert ckptfmt.load(prefix)["x"].tolist() == VALUES
    assert ckptfmt.load(neighbour)["x"].tolist() == VALUES
    # The second save has the data files of two shards; the first is gone.
    left = {Path(f"{prefix}.index"), *(index.data_name(prefix, shard, 2) for shard in (0, 1))}
    left |= {Path(f"{neighbour}.index"), index.data_name(neighbour, 0, 1)}
    assert set(prefix.parent.iterdir()) == left


@pytest.mark.parametrize("name", [b"\xff", b"a\xfe\n", "ä".encode("latin-1")])
def test_names_that_are_no_text(tmp_path: Path, name: bytes) -> None:
    prefix = os.fsencode(tmp_path) + b"/" + name
    save(prefix)
    assert_opens(prefix, os.fsdecode(prefix))
    assert_opens(os.fsdecode(prefix), os.fsdecode(prefix))
    assert_opens(prefix + b".index", os.fsdecode(prefix))
    assert_opens(tmp_path, os.fsdecode(prefix))


def test_patterns_find_nothing(ck: str) -> None:
    for pattern in (ck[:-1] + "*", ck[:-1] + "?", ck[:-1] + "[1]", ck + ".data-*", ck + ".*"):
        assert not_found(pattern).message == f"{NOTHING}; the directory holds 'ck-1'"


def test_empty_base_name(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/d/"
    save(prefix)
    assert sorted(os.listdir(prefix)) == [".data-00000-of-00001", ".index"]
    for path in (prefix, f"{tmp_path}/d", f"{prefix}.index", f"{prefix}.data-00000-of-00001"):
        assert_opens(path, prefix)


def test_trailing_slash_means_a_directory(ck: str) -> None:
    assert not_found(f"{ck}/").message == f"{NOTHING}; there is no directory '{ck}'"
    assert not_found(f"{ck}.index/").message == f"{NOTHING}; there is no directory '{ck}.index'"


# ---- symbolic links ------------------------------------------------------------------------------


def test_symbolic_links(ck: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "d")
    assert_opens(tmp_path / "link", str(tmp_path / "link" / "ck-1"))
    (tmp_path / "blob").mkdir()
    for suffix in (".index", ".data-00000-of-00001"):
        os.rename(ck + suffix, tmp_path / "blob" / f"sha{suffix[1:3]}")
        os.symlink(tmp_path / "blob" / f"sha{suffix[1:3]}", ck + suffix)
    assert_opens(ck, ck)
    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.open(ck, follow_symlinks=False)
    assert caught.value.failure == "BAD_PATH"
    assert caught.value.path == f"{ck}.index"


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "ck.index").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not_found(tmp_path / "ck").message.startswith(NOTHING)
    assert not_found(tmp_path / "loop").message.startswith(NOTHING)


# ---- files that are something else ---------------------------------------------------------------


def file_of(write: Callable[[io.BytesIO], object]) -> bytes:
    held = io.BytesIO()
    write(held)
    return held.getvalue()


def safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(4)


V1 = "a table file: a checkpoint of TensorFlow's V1 format, or an .index file under another name"
STATE = "the text file that names a directory's checkpoints"
HTML = "an HTML page, as a download that failed leaves behind"
ZIP = "a zip archive"
LFS = "a Git LFS pointer: the file itself was never fetched (`git lfs pull`)"

KINDS: list[tuple[bytes, str]] = [
    (b"", "an empty file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", LFS),
    (b"<!DOCTYPE html><html></html>", HTML),
    (b"\n  <html lang=en>", HTML),
    (b"<?xml version='1.0'?><Error/>", HTML),
    (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
    (file_of(lambda held: np.savez(held, x=np.arange(3))), "a NumPy .npz file"),
    (file_of(lambda held: zipfile.ZipFile(held, "w").close()), ZIP),
    (gzip.compress(b"x", mtime=0), "a gzip file"),
    (b"\x28\xb5\x2f\xfd" + bytes(9), "a Zstandard file"),
    (file_of(lambda held: np.save(held, np.arange(3))), "a NumPy .npy file"),
    (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF model"),
    (safetensors(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "a safetensors file"),
    (safetensors(b"{}      "), "a safetensors file"),
    *(
        (pickle.dumps({"x": 1}, protocol), "a Python pickle (an old PyTorch file?)")
        for protocol in (2, 3, 4, 5)
    ),
    (b'model_checkpoint_path: "ck"\n', STATE),
    (b'# by hand\n\nall_model_checkpoint_paths: "ck"\n', STATE),
    (b"\x01\x02\x03", "a file of an unknown kind"),
    (b"plain text", "a file of an unknown kind"),
    (b"\x80", "a file of an unknown kind"),
    (b"version http://elsewhere", "a file of an unknown kind"),
]


@pytest.mark.parametrize(("content", "kind"), KINDS, ids=range(len(KINDS)))
def test_other_files(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert kind_of_file(str(path)).what == kind
    if kind == ZIP:  # see test_archives
        return
    message = not_found(path).message
    if kind == STATE:
        assert message == f"{STATE}; open its directory, '{tmp_path}'"
    else:
        assert message.startswith(f"{kind}, not a TensorFlow checkpoint")


@pytest.mark.parametrize(
    ("content", "kind"),
    [(content, kind) for content, kind in KINDS if kind != STATE],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_other_files_named_index(tmp_path: Path, content: bytes, kind: str) -> None:
    """The rule of the table that is broken; for what people meet, what the file seems to be."""
    (tmp_path / "ck.index").write_bytes(content)
    with pytest.raises(ckptfmt.CorruptError) as caught:
        ckptfmt.open(tmp_path / "ck")
    error = caught.value
    short = len(content) < 48
    assert error.path == str(tmp_path / "ck.index")
    assert error.failure == ("TRUNCATED" if short else "BAD_MAGIC")
    assert error.message.startswith("FTR-1: " if short else "FTR-2: ")
    if kind in {"an empty file", LFS, HTML, ZIP, "a safetensors file"} or "HDF5" in kind:
        assert error.message.endswith(f" (it looks like {kind})")


def test_v1_table(tmp_path: Path, ck: str) -> None:
    """Any table under a name that is no index."""
    shutil.copy(f"{ck}.index", tmp_path / "model.ckpt-7")
    with pytest.raises(ckptfmt.UnsupportedError) as caught:
        ckptfmt.open(tmp_path / "model.ckpt-7")
    error = caught.value
    assert error.path == str(tmp_path / "model.ckpt-7")
    assert error.message.startswith(f"{V1}. ckptfmt reads only V2 checkpoints")
    assert "tf.train.load_checkpoint" in error.message


def test_a_table_that_starts_like_something_else(tmp_path: Path) -> None:
    """The end decides: a table's first bytes are those of its keys."""
    table = index.Index([index.block([(b"", index.header())])], last_keys=[b""])
    table.gap_before = b"GGUF"
    (tmp_path / "model").write_bytes(table.build())
    assert kind_of_file(str(tmp_path / "model")).what == V1


def test_state_file_by_its_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ck"\n')
    monkeypatch.chdir(tmp_path)
    assert not_found("checkpoint").message == f"{STATE}; open its directory, '.'"


def test_a_fifo_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "checkpoint")
    assert not_found(tmp_path / "pipe").message == NOTHING
    assert not_found(tmp_path).message == (
        "a directory without a checkpoint; it holds 'checkpoint', 'pipe'"
    )


# ---- nothing there -------------------------------------------------------------------------------


def test_nothing_at_all(tmp_path: Path) -> None:
    assert not_found(tmp_path / "ck").message == NOTHING
    missing = tmp_path / "none" / "ck"
    assert not_found(missing).message == f"{NOTHING}; there is no directory '{tmp_path / 'none'}'"
    assert not_found(tmp_path).message == "a directory without a checkpoint, empty"


def test_neighbours_are_named(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"ck-{number:02d}.index").write_bytes(b"")
    eight = ", ".join(f"'ck-{number:02d}'" for number in range(8))
    message = f"{NOTHING}; the directory holds {eight} and 3 more"
    assert not_found(tmp_path / "ck").message == message
    message = f"a directory with several checkpoints; open one of {eight} and 3 more"
    assert not_found(tmp_path).message == message


@pytest.mark.parametrize(
    "path", ["", "ck-1", "ck-1.index", "ck-1.data-00000-of-00001", "ck-1.data-00002-of-00003"]
)
def test_an_index_that_is_missing(ck: str, path: str) -> None:
    os.unlink(f"{ck}.index")
    error = not_found(os.path.join(os.path.dirname(ck), path))
    assert "there are data files of 'ck-1' but no .index file. It was not copied" in error.message


def test_names_of_neighbours_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\n.index").write_bytes(b"")
    assert str(not_found(tmp_path / "ck")).endswith("the directory holds 'a\\x1b[2J\\n'")


@pytest.mark.parametrize(
    "name",
    ["vocab.npy", "dataset.tar", "x.h5", "x.pt", "x.zip", "x.gguf", "tokens.safetensors", "x.bin"],
)
def test_other_files_in_a_directory(tmp_path: Path, name: str) -> None:
    """They are listed: a file does not say what its directory is."""
    (tmp_path / name).touch()
    (tmp_path / "best-7").mkdir()
    shown = ", ".join(f"'{one}'" for one in sorted([name, "best-7"]))
    message = f"a directory without a checkpoint; it holds {shown}"
    assert not_found(tmp_path).message == message
    (tmp_path / "best-7" / name).touch()
    assert not_found(tmp_path).message == message


@pytest.mark.parametrize("content", [pickle.dumps({}, 2), b"?", None])
def test_a_state_file_that_names_a_plain_file(
    tmp_path: Path, ck: str, content: bytes | None
) -> None:
    """The checkpoints beside it are offered."""
    directory = os.path.dirname(ck)
    if content is None:
        shutil.copy(f"{ck}.index", f"{directory}/other")
    else:
        Path(f"{directory}/other").write_bytes(content)
    Path(f"{directory}/checkpoint").write_text('model_checkpoint_path: "other"\n')
    with pytest.raises(ckptfmt.CkptfmtError) as caught:
        ckptfmt.open(directory)
    kind = ckptfmt.UnsupportedError if content is None else ckptfmt.CheckpointNotFoundError
    assert type(caught.value) is kind
    assert caught.value.path == f"{directory}/other"
    offer = "; the directory also holds V2 checkpoints, open one of 'ck-1'"
    assert caught.value.message.endswith(offer)
    os.unlink(f"{ck}.index")
    with pytest.raises(kind) as caught:
        ckptfmt.open(directory)
    assert "open one of" not in caught.value.message


@pytest.mark.parametrize("path", ["a\0b", b"a\0b", "\0"])
def test_a_nul_byte(path: str | bytes) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        locate(path)
    assert caught.value.failure == "BAD_PATH"
    assert caught.value.message == "a path cannot contain a NUL byte"


@pytest.mark.parametrize("path", ["file://host/model", b"nowhere://bucket/model"])
def test_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | bytes) -> None:
    """Saving to it would make directories of these names, and look like success."""
    monkeypatch.chdir(tmp_path)
    for call in (ckptfmt.open, ckptfmt.load, lambda path: ckptfmt.save(path, {"x": [1]})):
        with pytest.raises(ckptfmt.CkptfmtError, match=r"is a URL|fsspec|nowhere"):
            call(path)
    assert os.listdir(tmp_path) == []
    ckptfmt.save("./s3://m", {"x": [1]})
    assert ckptfmt.load("./s3://m")["x"] == [1]


def test_a_file_url(tmp_path: Path) -> None:
    """As in TensorFlow: the path of a file:/// URL, without percent decoding."""
    url = f"file://{tmp_path}/%41"
    ckptfmt.save(url, {"x": [1]})
    assert sorted(os.listdir(tmp_path)) == ["%41.data-00000-of-00001", "%41.index"]
    assert ckptfmt.load(url)["x"] == ckptfmt.load(f"file://localhost{tmp_path}/%41")["x"] == [1]
    assert ckptfmt.tf.checkpoint_exists(url)
    with pytest.raises(ckptfmt.UnsupportedError, match="is a URL"):
        ckptfmt.open("file://host/model")


@pytest.mark.parametrize("name", ["n" * 300, "n/" * 3000 + "n"])
def test_paths_too_long(tmp_path: Path, name: str) -> None:
    not_found(f"{tmp_path}/{name}")


# ---- the state file ------------------------------------------------------------------------------


def state(directory: Path, content: bytes | str) -> Path:
    directory.mkdir(exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    (directory / "checkpoint").write_bytes(raw)
    return directory


def test_a_name_that_is_not_there(ck: str) -> None:
    directory = state(Path(ck).parent, 'model_checkpoint_path: "ck-9"')
    assert not_found(directory).message == (
        "its `checkpoint` file names 'ck-9', which is not there; open one of 'ck-1'"
    )


EXPECTED = "expected a line 'field: value' of a CheckpointState, found "


@pytest.mark.parametrize(
    ("content", "offset", "message"),
    [
        (b"", None, "model_checkpoint_path is missing"),
        (b'model_checkpoint_path: ""', None, "model_checkpoint_path is missing"),
        (b'all_model_checkpoint_paths: "k"', None, "model_checkpoint_path is missing"),
        (b'model_checkpoint_path: "k"\nunknown: 1', 27, f"{EXPECTED}'unknown: 1'"),
        (b'model_checkpoint_path: "k" # \xff', 29, "not UTF-8"),
        (b"model_checkpoint_path", 0, f"{EXPECTED}'model_checkpoint_path'"),
    ],
)
def test_a_state_file_that_is_none(
    tmp_path: Path, content: bytes, offset: int | None, message: str
) -> None:
    directory = state(tmp_path / "d", content)
    save(directory / "k")
    with pytest.raises(ckptfmt.CorruptError) as caught:
        ckptfmt.open(directory)
    error = caught.value
    assert (error.failure, error.offset, error.message) == ("BAD_PROTO", offset, message)
    assert error.path == str(directory / "checkpoint")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    directory = state(tmp_path / "d", rb'model_checkpoint_path: "\377\n"')
    save(os.fsencode(directory) + b"/\xff\n")
    assert_opens(directory, f"{directory}/\udcff\n")


def test_a_state_file_too_long(tmp_path: Path) -> None:
    """Sparse: nothing of that size is written."""
    directory = state(tmp_path / "d", b"")
    os.truncate(directory / "checkpoint", (64 << 20) + 1)
    with pytest.raises(ckptfmt.errors.LimitError) as caught:
        locate(directory)
    assert caught.value.path == str(directory / "checkpoint")


def test_a_directory_named_checkpoint(ck: str) -> None:
    (Path(ck).parent / "checkpoint").mkdir()
    assert_opens(os.path.dirname(ck), ck)
