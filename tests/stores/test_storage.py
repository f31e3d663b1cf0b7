# SPDX-License-Identifier: Apache-2.0
"""The storage seam in Python: handles over a store in a dict."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.dict_store import DictStore

from ckptfmt import _core, errors
from ckptfmt._base.arrays import Sources
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle.codec import Zstd

PREFIX = "s3://bucket/run/model"
ARRAY = np.arange(1000, dtype=np.float32)


def write(store: DictStore, prefix: str = PREFIX, **arrays: np.ndarray) -> None:
    writer = _core.WriterHandle(prefix, SaveOptions(), store=store)
    with contextlib.closing(writer):
        sources = Sources()
        for name, array in (arrays or {"w": ARRAY}).items():
            sources.add(name.encode(), array, None)
        table, owners = sources.table()
        writer.add(table)
        del owners
        writer.commit()


@contextlib.contextmanager
def reader(store: DictStore, prefix: str = PREFIX) -> Iterator[_core.ReaderHandle]:
    handle = _core.ReaderHandle(prefix, None, True, Zstd(), store)
    with contextlib.closing(handle):
        yield handle


def read(handle: _core.ReaderHandle, name: bytes = b"w", like: np.ndarray = ARRAY) -> np.ndarray:
    array = np.zeros_like(like)
    handle.read_one(handle.select_one(name), 0, None, array, _core.VERIFY["full"])
    return array


def test_write_and_read() -> None:
    store = DictStore()
    write(store)
    assert sorted(store.objects) == [f"{PREFIX}.data-00000-of-00001", f"{PREFIX}.index"]
    with reader(store) as handle:
        assert handle.names() == ["w"]
        assert np.array_equal(read(handle), ARRAY)
    assert not [path for path in store.objects if "temp" in path]


def test_a_replaced_object_is_noticed() -> None:
    store = DictStore()
    write(store)
    assert _core.index_count(f"{PREFIX}.index", store) == 1
    write(store, w=ARRAY * 2)
    assert _core.index_count(f"{PREFIX}.index", store) == 2


def test_verify() -> None:
    store = DictStore()
    write(store)
    store.objects[f"{PREFIX}.data-00000-of-00001"].data[5] ^= 1
    found = _core.verify(PREFIX, None, True, None, Zstd(), store).findings
    assert [finding.error.failure for finding in found] == ["CHECKSUM"]


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["info", "list", "open", "create", "append", "finish"])
def test_an_error_of_the_system_is_a_storage_error(method: str) -> None:
    store = DictStore()
    write(store)
    store.failing[method] = [PermissionError(errno.EACCES, "access denied by policy")] * 9
    with pytest.raises(errors.StorageError, match="access denied by policy") as raised:
        write(store, w=ARRAY * 2)
    assert raised.value.errno == errno.EACCES
    assert raised.value.path is not None and raised.value.path.startswith("s3://bucket/run")
    store.failing.clear()
    with reader(store) as handle:
        assert np.array_equal(read(handle), ARRAY)


def test_a_failed_read_is_not_damage() -> None:
    store = DictStore()
    write(store)
    with reader(store) as handle:
        store.failing["read_batch"] = [TimeoutError(errno.ETIMEDOUT, "no answer for 30 s")]
        with pytest.raises(errors.StorageError, match="no answer for 30 s"):
            read(handle)
        assert np.array_equal(read(handle), ARRAY)


def test_errors_of_ours_keep_their_class() -> None:
    store = DictStore()
    write(store)
    with reader(store) as handle:
        gone = errors.GenerationGoneError("the object was replaced")
        store.failing["read_batch"] = [gone]
        with pytest.raises(errors.GenerationGoneError, match="the object was replaced"):
            read(handle)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TypeError])
@pytest.mark.parametrize("method", ["open", "read_batch"])
def test_other_exceptions_pass_through(method: str, kind: type[BaseException]) -> None:
    store = DictStore()
    write(store)
    store.failing[method] = [kind("stop")]
    with pytest.raises(kind, match="stop"), reader(store) as handle:
        read(handle)


def test_an_interrupt_that_the_call_survives_is_raised() -> None:
    store = DictStore()
    write(store)
    store.failing["remove"] = [KeyboardInterrupt("stop")]
    with pytest.raises(KeyboardInterrupt, match="stop"):
        write(store, w=ARRAY * 2)
    with reader(store) as handle:
        assert np.array_equal(read(handle), ARRAY * 2), "the commit was over"


def test_an_interrupt_is_raised_in_the_main_thread() -> None:
    store = DictStore()
    write(store)
    with reader(store) as handle, ThreadPoolExecutor(1) as pool:
        assert handle.storage is not None
        handle.storage.failed(KeyboardInterrupt("stop"))
        with pytest.raises(errors.StorageError):
            pool.submit(read, handle).result()
        with pytest.raises(KeyboardInterrupt, match="stop"):
            read(handle)
        assert np.array_equal(read(handle), ARRAY)


def test_no_memory() -> None:
    store = DictStore()
    store.failing["open"] = [MemoryError()]
    with pytest.raises(MemoryError), reader(store):
        pass


def test_a_short_object_is_truncated() -> None:
    store = DictStore()
    write(store)
    del store.objects[f"{PREFIX}.data-00000-of-00001"].data[100:]
    with pytest.raises(errors.CorruptError), reader(store) as handle:
        read(handle)


# ---- lifetimes ----------------------------------------------------------------------------------


def test_an_abandoned_writer_leaves_nothing() -> None:
    store = DictStore()
    writer = _core.WriterHandle(PREFIX, SaveOptions(), store=store)
    assert store.objects
    del writer
    assert not store.objects


def test_readers_close_what_they_opened() -> None:
    store = DictStore()
    write(store)
    opened, closed = store.calls["open"], store.calls["close"]
    with reader(store) as handle:
        read(handle)
    del handle
    assert store.calls["open"] - opened == store.calls["close"] - closed > 0


def test_many_threads() -> None:
    store = DictStore()
    write(store, **{f"w{i}": ARRAY + i for i in range(8)})
    with reader(store) as handle:

        def work(number: int) -> bool:
            found = [read(handle, b"w%d" % number) for _ in range(20)]
            return all(np.array_equal(one, ARRAY + number) for one in found)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [True] * 8
