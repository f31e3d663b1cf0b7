# SPDX-License-Identifier: Apache-2.0
"""Writers that are killed at any request of a store, whose clock is the test's, and what `clean`
does afterwards."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

import ckptfmt
from ckptfmt import errors, stores
from ckptfmt.saving.saver import Saver
from ckptfmt.sharded.coordinator import SingleProcess
from ckptfmt.stores import leftovers, objects
from ckptfmt.stores.leftovers import Leftover, remove_leftovers

from .strategies import counted

# Objects of other programs, of TensorFlow, and of a checkpoint that cannot be read.
FOREIGN = (
    *("notes.txt", "a.data-00000-of-00001.bak", "c.data-00003-of-00002", "a.tempstate0123"),
    *("deep/below.data-00000-of-00002", "deep/b.index.tempstatea000000000000000"),
    *(".data-00000-of-00001", "a_temp_0/part-00000-of-00001.index"),
    *("b_temp_0000000000000000/notes.txt", "b_temp_0000000000000000/part-00000-of-00001.index"),
    *("b_temp_1111111111111111/part-00000-of-00001", "b_temp_2222222222222222/deep/part"),
    "b_temp_2222222222222222/part-00000-of-00001.index",
    *("tf_temp/part-00000-of-00001.index", "tf.data-00000-of-00001"),
    *("old.index.tempstate12345", "old.index.tempstatea000000000000000", "old.data-00000-of-00002"),
)
DAMAGED = ("damaged.index", "damaged.data-00000-of-00001")


class KilledWriters:
    """A Client over another one. Its listings have the times of the clock of the test.

    Attributes:
        hours: the clock.
        times: when each object was written.
        left: how many requests are carried out before the process is dead, None for all.
        late: whether listings lack all objects.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.hours = 0.0
        self.times: dict[str, float] = {}
        self.left: int | None = None
        self.late = False

    def __getattr__(self, name: str) -> Any:
        return self._alive(getattr(self._client, name))

    def key(self, rest: str) -> str:
        return str(self._client.key(rest))

    def _alive(self, call: Callable[..., Any], written: str | None = None) -> Any:
        def request(*given: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise ConnectionError(errno.ECONNRESET, "killed")
            answer = call(*given)
            if written is not None:
                self.times[written] = self.hours
            return answer

        return request

    def put(self, key: str, data: bytes, replaces: str | None) -> Any:
        return self._alive(self._client.put, key)(key, data, replaces)

    def copy(self, source: str, target: str) -> None:
        self._alive(self._client.copy, target)(source, target)

    def upload(self, key: str) -> Any:
        upload = self._alive(self._client.upload)(key)
        close = self._alive(upload.close, key)
        return mock.Mock(write=self._alive(upload.write), close=close, abort=upload.abort)

    def remove(self, key: str) -> None:
        self._alive(self._client.remove)(key)
        self.times.pop(key, None)

    def list(self, directory: str) -> Any:
        files, directories = self._alive(self._client.list)(directory)
        start = f"{directory}/" if directory else ""
        shown = [] if self.late else files
        return {name: self.times[start + name] * 3600 for name in shown}, directories


@contextlib.contextmanager
def mounted(client: Any, url: str) -> Iterator[KilledWriters]:
    """Mount a client over `client` at `url`, small objects of which are large."""
    writers = KilledWriters(client)
    with (
        mock.patch.dict(stores._mounted, {url: writers}),
        mock.patch.object(objects, "SMALL_BYTES", 1000),
        mock.patch.object(leftovers.time, "time", lambda: writers.hours * 3600),
    ):
        yield writers


# ---- writers


def save(prefix: str, tensors: dict[str, Any], shards: int) -> None:
    ckptfmt.save(prefix, tensors, shards=shards)


def _saver(prefix: str, tensors: dict[str, Any], shards: int) -> None:
    """Parts in a temporary directory, and a merge of them."""
    policy = ckptfmt.tf.MaxShardSizePolicy(max_shard_size=12_000 // shards)
    options = ckptfmt.tf.CheckpointOptions(experimental_sharding_callback=policy)
    Saver({None: tensors}).save(prefix, options)


def _sharded(prefix: str, tensors: dict[str, Any], shards: int) -> None:
    layouts = dict.fromkeys(tensors)
    ckptfmt.sharded.save(prefix, tensors, layouts, SingleProcess())


WRITERS = [save, _saver, _sharded]
STEPS = st.lists(
    st.tuples(
        st.sampled_from("aab"),  # prefix
        st.sampled_from(WRITERS),
        st.integers(1, 3),  # shards
        st.none() | st.integers(0, 40),  # requests until the writer is killed
        st.sampled_from([False, False, True]),  # whether listings are late
        st.sampled_from([0.0, 1.0, 5.0]),  # hours that pass then
    ),
    min_size=1,
    max_size=4,
)
HOURS = st.lists(st.sampled_from([0.5, 1.0, 3.0, 6.0, 20.0]), min_size=1, max_size=3)


# ---- what must hold


def _in_force(url: str) -> dict[str, int]:
    found = {}
    for prefix in "ab":
        with contextlib.suppress(errors.CheckpointNotFoundError), ckptfmt.open(url + prefix) as at:
            found[prefix] = at.header.num_shards
    return found


def _left(names: dict[str, float], in_force: dict[str, int], newest: float) -> set[str]:
    """What of these objects is left by writers: all that no checkpoint uses, of groups that are
    old. Says it of the names that the writers of this module give."""
    groups: dict[str, dict[str, float]] = {}
    for name, hours in names.items():
        final = re.sub(r"\.tempstate[a-f]\w{15}$", "", name)
        owner = name.partition("/")[0] if "/" in name else re.sub(r"data-\d+", "", final)
        groups.setdefault(owner, {})[name] = hours
    used = {f"{prefix}.index" for prefix in in_force}
    used |= {f"{prefix}.merge-intent" for prefix in in_force}
    used |= {
        f"{prefix}.data-{shard:05d}-of-{count:05d}"
        for prefix, count in in_force.items()
        for shard in range(count)
    }
    old = [group for group in groups.values() if max(group.values()) <= newest]
    return {name for group in old for name in group} - used


def check_killed_writers(client: Any, root: str, url: str, steps: Any, hours: list[float]) -> None:
    """Save, also with writers that are killed, then clean."""
    with mounted(client, root) as writers:
        start = writers.key(url.removeprefix(root)) + "/"
        for name in (*FOREIGN, *DAMAGED):
            writers.put(start + name, b"of others", None)
        wanted: dict[str, list[Any]] = {"a": [None], "b": [None]}
        for number, (prefix, write, shards, left, late, passed) in enumerate(steps):
            tensors = {f"w{i}": np.full(500, 10.0 * number + i) for i in range(3)}
            writers.left, writers.late = left, late
            try:
                write(url + prefix, tensors, shards)
                wanted[prefix] = [tensors]
            except (errors.StorageError, errors.DurabilityUnknownError):
                wanted[prefix].append(tensors)
            except errors.BusyError:
                assert late  # the intent of a killed merge is not seen
            counted("leftovers", saved=1, killed=writers.left is not None and writers.left < 0)
            writers.left, writers.late = None, False
            writers.hours += passed
        for least in hours:
            _clean(writers, start, url, least)
            for prefix, values in wanted.items():
                _check_there(url + prefix, values)


def _clean(writers: KilledWriters, start: str, url: str, least: float) -> None:
    newest = writers.hours - least
    names = {key.removeprefix(start): at for key, at in writers.times.items()}
    ours = {name: at for name, at in names.items() if name not in FOREIGN + DAMAGED}
    expected = _left(ours, _in_force(url), newest)
    damaged = {url + DAMAGED[1]} if newest >= 0 else set()
    listed = leftovers.leftovers(url, least * 3600)
    assert {one.url for one in listed if one.problem is None} == {url + name for name in expected}
    assert {one.url for one in listed if one.problem is not None} == damaged
    assert names == {key.removeprefix(start): at for key, at in writers.times.items()}
    removed = remove_leftovers(url, least * 3600)
    assert _plain(removed) == _plain(listed)
    after = {key.removeprefix(start) for key in writers.times}
    assert after == names.keys() - expected
    assert all(names[name] <= newest for name in expected)
    kinds = {"temporary": "tempstate", "directory": "_temp_", "intent": "intent", "data": ".data-"}
    counted("leftovers", cleaned=1, **{k: sum(t in n for n in expected) for k, t in kinds.items()})


def _plain(found: list[Leftover]) -> list[tuple[str, bool]]:
    return [(one.url, one.problem is None) for one in found]


def _check_there(prefix: str, values: list[Any]) -> None:
    """One of these checkpoints is there, whole."""
    try:
        found = ckptfmt.load(prefix)
    except errors.CheckpointNotFoundError:
        assert values[0] is None
        return
    assert ckptfmt.verify(prefix).ok
    assert any(
        value is not None
        and value.keys() == found.keys()
        and all(np.array_equal(found[name], value[name]) for name in value)
        for value in values
    )
