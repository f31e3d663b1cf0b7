# SPDX-License-Identifier: Apache-2.0
"""Another writer commits to the destination of a merge, or with the same base, in its midst."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.dict_client import DictClient, mount

import ckptfmt
from ckptfmt import errors
from ckptfmt.stores import waiting

FOLDER = "dict://bucket/run"
URL = f"{FOLDER}/model"
ARRAYS = {"a": np.arange(50.0), "b": np.arange(70.0)}
OTHER = {"c": np.arange(60.0), "d": np.arange(40.0)}
Operation = Callable[[], object]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> DictClient:
    monkeypatch.setattr(waiting, "PAUSE", 0)
    found = mount(monkeypatch)
    # The other writer makes its requests in another thread, within a request of ours.
    monkeypatch.setattr(found, "_lock", contextlib.nullcontext())
    return found


def same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[n], wanted[n]) for n in found)


def merge() -> None:
    ckptfmt.merge([f"{FOLDER}/in-a", f"{FOLDER}/in-b"], URL)


def save_with_base() -> None:
    ckptfmt.save(URL, ARRAYS, base=f"{FOLDER}/base")


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("operation", [merge, save_with_base])
def test_another_writer_before_each_request(
    client: DictClient, operation: Operation, shards: int, changed: bool
) -> None:
    """The last commit is there, whole, also if an input changed as well and stops the merge."""
    new = {**ARRAYS, "b": ARRAYS["b"] + 1}
    for number in itertools.count():
        client.objects.clear()
        ckptfmt.save(f"{FOLDER}/base", ARRAYS, shards=2)
        for name, array in ARRAYS.items():
            ckptfmt.save(f"{FOLDER}/in-{name}", {name: array})
        client.requests.clear()
        done: list[tuple[str, str]] = []

        def before(
            method: str, key: str, number: int = number, done: list[tuple[str, str]] = done
        ) -> None:
            if len(client.requests) == number + 1:
                client.before = lambda method, key: None
                ckptfmt.save(URL, OTHER, shards=shards)
                if changed:
                    ckptfmt.save(f"{FOLDER}/in-b", {"b": new["b"]})
                done.append((method, key))

        client.before = before
        failed = False
        try:
            operation()
        except (errors.BusyError, errors.StorageError):
            failed = True
        if not done:
            break
        found = ckptfmt.load(URL)
        ours = same(found, ARRAYS) or (changed and same(found, new))
        assert same(found, OTHER) or (ours and not failed), done
        assert ckptfmt.verify(URL).ok, done
    assert number > 5
