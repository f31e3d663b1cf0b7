# SPDX-License-Identifier: Apache-2.0
"""Cutting tensors into shards, writing these in parallel, and merging them. Only `cut` calls the
user's code, so a background save does everything else in its thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ckptfmt._base import names
from ckptfmt._base.arrays import Columns, Sources
from ckptfmt._base.background import SaveFuture, SaveQueue, Work
from ckptfmt._base.names import absolute
from ckptfmt._base.save_options import of_part
from ckptfmt._base.threads import Stop, StoppedError, share
from ckptfmt.bundle import writer as writing
from ckptfmt.bundle.snapshot import Snapshot
from ckptfmt.bundle.staging import staged
from ckptfmt.files.folder import folder_of
from ckptfmt.saving.devices import task_of
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.policies import ShardByTaskPolicy
from ckptfmt.saving.sharding import Shard, checked_shards
from ckptfmt.saving.specs import ShardableTensor

# Shards written at the same time; more threads would only wait for the disk.
WRITERS_MAX = 8
# From this size on data files go past the page cache: `CF_FILE_WRITER_DIRECT_MIN`.
BYTES_MIN = 64 << 20


def cut(
    tensors: Iterable[ShardableTensor], options: CheckpointOptions, tasks: Iterable[str] = ()
) -> list[Sources]:
    """Cut tensors by the sharding policy of the options, and return the shards of all tasks.

    Args:
        tensors: all, in the order of saving.
        options: how they are saved.
        tasks: those that come first, in this order; the others follow by their first tensors.
    """
    policy = options.experimental_sharding_callback
    groups: dict[str, list[ShardableTensor]] = {task: [] for task in tasks}
    all_tasks = getattr(policy, "all_tasks", False)
    for tensor in tensors:
        groups.setdefault("" if all_tasks else task_of(tensor.device), []).append(tensor)
    found: list[Sources] = []
    for group in filter(None, groups.values()):
        if policy is None:
            shards: Sequence[Shard] = ShardByTaskPolicy()(group)  # does not change the tensors
        else:
            shards = checked_shards(policy, group, options.padding)
        stored = {tensor.checkpoint_key: tensor.dtype for tensor in group}
        found += [_sources(shard, stored) for shard in shards]
    return found


def _sources(shard: Shard, stored: Mapping[str, Any]) -> Sources:
    """Convert a shard for the writer. Everything is checked here, before anything is written.

    Args:
        shard: as a policy returns it.
        stored: the dtype of each checkpoint key.
    """
    sources = Sources()
    for key, pieces in shard.items():
        raw = names.tensor_bytes(key)
        for slice_spec, array in pieces.items():
            dtype = stored[key]
            if getattr(array, "dtype", None) == dtype:
                dtype = None  # the fast path of `add`
            sources.add(raw, array, dtype)
            if text := slice_spec.strip():
                writing.set_spec(sources, text)
    return sources


class Save(NamedTuple):
    """A save of this process, with arguments that are checked.

    Attributes:
        collect: as `Saver._collected`.
        path: the prefix.
        options: how to save.
        queue: the queue of background saves.
        finish: called after the write callbacks.
        metadata: as `metadata_json` returned it, for a save of one shard.
    """

    collect: Callable[..., tuple[list[str], list[Sources]]]
    path: str
    options: CheckpointOptions
    queue: SaveQueue
    finish: Work | None = None
    metadata: bytes | None = None

    def run(self) -> str:
        """Save, and return the prefix."""
        if self.options.enable_async:
            return self.run_async().prefix
        with contextlib.ExitStack() as claims:
            inputs, shards = self.collect(claims, self.path, self.options)
            write_checkpoint(self.path, self.options, inputs, shards, self.metadata)
        _finish(self.path, self.options, self.finish)
        return self.path

    def run_async(self) -> SaveFuture:
        """Save in the background; return once everything is copied."""
        collect, path, options, queue, finish, metadata = (
            self  # `write` must not keep what is copied
        )
        with contextlib.ExitStack() as claims:
            inputs, shards = collect(claims, path, options)

            def copy() -> Work:
                target, bundles = absolute(path), list(map(absolute, inputs))
                snapshot = Snapshot(shards, queue)
                released = claims.pop_all()

                def write() -> None:
                    with released, snapshot:
                        write_checkpoint(target, options, bundles, snapshot.copied, metadata)
                    _finish(path, options, finish)

                return write

            return queue.begin(path, copy)


def _finish(path: str, options: CheckpointOptions, finish: Work | None) -> None:
    options.after_write(path)
    if finish is not None:
        finish()


def write_checkpoint(
    prefix: str,
    options: CheckpointOptions,
    inputs: Sequence[str],
    shards: Sequence[Columns],
    metadata: bytes | None = None,
) -> None:
    """Make one checkpoint of existing bundles (`inputs`, their prefixes) and of the shards, all or
    nothing."""
    if not shards and not inputs:
        shards = [Sources()]  # an empty checkpoint
    if len(shards) == 1 and not inputs:
        writing.write_sources(prefix, shards[0], None, options, metadata=metadata)
        return
    with staged(prefix, options.durability) as staging:
        parts = [staging.part(i, len(shards)) for i in range(len(shards))]
        _write_shards(parts, shards, options)
        staging.merge([*inputs, *parts])
    remove_emptied(inputs, prefix)


def _write_shards(
    parts: Sequence[str], shards: Sequence[Columns], options: CheckpointOptions
) -> None:
    """Write each shard as a bundle, several at a time. The first error, in the order of the shards,
    stops the others and is raised."""
    stop = Stop()

    def watch(*_: int) -> None:
        if stop.asked:
            raise StoppedError

    def write(index: int) -> None:
        watch()
        # The merge syncs the data files if the options say so; large ones are synced while written.
        sources = shards[index]
        is_large = sources.size_column().sum() >= BYTES_MIN
        chosen = options if is_large else of_part(options)
        writing.write_sources(parts[index], sources, watch, chosen, shards=1)

    share(len(parts), write, WRITERS_MAX, "ckptfmt-save", stop)


def remove_emptied(inputs: Iterable[str], prefix: str) -> None:
    """Remove the directories of the bundles of registered savers if they are empty, as a merge with
    `delete_old_dirs` does."""
    target = os.path.abspath(os.path.dirname(prefix))
    for directory in dict.fromkeys(map(os.path.dirname, inputs)):
        if directory and os.path.abspath(directory) != target:
            folder_of(directory).remove_if_empty()
