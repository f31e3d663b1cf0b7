# SPDX-License-Identifier: Apache-2.0
"""One save or restore of objects: by one process, or by many processes together.

What may fail in one process only happens inside `guarded`, so that it ends the operation in all of
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfmt._base import dtypes
from ckptfmt._base.background import SaveFuture, SaveQueue, Work, wait_for_saves
from ckptfmt._base.names import index_name
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, ObjectGraph, decode_graph, leaf_name
from ckptfmt.errors import InvalidError, UnsupportedError
from ckptfmt.files.locate import locate
from ckptfmt.files.places import opened
from ckptfmt.objects.matching import Restoration
from ckptfmt.objects.serializing import Content, content_of, saver_of
from ckptfmt.objects.status import LoadStatus
from ckptfmt.objects.traversal import View
from ckptfmt.saving.devices import device_of
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.shards import Save
from ckptfmt.saving.specs import SaveSpec
from ckptfmt.sharded.plan import Description, describe
from ckptfmt.sharded.rounds import Team, compare_all
from ckptfmt.sharded.sharded import (
    Job,
    compare_seen,
    fail,
    fail_async,
    save_job,
    save_job_async,
)

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


Path = str | bytes | os.PathLike[Any]


class Begun(NamedTuple):
    """A restore whose arguments are checked.

    Attributes:
        view: the objects.
        options: as for a save.
        restore: restores the objects from a reader, which it owns; calls `ready` before anything is
            written.
    """

    view: View
    options: CheckpointOptions
    restore: Callable[..., tuple[Restoration, LoadStatus]]


class Alone:
    """A save by this process.

    Args:
        queue: the queue of background saves.
    """

    _save: Save

    def __init__(self, queue: SaveQueue) -> None:
        self._queue = queue

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for what precedes the save."""
        return contextlib.nullcontext()

    def collect(
        self, view: View, path: str, options: CheckpointOptions, record: Work | None = None
    ) -> None:
        """Collect what is saved.

        Args:
            view: the objects.
            path: the prefix.
            options: how to save.
            record: called once the checkpoint is in place and its callbacks were called.
        """
        content = content_of(view)
        values = (value for _, tensors in content.owners for value in tensors.values())
        rest = path, options, self._queue, record
        if (
            content.registered
            or options.experimental_sharding_callback
            or any(isinstance(one, (SaveSpec, Mapping)) or device_of(one) for one in values)
        ):
            self._save = Save(saver_of(content, self._queue)._collected, *rest)
        else:
            shards = [content.sources()]
            self._save = Save(lambda *_: ([], shards), *rest)

    def run(self) -> str:
        """Save, and return the prefix."""
        return self._save.run()

    def run_async(self) -> SaveFuture:
        """Save in the background; return once everything is copied."""
        return self._save.run_async()


class Together:
    """The part of this process in a save by many. The object graph, and the bundles of registered
    savers, are those of process 0.

    Args:
        coordinator: joins the processes.
        operation: what they do, for messages.
        queue: the queue of background saves.
    """

    def __init__(self, coordinator: Coordinator, operation: str, queue: SaveQueue) -> None:
        self._team = Team(coordinator, operation)
        self._queue = queue
        self._error: BaseException | None = None
        self._claims = contextlib.ExitStack()
        self._description = Description()
        self._job = Job("", CheckpointOptions())

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Return a context for what precedes the save. `run` raises its error."""
        with self._team.guarded() as guard:
            wait_for_saves()  # they use the coordinator
            yield
        self._error = guard.error

    def collect(
        self,
        view: View,
        path: str,
        options: CheckpointOptions,
        record: Work | None = None,
        metadata: bytes | None = None,
    ) -> None:
        """Collect what this process saves; as `Alone.collect`. Only process 0 calls `record`."""
        first = self._team.rank == 0
        content = content_of(view)
        tensors, layouts = _whole_tensors(content), content.layouts
        options.check_meshed(_meshed(layouts))
        if first:
            tensors[OBJECT_GRAPH_KEY] = content.graph
        self._description = describe(tensors, layouts, options.check_replicas)
        inputs: list[str] = []
        if first and content.registered:
            saver = Saver({}, content.registered)
            with contextlib.ExitStack() as claims:
                inputs, _ = saver._collected(claims, path, options)
                self._claims.push(claims.pop_all())
        self._job = Job(
            path,
            options,
            metadata if first else None,
            agree=lambda: self._agree_on(content.graph),
            inputs=inputs,
            release=self._claims.close,
            record=record or _nothing,
        )

    def _agree_on(self, graph: bytes) -> None:
        def compare(digests: list[bytes]) -> bytes:
            return b"1" if len(set(digests)) == 1 else b"0"

        # Only different graphs need a second round, which finds the difference.
        if self._team.round(None, hashlib.sha256(graph).digest(), compare) != b"1":
            self._team.round(None, graph, _refuse_different)

    def run(self) -> str:
        """Save, and return the prefix.

        Raises:
            What `ckptfmt.sharded.save` raises, in all processes.
        """
        if self._error is not None:
            self._claims.close()
            fail(self._team, self._error)
        if self._job.options.enable_async:
            return self.run_async().prefix
        save_job(self._team, self._job, self._description)
        return self._job.path

    def run_async(self) -> SaveFuture:
        """Save in the background; return once what this process holds is copied."""
        if self._error is not None:
            self._claims.close()
            fail_async(self._team, self._error, self._queue)
        return save_job_async(self._team, self._job, self._description, self._queue)


def _whole_tensors(content: Content) -> dict[str, Any]:
    """Return the tensors as `describe` takes them."""
    tensors = dict[str, Any]()
    for key, value in content.tensors.items():
        if not isinstance(value, SaveSpec):
            tensors[key] = value
        elif value.dtype == dtypes.VARIANT:
            raise UnsupportedError("variants cannot be saved on meshes", tensor=key)
        elif value.slice_spec.strip():
            raise InvalidError(
                "processes that save together save no slices that objects give: give the arrays "
                "of a mesh as {device: array}, with a layout",
                tensor=key,
            )
        elif (tensor := value.tensor) is not None:
            tensors[key] = tensor
    return tensors


def _nothing() -> None:
    """The record of a save that is not recorded."""


def _refuse_different(graphs: list[bytes]) -> bytes:
    """Raise InvalidError with the first difference between the objects of two processes."""
    rank = next(rank for rank, graph in enumerate(graphs) if graph != graphs[0])
    ours, theirs = (_leaves(decode_graph(graphs[one])) for one in (0, rank))
    different = sorted(ours.items() ^ theirs.items())
    where = f", first at {leaf_name(different[0][0])!r}" if different else ", or another order"
    raise InvalidError(f"the trees of process 0 and process {rank} have other structures{where}")


def _leaves(graph: ObjectGraph) -> dict[str, str]:
    return {one.checkpoint_key: node.kind or "" for node in graph.nodes for one in node.attributes}


def _meshed(layouts: Mapping[str, Layout | None]) -> list[str]:
    return [name for name, layout in layouts.items() if layout is not None]


def restored_together(
    coordinator: Coordinator,
    path: Path | None,
    begin: Callable[[], Begun | None],
) -> tuple[Restoration, LoadStatus] | None:
    """Restore objects in all processes: nothing is written before all have found the same
    checkpoint and have checked their objects against it.

    Args:
        coordinator: joins the processes.
        path: what `ckptfmt.open` takes; None restores nothing.
        begin: checks the arguments of this process; returns None where the path is None.

    Raises:
        InvalidError: only some processes were given None.
        GenerationGoneError: the processes found different checkpoints.
        What `begin` and `restore` raise, in all processes.
    """
    team = Team(coordinator, "Checkpoint.restore")
    seen, asked, agreed = b"", False, False
    result: tuple[Restoration, LoadStatus] | None = None

    def agree() -> None:
        nonlocal asked, agreed
        asked = True
        team.round(None, seen, compare)
        agreed = True

    def compare(answers: list[bytes]) -> bytes:
        given = ["a checkpoint" if answer else "None" for answer in answers]
        compare_all("restore different things", given)
        return compare_seen(answers, target)

    target = ""
    with team.guarded() as guard, contextlib.ExitStack() as stack:
        wait_for_saves()  # they use the coordinator
        begun = begin()
        if begun is None or path is None:
            agree()
        else:
            begun.options.check_meshed(_meshed(begun.view.layouts or {}))
            target = locate(path)
            begun.view.walk()  # finds the paths of the objects, by which layouts are given
            digest = stack.enter_context(opened(index_name(target)))
            reader = reading.open(target)
            try:
                seen = digest()
            except BaseException:
                reader.close()
                raise
            result = begun.restore(reader, ready=agree)
    if not asked:
        assert guard.error is not None
        fail(team, guard.error)
    if not agreed:
        assert guard.error is not None
        raise guard.error  # all processes have it
    try:
        team.round(guard.error, b"", lambda _: b"")
    except BaseException:
        if result is not None:
            result[0].expect_partial = True
            result[0].close()
        raise
    return result
