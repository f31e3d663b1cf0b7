# SPDX-License-Identifier: Apache-2.0
"""The protocol, and the coordinator of a job that is one process. Engines have tests of their
own."""

from __future__ import annotations

import pytest

from ckptfmt import InvalidError
from ckptfmt.sharded.coordinator import Coordinator, SingleProcess


def test_engines_are_coordinators() -> None:
    assert isinstance(SingleProcess(), Coordinator)
    assert not isinstance(object(), Coordinator)


def test_one_process() -> None:
    with SingleProcess() as single:
        assert (single.rank, single.world_size) == (0, 1)
        single.barrier("saved")
        assert single.gather(b"mine") == [b"mine"]
        assert single.broadcast(bytearray(b"all")) == b"all"
        assert repr(single) == "<ckptfmt SingleProcess coordinator>"
    single.close()
    assert repr(single) == "<ckptfmt SingleProcess coordinator closed>"
    for use in (
        lambda: single.barrier("x"),
        lambda: single.gather(b""),
        lambda: single.broadcast(b""),
    ):
        with pytest.raises(InvalidError, match=r"^coordinator is closed$"):
            use()


def test_arguments() -> None:
    """Refused before the operation counts: a wrong argument leaves the coordinator usable."""
    with SingleProcess() as coordinator:
        for use, message in (
            (lambda: coordinator.barrier(b"x"), "the name of a barrier must be a str, not bytes"),
            (lambda: coordinator.gather("x"), "data must be bytes, not str"),
            (lambda: coordinator.broadcast(None), "data must be bytes, not NoneType"),
            (lambda: coordinator.gather(b"", root=1), "root must be between 0 and 0, not 1"),
            (lambda: coordinator.gather(b"", root=-1), "root must be between 0 and 0, not -1"),
            (lambda: coordinator.broadcast(b"", root="0"), "root must be a whole number, not str"),
        ):
            with pytest.raises(InvalidError) as caught:
                use()
            assert caught.value.message == message
        assert coordinator.broadcast(memoryview(b"good")) == b"good"
