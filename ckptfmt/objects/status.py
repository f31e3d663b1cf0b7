# SPDX-License-Identifier: Apache-2.0
"""The result of restoring objects: status objects with TensorFlow's assertions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Self

from ckptfmt._base.hints import some
from ckptfmt.bundle.graph_keys import graph_of
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import MatchError
from ckptfmt.objects.assigning import Misfit
from ckptfmt.objects.matching import Match, NamedRestoration, Prepared, Restoration
from ckptfmt.objects.serializing import own_tensors, slot_locals
from ckptfmt.objects.traversal import Local, Role, View
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.load import MatchReport, refuse


@dataclass(frozen=True, slots=True)
class _Seen:
    """The nodes of a checkpoint with their objects, and the objects with values."""

    pairs: list[tuple[int, Local]]
    every: list[Local]


class LoadStatus:
    """The state of a restore.

    The assertions first restore objects that were created since (see `retry`). They raise
    MatchError, an AssertionError, and return the status itself.

    Args:
        restoration: the restore.
        view: the objects.
        skip_slots: whether slot variables are left out.
        optional: paths of objects that the checkpoint may lack.
    """

    def __init__(
        self,
        restoration: Restoration,
        view: View,
        *,
        skip_slots: bool = False,
        optional: Collection[str] = (),
    ) -> None:
        self._restoration = restoration
        self._view = view
        self._skip_slots = skip_slots
        self._optional = optional
        self._last: _Seen | None = None  # where nothing is restored later

    @property
    def report(self) -> MatchReport:
        """How the objects and the checkpoint match now. Restores nothing.

        `matched`, `missing` and `filtered` are the paths of the objects that got their values, of
        those that did not, and of those whose values the filter excludes. `unexpected` are the
        names of the values that no object took, as `rename` and `filter` have them.
        """
        seen = self._last or self._see()
        keys, misfits = self._restoration.keys_left(), self._restoration.misfits.values()
        report = self._report_on(seen, self._got(seen.pairs), keys, misfits)
        return self._restoration.choice.reported(report)

    def retry(self) -> Self:
        """Restore objects that did not exist before.

        An attribute of a Trackable or a Checkpoint is restored when it is set. A new element of a
        dict, a list or another object is restored here, and loses the value that it had.

        Raises:
            Exception: what `Checkpoint.restore` raises.
        """
        self._restoration.restore(self._restoration.prepare(self._view))
        return self

    def expect_partial(self) -> Self:
        """Silence the warning about values of the checkpoint that no object ever takes."""
        self._restoration.expect_partial = True
        return self

    def close(self) -> None:
        """Give up the values that no object took. The files of the checkpoint are open until then,
        or until nothing refers to the Checkpoint, its objects and this status."""
        self._restoration.close()

    def assert_consumed(self) -> Self:
        """Assert that every value of the checkpoint was taken and every object got its values."""
        self.assert_existing_objects_matched()
        keys = self._restoration.keys_left()
        if keys:
            raise self._error(f"no object took {some(keys)}")
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Assert that every object with values got them from the checkpoint, or from a later
        restore."""
        self.retry()
        seen = self._see()
        known = self._got(seen.pairs) | self._filtered(seen.pairs)
        missing = [
            local
            for local in seen.every
            if local.key not in known and str(local) not in self._optional
        ]
        if missing:
            raise self._error(f"these objects got no value from the checkpoint: {some(missing)}")
        return self

    def assert_nontrivial_match(self) -> Self:
        """Assert that the checkpoint has an object other than the root."""
        self.retry()
        match = self._restoration.match(self._view)
        if len(match.bound) <= 1:
            every = some(self._see(match).every)
            raise self._error(
                f"the checkpoint has no object but the root; the objects here: {every or 'none'}"
            )
        return self

    def initialize_or_restore(self, session: object = None) -> None:
        """Do nothing, as in TensorFlow's eager mode: the objects are restored already."""

    def run_restore_ops(self, session: object = None) -> None:
        """Do nothing, as `initialize_or_restore`."""

    def _check(
        self, prepared: Prepared, strict: bool | None, lacking: Collection[str] | None
    ) -> None:
        """Check a restore before anything is written.

        Args:
            prepared: the restore.
            strict: whether to raise what `load_into` raises if it would leave anything out.
            lacking: if not None, the paths of the objects that may remain without a value; for any
                other one raise MatchError.
        """
        if not (strict or lacking is not None or self._restoration.once):
            return
        seen = self._see(prepared.match)
        self._last = seen if self._restoration.once else None
        got = {local.key for _, local in prepared.plan.given}
        if strict:
            report = self._report_on(seen, got, *self._restoration.expected(prepared.plan))
            if not report:
                refuse(self._restoration.reader.prefix, report)
        if lacking is not None:
            missing = [one for one in seen.every if one.key not in got and str(one) not in lacking]
            if missing:
                raise self._error(
                    f"it has no value for {some(missing)}: pass the objects that it was saved "
                    "from, with their names, or remove it to start again"
                )

    def _report_on(
        self,
        seen: _Seen,
        got: Collection[Hashable],
        keys: Collection[str],
        misfits: Collection[Misfit],
    ) -> MatchReport:
        """Return the report, if these objects got values and these tensors are left. What does not
        fit is neither missing nor unexpected."""
        every = [one for one in seen.every if one.key in got or str(one) not in self._optional]
        filtered = self._filtered(seen.pairs)
        wrong = {one.assignment.local.key for one in misfits}
        wrong_keys = {one.key for one in misfits}
        others = [local for local in every if local.key not in got or local.key in wrong]
        return MatchReport(
            tuple(str(local) for local in every if local.key in got and local.key not in wrong),
            tuple(str(one) for one in others if one.key not in filtered and one.key not in wrong),
            tuple(self._restoration.name_of(key) for key in keys if key not in wrong_keys),
            tuple(one.mismatch for one in misfits if one.is_shape),
            tuple(one.mismatch for one in misfits if not one.is_shape),
            tuple(str(local) for local in others if local.key in filtered),
        )

    def _see(self, match: Match | None = None) -> _Seen:
        """Return the objects as they are now, or as this match has found them."""
        found = self._view.walk().objects
        slots = [] if self._skip_slots else [slot.local for slot in slot_locals(found)]
        every = {local.key: local for local in [*found, *slots] if _has_values(local)}
        match = match or self._restoration.match(self._view)
        return _Seen(list(match.pairs()), list(every.values()))

    def _got(self, pairs: list[tuple[int, Local]]) -> set[Hashable]:
        return {local.key for node, local in pairs if self._restoration.has_given(node, local)}

    def _filtered(self, pairs: list[tuple[int, Local]]) -> set[Hashable]:
        return {local.key for node, local in pairs if node in self._restoration.filtered}

    def _error(self, message: str) -> MatchError:
        return MatchError(message, path=self._restoration.reader.prefix)


LoadStatus.__module__ = "ckptfmt.types"


class InitializationOnlyStatus(LoadStatus):
    """The state after a restore without a checkpoint: every assertion fails."""

    def __init__(self) -> None:
        pass

    @property
    def report(self) -> MatchReport:
        """A report of nothing."""
        return MatchReport((), (), ())

    def retry(self) -> Self:
        """Do nothing."""
        return self

    expect_partial = retry

    def close(self) -> None:
        """Do nothing."""

    def assert_consumed(self) -> Self:
        """Raise MatchError."""
        raise MatchError("no checkpoint was given, so nothing was restored")

    assert_existing_objects_matched = assert_nontrivial_match = assert_consumed

    def run_restore_ops(self, session: object = None) -> None:
        """Raise MatchError."""
        self.assert_consumed()


InitializationOnlyStatus.__module__ = "ckptfmt.types"


class NameBasedSaverStatus(LoadStatus):
    """The state of a restore from a checkpoint without an object graph, as those of TensorFlow 1.
    All assertions check that every object got its value; further tensors are ignored."""

    def expect_partial(self) -> Self:
        """Do nothing: no warning is given."""
        return self

    def assert_consumed(self) -> Self:
        """Assert that every object with values got them."""
        return self.assert_existing_objects_matched()

    assert_nontrivial_match = assert_consumed


NameBasedSaverStatus.__module__ = "ckptfmt.types"


def _has_values(local: Local) -> bool:
    """Return whether an object has something to be restored."""
    if local.role is Role.TENSORS:
        return local.saver_name is not None or bool(own_tensors(local).tensors)
    if local.role is Role.NODE:
        return bool(local.value.attributes)
    return local.role is not Role.NOTHING or local.saver_name is not None


def restored(
    reader: Reader,
    view: View,
    choice: Changes,
    *,
    skip_slots: bool = False,
    optional: Collection[str] = (),
    expect_partial: bool = True,
    once: bool = False,
    may_lack: Collection[str] | None = None,
    ready: Callable[[], None] | None = None,
) -> tuple[Restoration, LoadStatus]:
    """Restore objects from a checkpoint, with an object graph or without.

    Args:
        reader: the checkpoint. It belongs to the restoration, also after an error.
        view: the objects.
        choice: which values are restored.
        skip_slots: whether to leave out slot variables.
        optional: paths of objects that a checkpoint may lack if it has no object graph, or if
            processes restore a root from it together.
        expect_partial: whether values may remain without an object.
        once: whether nothing is restored later.
        may_lack: if not None, every object must get a value, other than those at these paths.
        ready: called once everything is checked, before anything is written.

    Raises:
        Exception: what `Checkpoint.restore` raises.
    """
    try:
        graph = graph_of(reader)
        restoration: Restoration
        status: LoadStatus
        if graph is None:
            restoration = NamedRestoration(reader, choice, skip_slots=skip_slots, once=once)
            status = NameBasedSaverStatus(
                restoration, view, skip_slots=skip_slots, optional=optional
            )
        else:
            restoration = Restoration(
                reader,
                graph,
                choice,
                skip_slots=skip_slots,
                once=once,
                partial=expect_partial and not once,
            )
            # TensorFlow's DTensorCheckpoint of a root stores no save_counter.
            lacks = () if view.layouts is None or view.beside is None else optional
            status = LoadStatus(restoration, view, skip_slots=skip_slots, optional=lacks)
        named = restoration.expect_partial
        restoration.expect_partial = True
        prepared = restoration.prepare(view)
        status._check(prepared, choice.strict, may_lack)
        may_be_more = choice.strict is None and not restoration.is_whole(prepared)
        restoration.restore(prepared, ready, may_be_more=may_be_more)
        restoration.expect_partial = named or expect_partial
    except BaseException:
        reader.close()
        raise
    return restoration, status
