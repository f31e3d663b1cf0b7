# SPDX-License-Identifier: Apache-2.0
"""Google Cloud Storage and Azure do what S3 does, in their own terms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.clouds import Azure, Cloud, Google, serving

import ckptfmt
from ckptfmt import errors, stores
from ckptfmt.cli import main
from ckptfmt.stores import objects, obstore_client

URL = "lab://bucket/run/model"
MIB = 1 << 20


@pytest.fixture(params=[Google, Azure])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(objects, "SMALL_BYTES", MIB)
    monkeypatch.setattr(obstore_client, "PART_BYTES", 5 * MIB)
    with serving(request.param) as found:
        stores.mount("lab://bucket", found.store())
        yield found
        stores.mount("lab://bucket", None)


def test_a_checkpoint_is_replaced(cloud: Cloud) -> None:
    for number in range(3):
        value = np.full((12 * number + 1, MIB), number, np.uint8)  # one part, or several
        ckptfmt.save(URL, {"w": value, "b": np.ones(3)}, shards=2)
        assert (ckptfmt.load(URL)["w"] == value).all() and ckptfmt.verify(URL).ok
        with ckptfmt.open(URL) as reader:
            assert (reader["w"][-1] == number).all()
    assert len(cloud.objects) == 3, "the data of those before are removed"


def test_a_directory_of_checkpoints(cloud: Cloud) -> None:
    for resumed in (0, 4):
        state = ckptfmt.Checkpoint(step=np.array(0))
        manager = ckptfmt.CheckpointManager(state, "lab://bucket/run", max_to_keep=2)
        manager.restore_or_initialize()
        assert state.step == resumed
        for _ in range(4):
            state.step[...] += 1
            manager.save()
    assert ckptfmt.latest_checkpoint("lab://bucket/run") == "lab://bucket/run/ckpt-8"
    kept = {key.partition(".")[0] for key in cloud.objects}
    assert kept == {"run/checkpoint", "run/ckpt-7", "run/ckpt-8"}


def test_parts_are_merged_and_checkpoints_copied_and_removed(cloud: Cloud) -> None:
    for rank in range(2):
        with ckptfmt.Writer(f"lab://bucket/part-{rank}") as writer:
            writer.add_slice("w", np.full((2, 3), rank), shape=(4, 3), offset=(2 * rank, 0))
    parts = [f"lab://bucket/part-{rank}" for rank in range(2)]
    for _ in range(2):  # the second time it replaces
        ckptfmt.merge(parts, URL)
    assert ckptfmt.load(URL)["w"][:, 0].tolist() == [0, 0, 1, 1]
    assert main(["cp", "-q", URL, "lab://bucket/run/copy"]) == 0
    assert main(["mv", "-q", "lab://bucket/run/copy", "lab://bucket/run/moved"]) == 0
    assert main(["rm", "-q", URL]) == 0
    assert {key.partition(".")[0] for key in cloud.objects} == {"part-0", "part-1", "run/moved"}
    with pytest.raises(errors.CheckpointNotFoundError):
        ckptfmt.open(URL)


def test_of_two_writers_one_is_told(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    ckptfmt.save(URL, {"w": np.zeros(3)})
    usual = obstore_client.ObstoreClient.put

    def overtaken(client: obstore_client.ObstoreClient, key: str, *more: object) -> str:
        if key.endswith(".index"):
            monkeypatch.undo()
            ckptfmt.save(URL, {"w": np.ones(3)})
        return usual(client, key, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore_client.ObstoreClient, "put", overtaken)
    with pytest.raises(errors.BusyError):
        ckptfmt.save(URL, {"w": np.full(3, 2.0)})
    assert (ckptfmt.load(URL)["w"] == 1).all() and ckptfmt.verify(URL).ok
