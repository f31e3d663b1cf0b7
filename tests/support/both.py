# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints read by the C core and by the reference decoder, and compared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY

from .vectors import CONSUMER, Core, Reference, Refusal, Vector

_HEADER = ("num_shards", "producer", "min_consumer")
_NOTHING = Vector(
    name="",
    kind="good",
    level="ckptfmt",
    prefix="",
    files=[],
    rules=[],
    steps=[],
    limits={},
    consumer=CONSUMER,
)


# What reading a tensor comes to of which only some slices were saved.
INCOMPLETE = Refusal("BAD_SLICE", "SLC-11")


class _Both:
    def __init__(self, prefix: str) -> None:
        self.core, self.reference = Core(_NOTHING), Reference(_NOTHING)
        self.core.prefix = self.reference.prefix = prefix

    def close(self) -> None:
        self.core.close()
        self.reference.close()

    def run(self, step: str, **more: Any) -> Any:
        """What both give; none of them may refuse, but a tensor that was not saved whole."""
        asked = {"step": step, **more}
        found, referred = self.core.run(asked), self.reference.run(asked)
        where = f"{step} of {self.core.prefix} {more.get('tensor', '')!r}"
        if not found == referred == INCOMPLETE:
            assert not isinstance(referred, Refusal), f"{where}: the reference refuses: {referred}"
            assert not isinstance(found, Refusal), f"{where}: the core refuses: {found}"
        assert found == referred, where
        return found

    def read(self, name: str) -> Any:
        """A tensor, and of one that was not saved whole each slice that there is."""
        found = self.run("read", tensor=name)
        if found == INCOMPLETE:
            for part in self.core.opened()[name.encode("latin-1")].slices:
                box = [list(pair) for pair in zip(part.start, part.shape, strict=True)]
                given = self.run("box", tensor=name, box=box)
                assert given != INCOMPLETE, f"{box} of {name!r}"
        return found


def assert_both_read(prefix: Path | str) -> dict[bytes, Any]:
    """Both read the header, the listing, every tensor whole, the objects and the metadata, and to
    the same: what vectors.json would have of the tensors, by name; INCOMPLETE for those of which
    only some slices were saved."""
    both = _Both(os.fspath(prefix))
    try:
        both.run("open", gives=dict.fromkeys(_HEADER))
        listed = both.run("list")
        found = {name.encode("latin-1"): both.read(name) for name in listed}
        if OBJECT_GRAPH_KEY in listed:
            both.run("objects")
        both.run("metadata")
        return found
    finally:
        both.close()
