# SPDX-License-Identifier: Apache-2.0
"""What a restore of a Checkpoint came to: status objects with TensorFlow's assertions."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Self

from ckptfmt.bundle.matching import MatchReport, refuse
from ckptfmt.bundle.selecting import some
from ckptfmt.errors import MatchError
from ckptfmt.objects.assigning import Misfit
from ckptfmt.objects.restoring import NamedRestoration, Restoration
from ckptfmt.objects.serializing import own_tensors, slots_of
from ckptfmt.objects.trackable import Local, Role, View

__all__ = [
    "CheckpointLoadStatus",
    "InitializationOnlyStatus",
    "LoadStatus",
    "NameBasedSaverStatus",
]


class LoadStatus:
    """The state of a restore.

    The assertions first hand out values to objects that came since (see `retry`). They raise
    MatchError, an AssertionError, and return the status itself.
    """

    @property
    def report(self) -> MatchReport:
        """How the objects and the checkpoint fit now: `matched`, `missing` and `filtered` are the
        paths of the objects that got their values, of those that did not, and of those whose values
        the filter leaves out; `unexpected` are the tensors that no object took. Hands out
        nothing."""
        return self._report()

    def retry(self) -> Self:
        """Hands out values to objects that were not there before.

        An attribute of a Trackable or a Checkpoint gets its value when it is set. Nobody is told of
        a new element of a dict, a list or another object: these get theirs here, and lose what they
        were set to before.

        Raises:
            What `Checkpoint.restore` raises.
        """
        self._retry()
        return self

    def expect_partial(self) -> Self:
        """Says that it is all right if values of the checkpoint are never taken: no warning tells
        of them."""
        self._expect_partial()
        return self

    def close(self) -> None:
        """Gives up the values that nobody took. Until then, or until nothing refers to the
        Checkpoint, its objects and this status, the files of the checkpoint are open."""
        self._close()

    def assert_consumed(self) -> Self:
        """Asserts that every value of the checkpoint was taken and every object got its values."""
        self._retry()
        self._check_objects()
        self._check_values()
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Asserts that every object that has values got them from the checkpoint, or from a later
        restore."""
        self._retry()
        self._check_objects()
        return self

    def assert_nontrivial_match(self) -> Self:
        """Asserts that some object but the root is in the checkpoint."""
        self._retry()
        self._check_any()
        return self

    def _report(self) -> MatchReport:
        raise NotImplementedError

    def _retry(self) -> None:
        pass

    def _expect_partial(self) -> None:
        pass

    def _close(self) -> None:
        pass

    def _check_objects(self) -> None:
        raise NotImplementedError

    def _check_values(self) -> None:
        pass

    def _check_any(self) -> None:
        self._check_objects()


def _with_values(view: View, skip_slots: bool) -> list[Local]:
    """The objects that have something to be restored."""
    found, _ = view.walk()
    slots = [] if skip_slots else [slot.local for slot in slots_of(found)]
    return [local for local in [*found, *slots] if _has_values(local)]


def _has_values(local: Local) -> bool:
    if local.role is Role.TENSORS:
        return local.saver_name is not None or bool(own_tensors(local))
    return local.role is not Role.NOTHING or local.saver_name is not None


def _told(
    every: Collection[Local],
    got: Collection[Hashable],
    filtered: Collection[Hashable],
    keys: Collection[str],
    misfits: Collection[Misfit],
) -> MatchReport:
    """The report on objects, of which some got their values; the tensors that nobody took; and what
    does not fit, which is neither missing nor unexpected."""
    wrong = {one.assignment.local.key for one in misfits}
    wrong_keys = {one.key for one in misfits}
    others = [local for local in every if local.key not in got or local.key in wrong]
    return MatchReport(
        tuple(str(local) for local in every if local.key in got and local.key not in wrong),
        tuple(str(one) for one in others if one.key not in filtered and one.key not in wrong),
        tuple(key for key in keys if key not in wrong_keys),
        tuple(one.mismatch for one in misfits if one.is_shape),
        tuple(one.mismatch for one in misfits if not one.is_shape),
        tuple(str(local) for local in others if local.key in filtered),
    )


class CheckpointLoadStatus(LoadStatus):
    """The state of a restore from a checkpoint of objects."""

    def __init__(self, restoration: Restoration, view: View, *, skip_slots: bool = False) -> None:
        self._restoration = restoration
        self._view = view
        self._skip_slots = skip_slots

    def refuse(self) -> None:
        """Raises what `load_into` raises if a restore would leave anything out."""
        given, keys, misfits = self._restoration.expected(self._view)
        got = {local.key for _, local in given}
        report = _told(self._every(), got, self._filtered(self._pairs()), keys, misfits)
        if not report:
            refuse(self._restoration.reader.prefix, report)

    def _report(self) -> MatchReport:
        pairs = self._pairs()
        keys, misfits = self._restoration.keys_left(), self._restoration.misfits.values()
        return _told(self._every(), self._got(pairs), self._filtered(pairs), keys, misfits)

    def _every(self) -> list[Local]:
        return _with_values(self._view, self._skip_slots)

    def _pairs(self) -> list[tuple[int, Local]]:
        return list(self._restoration.match(self._view).pairs())

    def _got(self, pairs: list[tuple[int, Local]]) -> set[Hashable]:
        return {local.key for node, local in pairs if self._restoration.has_given(node, local)}

    def _filtered(self, pairs: list[tuple[int, Local]]) -> set[Hashable]:
        return {local.key for node, local in pairs if node in self._restoration.filtered}

    def _retry(self) -> None:
        self._restoration.restore(self._view)

    def _expect_partial(self) -> None:
        self._restoration.expect_partial = True

    def _close(self) -> None:
        self._restoration.close()

    def _check_objects(self) -> None:
        pairs = self._pairs()
        known = self._got(pairs) | self._filtered(pairs)
        missing = [local for local in self._every() if local.key not in known]
        if missing:
            raise self._error(_no_value(missing))

    def _check_values(self) -> None:
        keys = self._restoration.keys_left()
        if keys:
            raise self._error(f"no object took {some(keys)}")

    def _check_any(self) -> None:
        if len(self._restoration.match(self._view).bound) <= 1:
            every = some(self._every())
            raise self._error(
                f"nothing but the root object is in the checkpoint; its objects: {every or 'none'}"
            )

    def _error(self, message: str) -> MatchError:
        return MatchError(message, path=self._restoration.reader.prefix)


class NameBasedSaverStatus(LoadStatus):
    """The state of a restore from a checkpoint of names, as those of TensorFlow 1. All assertions
    say that every object got its value; what else the checkpoint holds is not looked at."""

    def __init__(
        self, restoration: NamedRestoration, view: View, optional: Collection[str] = ()
    ) -> None:
        self._restoration = restoration
        self._view = view
        self._optional = optional

    def refuse(self) -> None:
        """Raises what `load_into` raises if a restore would leave anything out."""
        given, keys, misfits = self._restoration.expected(self._view)
        report = self._told({local.key for local in given}, keys, misfits)
        if not report:
            refuse(self._restoration.reader.prefix, report)

    def _report(self) -> MatchReport:
        got = {local.key for local in self._every() if self._restoration.has_given(local)}
        return self._told(got, self._restoration.keys_left(), self._restoration.misfits.values())

    def _told(
        self, got: Collection[Hashable], keys: Collection[str], misfits: Collection[Misfit]
    ) -> MatchReport:
        every = [one for one in self._every() if one.key in got or str(one) not in self._optional]
        filtered = {local.key for local in every if self._restoration.is_filtered(local)}
        return _told(every, got, filtered, keys, misfits)

    def _every(self) -> list[Local]:
        return _with_values(self._view, skip_slots=False)

    def _missing(self) -> list[Local]:
        return [
            local
            for local in self._every()
            if not self._restoration.has_given(local)
            and not self._restoration.is_filtered(local)
            and str(local) not in self._optional
        ]

    def _retry(self) -> None:
        self._restoration.restore(self._view)

    def _close(self) -> None:
        self._restoration.close()

    def _check_objects(self) -> None:
        missing = self._missing()
        if missing:
            raise MatchError(_no_value(missing), path=self._restoration.reader.prefix)


class InitializationOnlyStatus(LoadStatus):
    """The state after no checkpoint was given to a restore: every assertion fails."""

    def _report(self) -> MatchReport:
        return MatchReport((), (), ())

    def _check_objects(self) -> None:
        raise MatchError("no checkpoint was given, so nothing was restored")


def _no_value(missing: Collection[Local]) -> str:
    return f"these objects got no value from the checkpoint: {some(missing)}"
