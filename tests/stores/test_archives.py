# SPDX-License-Identifier: Apache-2.0
"""Checkpoints inside of tar and zip archives, in files and in stores, and archives that are damaged
or hostile."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import mount

import ckptfmt
from ckptfmt import cli, errors
from ckptfmt.stores import archives, waiting

Files = dict[str, bytes]
TENSORS = {"w": np.arange(5000, dtype=np.float32), "b": np.ones((7, 3)), "s": np.array([b"x", b""])}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A checkpoint of three data files."""
    folder = tmp_path_factory.mktemp("saved")
    ckptfmt.save(folder / "model", TENSORS, shards=3)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def zip_of(members: Files, **options: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data, **options)
    return out.getvalue()


def tar_of(members: Files, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


MAKERS: dict[str, Callable[[Files], bytes]] = {"zip": zip_of, "tar": tar_of}


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def below(folder: str, members: Files) -> Files:
    return {f"{folder}/{name}": data for name, data in members.items()}


def same(found: dict[str, np.ndarray]) -> None:
    assert list(found) == sorted(TENSORS)
    for name, array in TENSORS.items():
        assert np.array_equal(found[name], array)


# ---- what is read -------------------------------------------------------------------------------


def test_the_only_checkpoint(tmp_path: Path, files: Files, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind]({"readme": b"hello", **below("run/1", files)}))
    for name in (
        path,
        f"file://{path}",
        f"{path}!/run/1",
        f"{path}!/run/1/model",
        f"{path}!/run/1/model.index",
        f"{path}!/run/1/model.data-00001-of-00003",
    ):
        same(ckptfmt.load(name))
        assert ckptfmt.verify(name).ok
    with ckptfmt.open(path) as reader:
        assert reader.prefix == f"{path}!/run/1/model"
        assert np.array_equal(reader["w"][100:200], TENSORS["w"][100:200])
        same({name: pickle.loads(pickle.dumps(reader))[name].read() for name in reader})
    ckptfmt.convert(path, tmp_path / "out")
    same(ckptfmt.load(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path))[0] == f"a.{kind}", "nothing is extracted"


def test_a_relative_path(
    tmp_path: Path, files: Files, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"a.{kind}").write_bytes(MAKERS[kind](files))
    monkeypatch.chdir(tmp_path)
    with ckptfmt.open(f"a.{kind}") as reader:
        kept = pickle.dumps(reader)
    monkeypatch.chdir("/")
    with pickle.loads(kept) as reader:
        assert np.array_equal(reader["w"].read(), TENSORS["w"])


def test_the_command(
    tmp_path: Path, files: Files, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind](below("run", files)))
    for words in (["inspect"], ["verify"], ["show", "w"], ["inspect", "--json"]):
        assert cli.main([words[0], str(path), *words[1:]]) == 0
        shown = capsys.readouterr()
        assert shown.out and not shown.err


def test_several_checkpoints(tmp_path: Path, files: Files, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    two = {**below("one", files), **below("two", files)}
    path.write_bytes(MAKERS[kind](two))
    with pytest.raises(errors.CheckpointNotFoundError, match=rf"'{path}!/one/model', '{path}!/two"):
        ckptfmt.open(path)
    same(ckptfmt.load(f"{path}!/two"))
    state = b'model_checkpoint_path: "two/model"\n'
    path.write_bytes(MAKERS[kind]({**two, "checkpoint": state}))
    with ckptfmt.open(path) as reader:
        assert reader.prefix.endswith("!/two/model")
    assert ckptfmt.latest_checkpoint(f"{path}!/") == f"{path}!/two/model"


def test_what_is_missing(tmp_path: Path, files: Files, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    for text, name in (("no such archive", f"{path}!/x"), ("any matching files", str(path))):
        with pytest.raises(errors.CheckpointNotFoundError, match=text):
            ckptfmt.open(name)
    path.write_bytes(MAKERS[kind](below("run", files)))
    for text, name in (
        ("the directory holds 'model'", f"{path}!/run/modl"),
        ("no directory", f"{path}!/walk/model"),
    ):
        with pytest.raises(errors.CheckpointNotFoundError, match=text):
            ckptfmt.open(name)
    path.write_bytes(MAKERS[kind]({"a": b"1"}))
    with pytest.raises(errors.CheckpointNotFoundError, match="it holds 'a'"):
        ckptfmt.open(path)
    path.write_bytes(MAKERS[kind]({}))
    with pytest.raises(errors.CheckpointNotFoundError, match="empty"):
        ckptfmt.open(path)
    lacking = {name: data for name, data in files.items() if "-00001-of" not in name}
    path.write_bytes(MAKERS[kind](lacking))
    with pytest.raises(errors.ShardMissingError):
        ckptfmt.load(path)


def test_nothing_is_written(tmp_path: Path, files: Files, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind](files))
    before = path.read_bytes()
    for prefix in (f"{path}!/model", f"{path}!/new/model"):
        with pytest.raises(errors.StorageError, match="archives are only read"):
            ckptfmt.save(prefix, TENSORS)
    with pytest.raises(errors.InvalidError, match="an archive"):
        ckptfmt.save(path, TENSORS)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path]


def test_forms_of_tar(tmp_path: Path, files: Files) -> None:
    """All three formats, long names, `./` before names, and hard links."""
    path = tmp_path / "a.tar"
    deep = "/".join(["directory"] * 30)
    for tar_format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        folder = "./short" if tar_format == tarfile.USTAR_FORMAT else f"./{deep}"
        path.write_bytes(tar_of(below(folder, files), tar_format))
        same(ckptfmt.load(path))
    saved = tmp_path / "saved"
    ckptfmt.save(saved / "one", TENSORS)
    ckptfmt.merge([saved / "one"], saved / "two")
    with tarfile.open(path, "w") as archive:
        archive.add(saved, ".")
        assert any(info.islnk() for info in archive.getmembers())
    for name in ("one", "two"):
        same(ckptfmt.load(f"{path}!/{name}"))


def test_forms_of_zip(tmp_path: Path, files: Files) -> None:
    """zip64, data descriptors, a comment, bytes before the archive, directories."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = b"a comment" * 1000
        archive.mkdir("run")
        for name, data in files.items():
            with archive.open(f"run/{name}", "w", force_zip64=True) as member:
                member.write(data)
    same(ckptfmt.load(path))
    path.write_bytes(b"#!/bin/sh\n" * 100 + path.read_bytes())
    same(ckptfmt.load(path))

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            out.write(data)
            return len(data)

    out = io.BytesIO()
    with zipfile.ZipFile(Pipe(), "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    path.write_bytes(out.getvalue())
    same(ckptfmt.load(path))


def test_the_last_of_equal_names_is_in_force(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({"model.index": b"old", **below(".", files)}))
    same(ckptfmt.load(path))


def test_threads(tmp_path: Path, files: Files, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind](files))

    def load(_number: int) -> None:
        for _ in range(5):
            same(ckptfmt.load(path))

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(load, range(8)))) == 8
    assert not [name for name in os.listdir("/proc/self/fd") if str(path) in _target(name)]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_an_archive_that_is_replaced(tmp_path: Path, files: Files, kind: str) -> None:
    path, new = tmp_path / f"a.{kind}", tmp_path / "new"
    path.write_bytes(MAKERS[kind](files))
    other = {"w": np.zeros(3)}
    ckptfmt.save(tmp_path / "other" / "model", other)
    new.write_bytes(
        MAKERS[kind]({one.name: one.read_bytes() for one in (tmp_path / "other").iterdir()})
    )
    with ckptfmt.open(path) as reader, ckptfmt.open(path) as late:
        array = reader["w"].read()
        new.rename(path)
        assert np.array_equal(reader["w"].read(), array), "a data file that is open stays so"
        with pytest.raises(errors.GenerationGoneError, match="the archive was replaced"):
            late["w"].read()
    assert np.array_equal(ckptfmt.load(path)["w"], other["w"])


# ---- in a store ---------------------------------------------------------------------------------


def test_in_a_store(
    tmp_path: Path, files: Files, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mount(monkeypatch)
    monkeypatch.setattr(waiting, "PAUSE", 0)
    large = {"w": np.random.default_rng(1).integers(0, 255, (40, 1 << 20), np.uint8)}
    ckptfmt.save(tmp_path / "model", large)
    members = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    client.set(f"run/a.{kind}", MAKERS[kind](below("run", members)))
    url = f"dict://bucket/run/a.{kind}"
    with ckptfmt.open(url) as reader:
        assert reader.prefix == f"{url}!/run/model"
        client.requests.clear()
        client.received = 0
        assert np.array_equal(reader["w"][17], large["w"][17])
        assert len(client.requests) <= 3 and client.received <= 2 << 20
        cut: set[bytes] = set()

        def answer(body: bytes) -> bytes:
            """Cut the first answer for each range."""
            if bytes(body) in cut:
                return body
            cut.add(bytes(body))
            return body[:-1]

        client.answer = answer
        assert np.array_equal(reader["w"].read(), large["w"])
        client.answer = lambda body: body
        client.set(f"run/a.{kind}", MAKERS[kind](files))
        with pytest.raises(errors.GenerationGoneError):
            reader["w"][3].copy()
    same(ckptfmt.load(url))
    with pytest.raises(errors.StorageError, match="archives are only read"):
        ckptfmt.save(f"{url}!/x", TENSORS)
    with pytest.raises(errors.CheckpointNotFoundError, match="no such archive"):
        ckptfmt.open("dict://bucket/run/b.zip!/x")
    assert set(client.objects) == {f"run/a.{kind}"}


# ---- what cannot be read in place, and hostile archives -----------------------------------------


def test_compressed_members(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(files, compress_type=zipfile.ZIP_DEFLATED))
    with pytest.raises(errors.UnsupportedError, match=r"member 'model.index' is compressed"):
        ckptfmt.open(path)
    content = bytearray(zip_of(files))
    at = 0
    while (at := content.find(b"PK\1\2", at)) >= 0:
        content[at + 8] |= 1
        at += 4
    path.write_bytes(content)
    with pytest.raises(errors.UnsupportedError, match=r"member 'model.index' is encrypted"):
        ckptfmt.open(path)
    for mode, name in (("w:gz", "gzip"), ("w:xz", "xz"), ("w:bz2", "bzip2")):
        with tarfile.open(tmp_path / "a.tar", mode) as archive:
            archive.add(path, "x")
        with pytest.raises(errors.UnsupportedError, match=rf"compressed \({name}\)"):
            ckptfmt.open(tmp_path / "a.tar")


def header(name: str, size: int = 0, **given: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in given.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def test_members_of_tar_that_are_no_files(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.tar"
    for given, what in (
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "not a regular file"),
        ({"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}, "a link to what is not there"),
        ({"type": tarfile.FIFOTYPE}, "not a regular file"),
        ({"type": tarfile.GNUTYPE_SPARSE}, "sparse"),
    ):
        path.write_bytes(header("model.index", **given) + bytes(1024))
        with pytest.raises(errors.UnsupportedError, match=f"member 'model.index' is {what}"):
            ckptfmt.open(path)


def test_names_cannot_escape(tmp_path: Path, files: Files, kind: str) -> None:
    """They are looked up, and nothing else: those outside are as if they were not there."""
    (tmp_path / "outside").mkdir()
    for name, data in files.items():
        (tmp_path / "outside" / name).write_bytes(data)
    path = tmp_path / "inside" / f"a.{kind}"
    path.parent.mkdir()
    path.write_bytes(
        MAKERS[kind](
            {
                **below("/abs", files),
                **below("../../up", files),
                **below("a/../../up", files),
                "..": b"",
                ".": b"",
                "run/": b"",
                "run/checkpoint": b'model_checkpoint_path: "../../outside/model"\n',
            }
        )
    )
    for name in (
        str(path),
        f"{path}!/abs/model",
        f"{path}!//abs/model",
        f"{path}!/../outside/model",
        f"{path}!/../../up/model",
        f"{path}!/run",
    ):
        with pytest.raises((errors.CheckpointNotFoundError, errors.InvalidError)):
            ckptfmt.open(name)


def test_members_of_zip_that_overlap(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.zip"
    content = zip_of(files)
    first = content.find(b"PK\1\2")
    second = content.find(b"PK\1\2", first + 1)

    def refused(at: int, layout: str, *values: int) -> str:
        changed = bytearray(content)
        struct.pack_into(layout, changed, at, *values)
        path.write_bytes(changed)
        with pytest.raises(errors.CorruptError) as raised:
            ckptfmt.load(path)
        return str(raised.value)

    assert "overlap" in refused(second + 42, "<L", 0)  # the first's header
    size = len(files["model.data-00000-of-00003"])
    assert "more than there are before the next" in refused(first + 20, "<LL", *[size + 40] * 2)
    assert "no header where" in refused(second + 42, "<L", 9)
    assert "not a sound zip" in refused(second + 42, "<L", len(content))
    assert "not a sound zip" in refused(len(content) - 6, "<L", len(content))


def test_sizes_of_tar_members(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.tar"
    good = tar_of(files)
    path.write_bytes(good[: good.index(files["model.index"]) + 20])
    with pytest.raises((errors.CorruptError, errors.CheckpointNotFoundError)):
        ckptfmt.open(path)
    for size in (-1, -512, -1024, -(1 << 40), 1 << 62):
        path.write_bytes(
            padded(header("x", 3) + b"abc") + header("model.index", size) + bytes(4096)
        )
        with pytest.raises(errors.CkptfmtError) as raised:
            ckptfmt.open(path)
        assert isinstance(raised.value, (errors.CorruptError, errors.CheckpointNotFoundError))
    extended = b"%d size=-512\n" % 13
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        path.write_bytes(
            header("x", len(extended), type=kind)
            + padded(extended)
            + header("model.index", 0)
            + bytes(4096)
        )
        with pytest.raises(errors.CkptfmtError):
            ckptfmt.open(path)
    chain = header("x", 2, type=tarfile.GNUTYPE_LONGNAME) + padded(b"y\0")
    path.write_bytes(chain * 5000 + bytes(1024))
    with pytest.raises(errors.CorruptError, match="recursion"):
        ckptfmt.open(path)


def test_limits(tmp_path: Path, files: Files, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(MAKERS[kind]({f"x{i}": b"" for i in range(20)}))
    monkeypatch.setattr(archives, "MEMBERS_MAX", 19)
    with pytest.raises(errors.LimitError, match="more than 19 members"):
        ckptfmt.open(path)
    monkeypatch.setattr(archives, f"{kind.upper()}_BYTES_MAX", 1000)
    with pytest.raises(errors.LimitError, match="more than 1000 bytes"):
        ckptfmt.open(path)


def test_random_damage(tmp_path: Path, files: Files, kind: str) -> None:
    """Equal arrays or a typed error: never anything else."""
    path = tmp_path / f"a.{kind}"
    good = MAKERS[kind](below("run", files))
    rng = random.Random(int(os.environ["CKPTFMT_TEST_SEED"]))
    spots = [at for at in range(len(good)) if _is_header(good, at, kind)]
    for number in range(300):
        content = bytearray(good)
        if number % 4 == 0:
            del content[rng.randrange(len(content)) :]
        else:
            for _ in range(rng.choice([1, 1, 2, 8])):
                content[rng.choice(spots)] = rng.choice(
                    [0, 1, 0x2D, 0x80, 0xFF, rng.randrange(256)]
                )
        path.write_bytes(content)
        try:
            found = ckptfmt.load(path)
        except errors.CkptfmtError as error:
            assert type(error) is not errors.StorageError
            continue
        same(found)


def _is_header(content: bytes, at: int, kind: str) -> bool:
    if kind == "tar":
        return at % 512 < 160 and bool(content[at - at % 512 + 257 :].startswith(b"ustar"))
    return at >= content.find(b"PK\1\2") or b"PK\3\4" in content[max(at - 60, 0) : at + 4]
