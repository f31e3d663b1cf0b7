# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in an object store: requests, faults, and commits, over a store in a dict."""

from __future__ import annotations

import errno
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import DictClient, mount

import ckptfmt
from ckptfmt import errors
from ckptfmt.cli import main
from ckptfmt.files.folder import split
from ckptfmt.sharded.coordinator import SingleProcess
from ckptfmt.stores import objects, waiting
from ckptfmt.stores.client import BodyError

URL = "dict://bucket/run/model"
SMALL = {"w": np.arange(1000, dtype=np.float32), "b": np.ones((7, 3)), "s": np.array([b"x", b""])}
MIB = 1 << 20
LARGE = {"w": np.random.default_rng(1).integers(0, 255, (40, MIB // 8), np.uint8)}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[DictClient]:
    monkeypatch.setattr(waiting, "PAUSE", 0)
    monkeypatch.setattr(objects, "PART_BYTES", MIB)
    monkeypatch.setattr(objects, "SMALL_BYTES", MIB)
    yield mount(monkeypatch)


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == sorted(wanted)
    for name, array in wanted.items():
        assert np.array_equal(found[name], array)


def keys(client: DictClient) -> list[str]:
    return sorted(key.removeprefix("run/") for key in client.objects)


# ---- reading ------------------------------------------------------------------------------------


def test_save_and_load(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL, metadata={"step": 3})
    assert keys(client) == ["model.data-00000-of-00001", "model.index"]
    same(ckptfmt.load(URL), SMALL)
    assert ckptfmt.verify(URL).ok
    with ckptfmt.open(URL) as reader:
        assert reader.metadata == {"step": 3}
        assert reader.prefix == URL


def test_a_new_directory_and_its_names(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    for path in (URL, f"{URL}.index", f"{URL}.data-00000-of-00001", "dict://bucket/run"):
        same(ckptfmt.load(path), SMALL)
    with pytest.raises(errors.CheckpointNotFoundError, match="the directory holds 'model'"):
        ckptfmt.open("dict://bucket/run/mod")
    with pytest.raises(errors.CheckpointNotFoundError, match="no directory"):
        ckptfmt.open("dict://bucket/nowhere/model")


def test_opening_reads_the_index_by_one_request(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    client.requests.clear()
    with ckptfmt.open(URL) as reader:
        assert list(reader) == ["b", "s", "w"]
    assert client.count() == {"get": 1, "head": 1}, "the second: is it still the same?"


def test_one_listing_describes_many_data_files(client: DictClient) -> None:
    ckptfmt.save(URL, {f"w{i}": np.ones(100) for i in range(9)}, shards=8)
    client.requests.clear()
    assert len(ckptfmt.load(URL)) == 9
    assert client.count()["list"] == 1
    assert {key for method, key in client.requests if method == "head"} == {"run/model.index"}
    # A late listing lacks some.
    listed = client.list_after
    client.list_after = lambda *given: iter(list(listed(*given))[:5])  # type: ignore[method-assign]
    assert len(ckptfmt.load(URL)) == 9


def test_a_slice_takes_few_requests_and_bytes(client: DictClient) -> None:
    ckptfmt.save(URL, LARGE)
    with ckptfmt.open(URL) as reader:
        assert reader["w"].partial_reads_verified
        client.requests.clear()
        client.received = 0
        assert np.array_equal(reader["w"][17], LARGE["w"][17])
    assert len(client.requests) <= 3 and client.received <= 2 * MIB


def test_large_arrays(client: DictClient) -> None:
    ckptfmt.save(URL, LARGE)
    same(ckptfmt.load(URL), LARGE)
    assert [upload.state for upload in client.uploads] == ["closed"]
    assert ckptfmt.verify(URL).ok


def test_ranges_of_one_batch() -> None:
    """Neighbours are one request, and a long range is several."""
    client = DictClient()
    data = np.random.default_rng(2).integers(0, 255, 40 * MIB, np.uint8).tobytes()
    client.set("x.data-00000-of-00001", data)
    store = objects.Objects("dict://", client)
    opened, info = store.open("dict://x.data-00000-of-00001") or (None, None)
    assert info is not None and info.size == len(data)
    ranges = [(5, 10), (0, 3), (100, 200), (3 * MIB, 20 * MIB), (3 * MIB + 7, 9), (len(data), 5)]
    memories = [memoryview(bytearray(size)) for _, size in ranges]
    client.requests.clear()
    got = store.read_batch(
        [
            objects.Read(opened, offset, memory)
            for (offset, _), memory in zip(ranges, memories, strict=True)
        ]
    )
    assert list(got) == [10, 3, 200, 20 * MIB, 9, 0]
    for (offset, size), memory in zip(ranges, memories, strict=True):
        assert bytes(memory[: len(data) - offset]) == data[offset : offset + size]
    assert client.count() == {"get": 3}


# ---- faults while reading -----------------------------------------------------------------------


def test_a_short_body_is_requested_again(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    answers = iter([True, False, False] * 100)
    client.answer = lambda body: body[:-1] if next(answers) else body
    same(ckptfmt.load(URL), SMALL)


def test_bodies_that_stay_short_are_no_damage(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    with ckptfmt.open(URL) as reader:
        client.answer = lambda body: body[:-1]
        with pytest.raises(errors.StorageError, match="lacks 1 of its bytes") as raised:
            reader["w"].read()
        assert not isinstance(raised.value, errors.CorruptError)
        client.answer = lambda body: body
        assert np.array_equal(reader["w"].read(), SMALL["w"])


def test_a_stalled_body_is_requested_again(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    failures = [BodyError(errno.EIO, "timed out")] * 2

    def before(method: str, key: str) -> None:
        if method == "get" and failures:
            raise failures.pop()

    client.before = before
    same(ckptfmt.load(URL), SMALL)
    assert not failures


def test_a_replaced_checkpoint_is_noticed(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    with ckptfmt.open(URL) as reader:
        ckptfmt.save(URL, {"w": np.zeros(1000, np.float32)})
        with pytest.raises(errors.GenerationGoneError, match="replaced or removed"):
            reader["w"].read()
    key = "run/model.data-00000-of-00002"
    with ckptfmt.open(URL) as reader:
        assert not reader["w"].read().any()
        client.set(key, client.objects[key][0])
        with pytest.raises(errors.GenerationGoneError):
            reader["w"].read()


@pytest.mark.parametrize("command", ["verify", "digest"])
def test_a_replaced_checkpoint_is_not_called_damaged(command: str, client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)

    def before(method: str, key: str) -> None:
        if ".data-" in key:
            client.set(key, client.objects[key][0])

    client.before = before
    assert main([command, URL]) == 2


# ---- writing ------------------------------------------------------------------------------------


def test_the_index_is_written_last(client: DictClient) -> None:
    ckptfmt.save(URL, LARGE, shards=2)
    written = [key for method, key in client.requests if method in ("put", "complete")]
    assert written[-1] == "run/model.index"
    assert written.count("run/model.index") == 1
    assert "copy" not in client.count()


def test_overwriting(client: DictClient) -> None:
    ckptfmt.save(URL, SMALL)
    ckptfmt.save(URL, LARGE)
    assert keys(client) == ["model.data-00000-of-00002", "model.data-00001-of-00002", "model.index"]
    same(ckptfmt.load(URL), LARGE)
    ckptfmt.save(URL, SMALL, base=URL)
    same(ckptfmt.load(URL), SMALL)


def test_an_abandoned_writer_leaves_nothing(client: DictClient) -> None:
    writer = ckptfmt.Writer(URL)
    writer.add("w", LARGE["w"])
    assert client.objects, "an empty object reserves the name"
    writer.abandon()
    assert not client.objects
    assert [upload.state for upload in client.uploads] == ["aborted"]


@pytest.mark.parametrize("number", range(12))
def test_a_request_that_fails_leaves_the_old_checkpoint(client: DictClient, number: int) -> None:
    """And a killed writer is one that can remove nothing either."""
    ckptfmt.save(URL, SMALL)
    client.requests.clear()
    killed = False

    def before(method: str, key: str) -> None:
        nonlocal killed
        killed = killed or len(client.requests) > number
        if killed:
            raise ConnectionError(errno.ECONNRESET, "killed")

    client.before = before
    try:
        ckptfmt.save(URL, LARGE)
    except errors.StorageError as error:
        assert "killed" in str(error)
    client.before = lambda method, key: None
    found = ckptfmt.load(URL)
    same(found, SMALL if len(found) > 1 else LARGE)
    # What is left does not hinder the next.
    ckptfmt.save(URL, LARGE)
    same(ckptfmt.load(URL), LARGE)


def test_two_writers_at_a_time(client: DictClient) -> None:
    """Each has names of its own; the last to commit is in force."""
    one, other = ckptfmt.Writer(URL), ckptfmt.Writer(URL)
    one.add("w", LARGE["w"])
    other.add("w", LARGE["w"] + 1)
    one.commit()
    other.commit()
    assert np.array_equal(ckptfmt.load(URL)["w"], LARGE["w"] + 1)
    assert ckptfmt.verify(URL).ok
    third, fourth = ckptfmt.Writer(URL), ckptfmt.Writer(URL)
    third.add("x", SMALL["w"])
    fourth.add("x", SMALL["b"])
    fourth.commit()
    third.commit()
    assert np.array_equal(ckptfmt.load(URL)["x"], SMALL["w"])
    assert ckptfmt.verify(URL).ok


def test_equal_data_of_another_writer_are_not_ours(client: DictClient) -> None:
    """A writer that fails removes its own data files, and no others."""
    one, other = ckptfmt.Writer(URL), ckptfmt.Writer(URL)
    one.add("w", SMALL["w"])
    other.add("w", SMALL["w"])
    one.commit()

    def before(method: str, key: str) -> None:
        if method == "put" and key == "run/model.index":
            raise ConnectionError(errno.ECONNRESET, "connection reset")

    client.before = before
    with pytest.raises(errors.StorageError, match="connection reset"):
        other.commit()
    client.before = lambda method, key: None
    assert np.array_equal(ckptfmt.load(URL)["w"], SMALL["w"])


def test_a_commit_after_the_look_is_never_overwritten(client: DictClient) -> None:
    """Another writer commits before each request in turn. Unless the index is opened once more
    after that, the save is refused."""
    look, commit = ("get", "run/model.index"), ("put", "run/model.index")
    other = {"other": np.arange(5)}
    refused = 0
    for number in itertools.count():
        client.objects.clear()
        ckptfmt.save(URL, SMALL)
        client.requests.clear()
        seen = 0

        def before(method: str, key: str, number: int = number) -> None:
            nonlocal seen
            if len(client.requests) == number + 1:
                client.before = lambda method, key: None
                ckptfmt.save(URL, other)
                seen = len(client.requests)

        client.before = before
        busy = False
        try:
            ckptfmt.save(URL, SMALL)
        except errors.BusyError:
            busy = True
        if not seen:
            break
        rest = [client.requests[number], *client.requests[seen:]]
        before_commit = rest[: rest.index(commit)] if commit in rest else [look]
        assert busy == (look not in before_commit), rest
        same(ckptfmt.load(URL), SMALL if commit in rest and not busy else other)
        assert ckptfmt.verify(URL).ok
        refused += busy
    assert refused >= 3


def test_a_put_whose_answer_was_lost_is_a_commit(client: DictClient) -> None:
    put = client.put

    def lose(key: str, data: bytes, replaces: str | None) -> str:
        etag = put(key, data, replaces)
        if key.endswith(".index"):
            raise ConnectionError(errno.ECONNRESET, "connection reset")
        return etag

    client.put = lose  # type: ignore[method-assign]
    ckptfmt.save(URL, SMALL)
    client.put = put  # type: ignore[method-assign]
    same(ckptfmt.load(URL), SMALL)


def test_an_interrupt_before_the_commit_leaves_nothing(client: DictClient) -> None:
    """At each request but the commit itself; afterwards, removing works as before."""
    ckptfmt.save(URL, SMALL)
    there = set(client.objects)
    at = 0
    while True:
        client.requests.clear()

        def before(method: str, key: str, at: int = at) -> None:
            if len(client.requests) == at + 1 and method not in ("remove", "abort"):
                raise KeyboardInterrupt

        client.before = before
        try:
            ckptfmt.save(URL, LARGE)
            break
        except KeyboardInterrupt:
            interrupted = client.requests[at]
        finally:
            client.before = lambda method, key: None
        same(ckptfmt.load(URL), SMALL)
        if interrupted == ("put", "run/model.index"):
            break
        assert set(client.objects) == there, interrupted
        at += 1
    assert at > 10


# ---- what is built on it ------------------------------------------------------------------------


def test_merge(client: DictClient) -> None:
    ckptfmt.save(f"{URL}-0", {"a": np.arange(5)})
    ckptfmt.save(f"{URL}-1", LARGE)
    wanted = {"a": np.arange(5), **LARGE}
    client.requests.clear()
    client.received = 0
    ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL)
    assert client.count()["copy"] == 2 and client.received < MIB, "no data come by here"
    same(ckptfmt.load(URL), wanted)
    ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL, inputs="consume")
    same(ckptfmt.load(URL), wanted)
    assert all(key.startswith("model.") for key in keys(client))


def test_a_merge_of_what_a_store_does_not_copy(
    client: DictClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects beyond the limit of one copy pass through this process, also over an older result."""
    ckptfmt.save(f"{URL}-0", {"a": np.arange(5)})
    ckptfmt.save(f"{URL}-1", LARGE)
    wanted = {"a": np.arange(5), **LARGE}
    sizes = sorted(len(data) for key, (data, _) in client.objects.items() if ".data-" in key)
    for limit in (sizes[1], sizes[1] - 1, sizes[0] - 1):
        monkeypatch.setattr(objects, "COPY_BYTES_MAX", limit)
        copied: list[int] = []

        def before(method: str, key: str, copied: list[int] = copied) -> None:
            if method == "copy":
                copied.append(len(client.objects[key][0]))

        client.before = before
        ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL)
        assert max(copied, default=0) <= limit
        same(ckptfmt.load(URL), wanted)


def test_a_merge_that_is_killed_anywhere_can_be_repeated(client: DictClient) -> None:
    number = 0
    finished = False
    while not finished:
        client.objects.clear()
        ckptfmt.save(f"{URL}-0", {"a": np.arange(5)})
        ckptfmt.save(f"{URL}-1", {"b": np.arange(6)})
        client.requests.clear()

        def before(method: str, key: str, number: int = number) -> None:
            if len(client.requests) > number:
                raise ConnectionError(errno.ECONNRESET, "killed")

        client.before = before
        try:
            ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL, inputs="consume")
            finished = len(client.requests) <= number
        except errors.StorageError:
            pass
        client.before = lambda method, key: None
        if not finished:
            ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL, inputs="consume")
        same(ckptfmt.load(URL), {"a": np.arange(5), "b": np.arange(6)})
        assert ckptfmt.verify(URL).ok
        assert not [key for key in keys(client) if key.startswith("model-")]
        number += 1
    assert number > 10


def test_equal_contents_are_two_objects(client: DictClient, tmp_path: Path) -> None:
    """S3's etags are checksums of the content."""
    put = client.set

    def set_by_content(key: str, data: bytes) -> None:
        put(key, data)
        client.objects[key] = data, f"md5-{zlib.crc32(data)}"

    client.set = set_by_content  # type: ignore[method-assign]
    for name in ("a", "b", "c"):
        ckptfmt.save(f"{URL}-{name}", SMALL)
    ckptfmt.merge([f"{URL}-a"], f"{URL}-b")
    for _ in range(2):
        ckptfmt.convert(f"{URL}-a", f"{URL}-d")
    with pytest.raises(errors.MergeConflictError):
        ckptfmt.merge([f"{URL}-a", f"{URL}-c"], f"{URL}-e")
    for name in ("a", "b", "c", "d"):
        same(ckptfmt.load(f"{URL}-{name}"), SMALL)


def test_merge_between_stores_is_refused(client: DictClient, tmp_path: Path) -> None:
    ckptfmt.save(URL, SMALL)
    with pytest.raises(errors.InvalidError, match="in one store"):
        ckptfmt.merge([URL], tmp_path / "m")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_convert(client: DictClient, tmp_path: Path, compression: str | None) -> None:
    ckptfmt.save(tmp_path / "m", SMALL | LARGE)
    ckptfmt.convert(tmp_path / "m", URL, compression=compression)
    assert all(key.startswith("model.") for key in keys(client))
    ckptfmt.convert(URL, tmp_path / "back")
    same(ckptfmt.load(tmp_path / "back"), SMALL | LARGE)


def test_saver(client: DictClient) -> None:
    policy = ckptfmt.tf.MaxShardSizePolicy(max_shard_size=4000)
    for options in (None, ckptfmt.tf.CheckpointOptions(experimental_sharding_callback=policy)):
        saver = ckptfmt.Saver({"o": SMALL})
        assert saver.save(URL, options) == URL
        same(ckptfmt.load(URL), SMALL)
        assert all(key.startswith("model.") for key in keys(client))


def test_save_async(client: DictClient) -> None:
    assert ckptfmt.save_async(URL, SMALL).result() == URL
    same(ckptfmt.load(URL), SMALL)


def test_checkpoint(client: DictClient) -> None:
    one = ckptfmt.Checkpoint(w=np.arange(5.0))
    path = one.save("dict://bucket/run/ckpt")
    assert path == "dict://bucket/run/ckpt-1"
    assert one.save("dict://bucket/run/ckpt") == "dict://bucket/run/ckpt-2"
    assert (
        ckptfmt.tf.get_checkpoint_state("dict://bucket/run").model_checkpoint_path[-6:] == "ckpt-2"
    )
    other = ckptfmt.Checkpoint(w=np.zeros(5))
    other.restore("dict://bucket/run").assert_consumed()
    assert other.w.tolist() == [0, 1, 2, 3, 4]


def test_another_format_in_a_store(client: DictClient) -> None:
    """What reads and writes it works on paths."""
    head = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    client.set("run/x.safetensors", len(head).to_bytes(8, "little") + head + bytes(4))
    for path in ("dict://bucket/run/x.safetensors", "dict://bucket/run"):
        with pytest.raises(errors.CheckpointNotFoundError) as raised:
            ckptfmt.load(path)
        assert path.endswith("run") or "Download it first" in str(raised.value)
    with pytest.raises(errors.InvalidError, match="upload what that writes"):
        ckptfmt.save("dict://bucket/run/y.safetensors", SMALL)


def test_trees(client: DictClient) -> None:
    tree = {"layers": [{"w": np.ones(3)}, {"w": np.zeros(2)}], "step": 3}
    ckptfmt.save_tree(URL, tree)
    assert ckptfmt.load_tree(URL)["layers"][0]["w"].tolist() == [1, 1, 1]


def save_sharded() -> ckptfmt.sharded.Layout:
    mesh = ckptfmt.sharded.Mesh({"x": 2}, devices=["a", "b"])
    layout = ckptfmt.sharded.Layout(["x"], mesh)
    local = {"a": np.arange(2), "b": np.arange(2, 4)}
    ckptfmt.sharded.save(URL, {"w": local}, {"w": layout}, SingleProcess())
    same(ckptfmt.load(URL), {"w": np.arange(4)})
    return layout


def test_sharded(client: DictClient) -> None:
    found = ckptfmt.sharded.restore(URL, {"w": save_sharded()}, SingleProcess())
    assert found["w"]["b"].tolist() == [2, 3]
    assert all(key.startswith("model.") for key in keys(client))


def test_parts_that_cannot_be_removed_fail_no_save(client: DictClient) -> None:
    """The checkpoint is in place: what stays is removed by hand, as after a kill. An input of a
    merge that the caller asked to remove is an error."""

    def before(method: str, key: str) -> None:
        if method == "remove" and ("_temp_" in key or key.endswith("/part.index")):
            raise PermissionError(errno.EACCES, "denied", key)

    client.before = before
    save_sharded()
    ckptfmt.save(f"{URL}/part", SMALL)
    with pytest.raises(ckptfmt.StorageError) as caught:
        ckptfmt.merge([f"{URL}/part"], f"{URL}/whole", inputs="consume")
    assert (caught.value.failure, caught.value.errno) == ("NOT_REMOVED", errno.EACCES)
    same(ckptfmt.load(f"{URL}/whole"), SMALL)
    client.before = lambda method, key: None
    ckptfmt.merge([f"{URL}/part"], f"{URL}/whole", inputs="consume")
    assert not [key for key in keys(client) if "/part." in key and "_temp_" not in key]


def test_only_the_creator_removes_the_parts_of_a_save(client: DictClient) -> None:
    """A store has no locks that show whether another process writes or merges parts."""
    folder, name = split(URL)
    creator = folder.temporary(name)
    other = folder.temporary(name, creator.token)
    client.set(f"run/model_temp_{creator.token}/part", b"x")
    other.leave()
    assert keys(client) == [f"model_temp_{creator.token}/part"]
    creator.leave()
    assert keys(client) == []
