# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt clean` of a store: what killed writers left, by its age. tests/peers/test_s3.py has the
property on an S3 server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore
from support.dict_client import DictClient, mount
from support.leftovers import HOURS, STEPS, check_killed_writers, save
from support.strategies import property_test

import ckptfmt
from ckptfmt import errors
from ckptfmt.stores import obstore_client
from ckptfmt.stores.leftovers import leftovers, remove_leftovers

URL = "dict://bucket/run"
HOUR = 3600.0
LEFT = ("m.data-00000-of-00002", "m.data-00001-of-00002")


@property_test(20, 3000, STEPS, HOURS)
def test_killed_writers(steps: Any, hours: list[float]) -> None:
    client = obstore_client.client(MemoryStore())
    check_killed_writers(client, "memory://", "memory://run/", steps, hours)


@pytest.mark.parametrize("number", range(16))
def test_killed_at_each_request(number: int) -> None:
    """Of a writer that finds its name taken, because a listing is late."""
    client = obstore_client.client(MemoryStore())
    saves = [("a", save, 1, killed, late, 1.0) for killed, late in ((None, 0), (6, 0), (number, 1))]
    check_killed_writers(client, "memory://", "memory://run/", saves, [0.5, 1.5])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[DictClient]:
    """Two data files that are left, and a checkpoint."""
    client = mount(monkeypatch)
    ckptfmt.save(f"{URL}/other", {"w": np.ones(3)})
    for name in LEFT:
        client.set(f"run/{name}", b"")
    for key in client.times:
        client.times[key] = time.time() - 2 * HOUR
    yield client


def commit(client: DictClient) -> None:
    """The writer was alive: an index that names the data files."""
    ckptfmt.save("memory://leftovers/m", {"v": np.ones(3), "w": np.ones(3)}, shards=2)
    with ckptfmt.open("memory://leftovers/m") as reader:
        assert reader.header.num_shards == 2
    store = ckptfmt.stores.store_for("memory://leftovers/m")
    index = b"".join(store.client.tail("leftovers/m.index", 1 << 20).chunks)
    client.set("run/m.index", index)


def rewrite(client: DictClient) -> None:
    """Another cleaner removed them, and another writer took the name."""
    client.set(f"run/{LEFT[1]}", b"")


def vanish(client: DictClient) -> None:
    del client.objects[f"run/{LEFT[0]}"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [(commit, None), (rewrite, errors.BusyError), (vanish, errors.BusyError)],
)
def test_what_changes_before_it_is_removed(
    client: DictClient, change: Callable[[DictClient], None], problem: type | None
) -> None:
    lists = 0

    def before(method: str, key: str) -> None:
        nonlocal lists
        lists += method == "list"
        if method == "list" and lists == 2:
            change(client)

    client.before = before
    found = remove_leftovers(URL, HOUR)
    assert {type(one.problem) for one in found} == ({problem} if problem else set())
    assert "remove" not in client.count()


def test_an_index_that_cannot_be_read_now(client: DictClient) -> None:
    def before(method: str, key: str) -> None:
        if key == "run/m.index":
            raise OSError(5, "not now")

    client.before = before
    found = remove_leftovers(URL, HOUR)
    assert [one.url for one in found] == [f"{URL}/{name}" for name in LEFT]
    assert {type(one.problem) for one in found} == {errors.StorageError}
    assert "remove" not in client.count()


def test_one_object_that_cannot_be_removed(client: DictClient) -> None:
    def before(method: str, key: str) -> None:
        if method == "remove" and key.endswith(LEFT[0]):
            raise PermissionError(13, "denied")

    client.before = before
    first, second = remove_leftovers(URL, HOUR)
    assert isinstance(first.problem, errors.StorageError) and second.problem is None
    assert f"run/{LEFT[0]}" in client.objects and f"run/{LEFT[1]}" not in client.objects


def test_an_age_is_never_guessed(client: DictClient) -> None:
    client.times["run/other.index"] = None  # of no interest
    assert len(leftovers(URL, HOUR)) == 2
    client.times[f"run/{LEFT[1]}"] = None
    with pytest.raises(errors.UnsupportedError):
        leftovers(URL, HOUR)


def test_times_of_the_future_are_young(client: DictClient) -> None:
    client.times[f"run/{LEFT[1]}"] = time.time() + HOUR
    assert not leftovers(URL, HOUR)


@pytest.mark.parametrize("older_than", [0, -1.0, float("nan")])
def test_an_age_is_positive(client: DictClient, older_than: float) -> None:
    with pytest.raises(errors.InvalidError) as raised:
        leftovers(URL, older_than)
    assert raised.value.argument == "older_than" and not client.requests[8:]


def test_a_directory_that_does_not_exist(client: DictClient) -> None:
    with pytest.raises(errors.StorageError):
        leftovers(f"{URL}/m", HOUR)


def test_the_top_of_a_store(client: DictClient) -> None:
    client.set(LEFT[0], b"")
    client.times[LEFT[0]] = 0.0
    assert [one.url for one in leftovers("dict://bucket", HOUR)] == [f"dict://bucket/{LEFT[0]}"]
