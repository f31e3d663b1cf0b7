# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager over a directory of an object store."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import numpy as np
import pytest
from support.dict_client import DictClient, mount

import ckptfmt
from ckptfmt import errors

DIRECTORY = "dict://bucket/run"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[DictClient]:
    yield mount(monkeypatch)


def there(client: DictClient) -> list[str]:
    return sorted(
        key.removeprefix("run/").removesuffix(".index") for key in client.objects if "index" in key
    )


def test_an_incomplete_checkpoint_is_not_the_latest(client: DictClient) -> None:
    state = ckptfmt.Checkpoint(w=np.zeros(4))
    manager = ckptfmt.CheckpointManager(state, DIRECTORY, max_to_keep=3)
    manager.save()
    manager.save()
    del client.objects["run/ckpt-2.data-00000-of-00001"]
    with pytest.warns(ckptfmt.CkptfmtWarning, match="not complete"):
        assert ckptfmt.latest_checkpoint(DIRECTORY) == f"{DIRECTORY}/ckpt-1"
    assert ckptfmt.latest_checkpoint("dict://bucket/nowhere") is None


def test_killed_anywhere(client: DictClient) -> None:
    """The newest complete checkpoint is the old one or the new one, and work goes on."""
    number, finished = 0, False
    while not finished:
        client.objects.clear()
        state = ckptfmt.Checkpoint(w=np.ones(4))
        manager = ckptfmt.CheckpointManager(state, DIRECTORY, max_to_keep=1)
        manager.save()
        client.requests.clear()

        def before(method: str, key: str, number: int = number) -> None:
            if len(client.requests) > number:
                raise ConnectionError(errno.ECONNRESET, "killed")

        client.before = before
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            try:
                manager.save()
                finished = len(client.requests) <= number
            except errors.StorageError:
                pass
            client.before = lambda method, key: None
            other = ckptfmt.Checkpoint(w=np.zeros(4))
            again = ckptfmt.CheckpointManager(other, DIRECTORY, max_to_keep=1)
            assert again.restore_or_initialize() in (f"{DIRECTORY}/ckpt-{n}" for n in (1, 2))
            assert other.w.tolist() == [1, 1, 1, 1]
            again.save()
        number += 1
    assert number > 8


def test_a_checkpoint_at_the_top_of_a_store_is_removed() -> None:
    ckptfmt.save("memory://top", {"w": np.zeros(4)})
    ckptfmt.tf.remove_checkpoint("memory://top")
    assert not ckptfmt.tf.checkpoint_exists("memory://top")
