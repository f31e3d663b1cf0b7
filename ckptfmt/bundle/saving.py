# SPDX-License-Identifier: Apache-2.0
"""save_async: saves while the program goes on. The call returns when all arrays are copied.

`SaveFuture` and the save queue are in `ckptfmt.background`, the memory of the copies in
`ckptfmt.bundle.snapshot`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ckptfmt import _core
from ckptfmt.arguments import Durability, Level, check_progress
from ckptfmt.background import Line, SaveFuture, Work, wait_for_saves
from ckptfmt.bundle import writer as writing
from ckptfmt.bundle.incremental import CompactionLimits, check_limits
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.names import absolute, path_text, prefix_text
from ckptfmt.progress import Progress

__all__ = [
    "SaveFuture",
    "save_async",
    "wait_for_saves",
]

Path = str | bytes | os.PathLike[Any]


def save_async(
    prefix: Path,
    tensors: Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[str | bytes, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    base: Path | None = None,
    compaction: CompactionLimits | None = None,
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> SaveFuture:
    """Saves as `save`, with the same bytes, but returns when all arrays are copied: what becomes of
    them afterwards does not reach the checkpoint. It is written in the background.

    One save goes on in the background of a process at a time: a second one waits for it before
    anything is copied, as every other save does. The memory of the copies is freed when the save is
    over; a Saver with `enable_async` keeps its own for its next save, which is faster. An
    interpreter that exits waits for the save; after `os._exit` or a kill the older checkpoint is
    there, whole.

    Args:
        prefix, metadata, level, alignment, durability, compression: as in Writer. A relative prefix
            is one of the current directory of this call.
        tensors, compaction, shards: as in `save`.
        base: as in `save`; compared with in the background, and a relative path as `prefix`.
        progress: as in `save`, but called from the thread in the background.

    Returns:
        A future: its `result()` is the prefix, once the checkpoint is in place.

    Raises:
        InvalidError: as in `save`; nothing is written then.
        MemoryError: there is no memory for the copies; nothing is written then.
        Errors of the write itself are raised by the future.
    """
    check_progress(progress)
    writing.check_order(prefix, tensors)
    writing.check_shards(shards)
    writing.check_options(metadata, level, alignment, durability, compression)
    target = prefix_text(prefix)
    place = absolute(target)
    _core.path_bytes(place)
    check_limits(compaction)
    earlier = None if base is None else absolute(path_text(base))
    wait_for_saves()
    sources = writing.collect(tensors)
    options: dict[str, Any] = {
        "metadata": copy.deepcopy(metadata),
        "level": level,
        "alignment": alignment,
        "durability": durability,
        "base": earlier,
        "compaction": compaction,
        "compression": compression,
        "shards": shards,
    }

    def prepare() -> Work:
        snapshot = Snapshot([sources])

        def work() -> None:
            with snapshot:
                writing.write_sources(place, snapshot.copied[0], progress, **options)

        return work

    return Line().begin(target, prepare)
