# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: saves and restores trees of Python objects, as `tf.train.Checkpoint`. Each reads what
the other wrote."""

from __future__ import annotations

import functools
import operator
import os
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.arguments import check_switch, invalid, wrong
from ckptfmt._base.background import SaveFuture, SaveQueue, Work, wait_for_saves
from ckptfmt._base.hints import some
from ckptfmt._base.names import absolute, check_extension, path_text, prefix_text
from ckptfmt._base.patterns import Filter
from ckptfmt._base.renaming import Rename
from ckptfmt._base.targets import is_immutable
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import CkptfmtWarning, InvalidError
from ckptfmt.files.state_file import update_checkpoint_state
from ckptfmt.objects.layouts import layouts_by_path
from ckptfmt.objects.matching import Restoration
from ckptfmt.objects.saves import Alone, Begun, Together, restored_together
from ckptfmt.objects.status import InitializationOnlyStatus, LoadStatus, restored
from ckptfmt.objects.trackable import Trackable, waiting
from ckptfmt.objects.traversal import (
    View,
    children_of,
    is_value,
    name_conflict,
    refuse_coordinated,
    role_of,
)
from ckptfmt.recipe.changes import Cast, Changes, Names
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.sharded.rounds import Team

if TYPE_CHECKING:
    from ckptfmt.sharded.coordinator import Coordinator


Path = str | bytes | os.PathLike[Any]

SAVE_COUNTER = "save_counter"


class Checkpoint(Trackable):
    """Save and restore a tree of Python objects, as `tf.train.Checkpoint`: with its object graph,
    and matched as there.

    >>> weights = {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)}
    >>> checkpoint = ckptfmt.Checkpoint(model=weights, step=0)
    >>> path = checkpoint.save("run/ckpt")
    >>> weights["bias"] += 1
    >>> status = checkpoint.restore(path).assert_consumed()
    >>> path, weights["bias"].tolist()
    ('run/ckpt-1', [0.0, 0.0, 0.0])

    Objects are arrays of any framework, Python scalars, texts, mappings with str keys, lists,
    tuples, dataclasses, `Trackable`s, and objects with TensorFlow's and Keras' methods:
    `serialize_to_tensors` and `restore_from_tensors`, or `serialize` and `deserialize`. A save or
    restore takes those that exist when it is called, so attributes may be set later.

    Args:
        root: the root object, or a weak reference to it; default the Checkpoint itself. The other
            objects are then saved as if they were children of the root.
        coordinator: a `sharded.Coordinator`, which joins processes that save and restore one
            checkpoint together, as TensorFlow's `DTensorCheckpoint` on a mesh. Each has a
            Checkpoint of the same objects, with its own local arrays, and all call the same methods
            in the same order. Process 0 writes the object graph, the state file, and what
            registered savers save; a failure in one process ends a save or restore in all.
        layouts: with a coordinator, the layouts of arrays on meshes: a mapping from their paths
            ("model/kernel") to Layout or None, or a tree of these. An array with a Layout is
            {device: local array}, for the devices of this process, and is restored in place. All
            other objects are replicated: equal in all processes. A slot variable that is
            {device: array} has the layout of its variable.
        objects: set as attributes, in the order of their names.

    Attributes:
        save_counter: a 0-d int64 array, created when it is first used (also by `save` and
            `restore`) and saved as an attribute. If the root has an array of that name, that one.

    Raises:
        InvalidError: an object that cannot be saved, a Checkpoint that has a coordinator itself,
            the name of a method, or a name that the root uses for another object.
    """

    __slots__ = (
        "_ckptfmt_coordinator",
        "_ckptfmt_last",
        "_ckptfmt_layouts",
        "_ckptfmt_queue",
        "_ckptfmt_root",
    )

    # If not None, a restore is an error if another object than those at these paths gets no value.
    _ckptfmt_may_lack: ClassVar[Collection[str] | None] = None

    _ckptfmt_coordinator: Coordinator | None
    # None without a coordinator.
    _ckptfmt_layouts: Mapping[str, Layout | None] | None
    _ckptfmt_root: Any
    # The restore whose values may still be waiting.
    _ckptfmt_last: Restoration | None
    _ckptfmt_queue: SaveQueue

    def __init__(
        self,
        root: Any = None,
        *,
        coordinator: Coordinator | None = None,
        layouts: Any = None,
        **objects: Any,
    ) -> None:
        if coordinator is not None:
            Team(coordinator, "Checkpoint")  # checks the argument
        elif layouts is not None:
            raise invalid("layouts", "layouts need a coordinator, which knows the processes")
        self._ckptfmt_coordinator = coordinator
        self._ckptfmt_layouts = None
        if coordinator is not None:
            self._ckptfmt_layouts = {} if layouts is None else layouts_by_path(layouts)
        self._ckptfmt_last, self._ckptfmt_queue = None, SaveQueue()
        self._ckptfmt_root = root
        if root is not None:
            if is_value(root):
                raise invalid(
                    "root",
                    f"the root must not be a {type(root).__name__}, which a restore cannot change: "
                    "pass it by a name, as in Checkpoint(value=...)",
                )
            objects["root"] = root
        for name in sorted(objects):
            if objects[name] is None:
                raise InvalidError(f"the object '{name}' is None, which cannot be saved")
            setattr(self, name, objects[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Checkpoint.__slots__ or name == SAVE_COUNTER:
            object.__setattr__(self, name, value)
            return
        if name in _METHODS:
            raise InvalidError(
                f"an object cannot be named '{name}': Checkpoint has a method of that name"
            )
        if name not in self.untracked and value is not None:
            child = value() if isinstance(value, weakref.ref) else value
            role_of(child, (name,))
            if child is not self:
                refuse_coordinated(child, (name,))
            if self._ckptfmt_root is not None:
                root = self._root()
                own = {one.name: one.value for one in children_of(root)}
                if child is not root and own.get(name, child) is not child:
                    raise name_conflict(name)
        super().__setattr__(name, value)

    def __getstate__(self) -> Any:
        """Return the state of a copy, which has no deferred values and no running save."""
        own = {
            "_ckptfmt_coordinator": self._ckptfmt_coordinator,
            "_ckptfmt_last": None,
            "_ckptfmt_layouts": self._ckptfmt_layouts,
            "_ckptfmt_root": self._ckptfmt_root,
        }
        return dict(vars(self)), own

    def __setstate__(self, state: Any) -> None:
        attributes, own = state
        vars(self).update(attributes)
        for name, value in (*own.items(), ("_ckptfmt_queue", SaveQueue())):
            object.__setattr__(self, name, value)

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator, as given."""
        return self._ckptfmt_coordinator

    # ---- saving

    @property
    def save_counter(self) -> NDArray[Any]:
        """How many times `save` was called; the number in the name of the newest checkpoint."""
        counter = vars(self).get(SAVE_COUNTER)
        if counter is None:
            own = [] if self._ckptfmt_root is None else children_of(self._root())
            counter = next((child.value for child in own if child.name == SAVE_COUNTER), None)
            if counter is None:
                counter = np.zeros((), np.int64)
                vars(self)[SAVE_COUNTER] = counter
                waiting.attached(self, SAVE_COUNTER, counter)
        if not _is_counter(counter):
            raise InvalidError("the root's 'save_counter' must be a writable 0-d array of integers")
        return counter

    @save_counter.setter
    def save_counter(self, value: Any) -> None:
        counter = self.save_counter
        limits = np.iinfo(counter.dtype)
        try:
            number = operator.index(value)
        except TypeError:
            raise wrong("save_counter", "an integer", value) from None
        if not limits.min <= number <= limits.max:
            raise InvalidError(
                f"save_counter must be between {limits.min} and {limits.max}, not {number}"
            )
        counter[...] = number

    def write(self, file_prefix: Path, options: CheckpointOptions | None = None) -> str:
        """Save a checkpoint at exactly this prefix, for `read`, and return the prefix as str. The
        save counter and the state file of the directory do not change.

        Args:
            file_prefix: path without extension: str, bytes, os.PathLike or URL; directories are
                made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError: an object that cannot be saved; the message names its path.
            StorageError: it could not be written; an older checkpoint there is unchanged.
            DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
            BusyError: another process did not arrive in time, or holds a lock that is needed.
            Exception: what the objects' own methods and the callbacks of `options` raise.
        """
        return self._begun(file_prefix, options, is_numbered=False).run()

    def write_async(
        self, file_prefix: Path, options: CheckpointOptions | None = None
    ) -> SaveFuture:
        """Save as `write` does, in the background, and return a future of the prefix once all
        values are copied. With a coordinator, the coordinator belongs to the save until then, and
        the sharding policy is called in the background.

        Args:
            file_prefix: path without extension: str, bytes, os.PathLike or URL; directories are
                made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError, MemoryError: an object that cannot be saved, or not copied. Errors of
                writing are raised by the future.
        """
        return self._begun(file_prefix, options, is_numbered=False).run_async()

    def save(self, file_prefix: Path, options: CheckpointOptions | None = None) -> str:
        """Save a checkpoint at `<file_prefix>-<number>`, record it as the latest one in the state
        file of its directory, and return that prefix as str. The number is the `save_counter`,
        which is incremented first.

        Args:
            file_prefix: the beginning of the path without extension, to which "-<number>" is added:
                str, bytes or os.PathLike, or a URL; missing directories are made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError: an object that cannot be saved; the counter is unchanged, but with a
                coordinator incremented, as it is in the other processes.
            StorageError: it could not be written; an older checkpoint there is unchanged.
            DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
            BusyError: another process did not arrive in time, or holds a lock that is needed.
            Exception: what the objects' own methods and the callbacks of `options` raise.
        """
        return self._begun(file_prefix, options, is_numbered=True).run()

    def save_async(self, file_prefix: Path, options: CheckpointOptions | None = None) -> SaveFuture:
        """Save as `save` does, in the background, and return a future of the prefix once all
        values are copied, as `write_async`.

        Args:
            file_prefix: the beginning of the path without extension, to which "-<number>" is added:
                str, bytes or os.PathLike, or a URL; missing directories are made.
            options: `tf.CheckpointOptions` (level, durability, callbacks ...); None: the defaults.

        Raises:
            InvalidError, MemoryError: an object that cannot be saved, or not copied. Errors of
                writing are raised by the future.
        """
        return self._begun(file_prefix, options, is_numbered=True).run_async()

    def _begun(
        self, file_prefix: Path, options: CheckpointOptions | None, *, is_numbered: bool
    ) -> Alone | Together:
        """Collect what is saved."""
        coordinator, queue = self._ckptfmt_coordinator, self._ckptfmt_queue
        one: Alone | Together = (
            Alone(queue) if coordinator is None else Together(coordinator, "Checkpoint.save", queue)
        )
        with one.guarded():
            counter = self.save_counter if is_numbered else np.zeros((), np.int64)
            number = int(counter) + 1
            if coordinator is not None:
                counter[...] = number  # as the others do, even if this process fails
            options = CheckpointOptions.of(options)
            if is_numbered:
                given = path_text(file_prefix, "file_prefix", urls=True)
                check_extension(given, "file_prefix")
                file_prefix = f"{given}-{number}"
            path = prefix_text(file_prefix, "file_prefix", urls=True)
            queue.settle()
            one.collect(self._view(), path, options, _record(path, options, is_numbered))
            counter[...] = number
            self._warn_of_overlooked(path)
        return one

    def _warn_of_overlooked(self, path: str) -> None:
        """Warn, once, if deferred values have an object now and were not restored."""
        last = self._ckptfmt_last
        if last is None or last.expect_partial:
            return
        found = last.overlooked(self._view())
        if found:
            self._ckptfmt_last = None
            warnings.warn(
                f"{path} is saved with the values that {some(found)} have now; "
                f"{last.reader.prefix}, which was restored, has others, which retry() of the "
                "status would have set",
                CkptfmtWarning,
                stacklevel=4,
            )

    def sync(self) -> None:
        """Wait for background saves to end. If the last one of this Checkpoint failed and no
        caller asked its future, raise its error, as the next `save` or `write` would."""
        self._ckptfmt_queue.settle()

    # ---- restoring

    def read(
        self,
        save_path: Path | None,
        options: CheckpointOptions | None = None,
        *,
        names: Names | None = None,
        filter: Filter | None = None,  # noqa: A002 (as in `load_into`)
        rename: Rename | None = None,
        cast: Cast | None = None,
        allow_loss: bool = False,
        strict: bool | None = None,
        partial: bool = False,
    ) -> LoadStatus:
        """Restore the objects from a checkpoint that `write` saved, which has no `save_counter`.

        Objects and checkpoint are matched by the names of children, from the root. Arrays are
        restored in place; scalars and read-only arrays are replaced in their places, and so are the
        tuples and frozen dataclasses around them. Values for an attribute that does not exist are
        deferred: see `LoadStatus.retry`. Everything, also what casts lose, is checked before
        anything is written. A checkpoint without an object graph (TensorFlow 1) is matched by full
        names.

        Args:
            save_path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of
                these. None restores nothing.
            options: `tf.CheckpointOptions`, of which only `experimental_skip_slot_variables` is
                used; `experimental_io_device` is refused for arrays on a mesh. None: the defaults.
            names: the tensors to load, str or bytes; None: all. A missing one is an error. A value
                has the path of its object as its name ("model/kernel"), or its key if it is not the
                value of a variable; without a graph, the name of its tensor.
            filter: which tensors to load: a name, a glob pattern (`*` matches slashes too),
                `/REGEX/` or a compiled pattern found anywhere in the name, or a function of it;
                None: all.
            rename: stored name to new name: a mapping, a function, or a list of pairs (regular
                expression, replacement) applied in order, as `re.sub` does. None from a function or
                a pair drops the tensor. A transform, a function of the array such as
                `numpy.transpose`, may follow the new name.
            cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at
                least one dimension, or a mapping of filters to dtypes: the first that matches
                counts, None changes nothing. True: numbers become what their targets are. Python
                scalars keep their types.
            allow_loss: True allows casts that change values by more than rounding: overflow, lost
                fractions. The result counts them.
            strict: True: anything that does not match is an error. False: load what matches. None,
                TensorFlow's rule: existing objects must fit their values, and the assertions of the
                status report the rest.
            partial: True: values may remain without an object (`expect_partial`), also of objects
                whose registered saver is unknown here.

        Returns:
            The status, whose assertions report what was matched.

        Raises:
            InvalidError: an object has another shape or dtype than its tensor; a value cannot be
                replaced in its place; with `strict`, something does not match; `rename` gives two
                values one name; `cast=DTYPE` means no value; a cast loses values, without
                `allow_loss`; or an argument has the wrong type.
            TensorNotFoundError: a tensor that the object graph names is missing; a key of `cast` or
                `rename` matches none; with `strict`, objects have no tensor.
            CheckpointNotFoundError: there is no checkpoint at `save_path`.
            CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
                version, too large, or cannot be read now; arrays then have unspecified contents.
            Exception: what the objects' own methods raise.
        """
        choose = functools.partial(
            Changes.of, names, filter, rename, cast, allow_loss, strict, may_defer=True
        )
        return self._restored(save_path, options, choose, partial, ())

    def restore(
        self,
        save_path: Path | None,
        options: CheckpointOptions | None = None,
        *,
        names: Names | None = None,
        filter: Filter | None = None,  # noqa: A002 (as in `load_into`)
        rename: Rename | None = None,
        cast: Cast | None = None,
        allow_loss: bool = False,
        strict: bool | None = None,
        partial: bool = False,
    ) -> LoadStatus:
        """Restore the objects from a checkpoint that `save` saved: as `read` does, but that
        `save_counter` is created and restored.

        Args:
            save_path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of
                these. None restores nothing.
            options: `tf.CheckpointOptions`, of which only `experimental_skip_slot_variables` is
                used; `experimental_io_device` is refused for arrays on a mesh. None: the defaults.
            names: the tensors to load, str or bytes; None: all. A missing one is an error. A value
                has the path of its object as its name ("model/kernel"), or its key if it is not the
                value of a variable; without a graph, the name of its tensor.
            filter: which tensors to load: a name, a glob pattern (`*` matches slashes too),
                `/REGEX/` or a compiled pattern found anywhere in the name, or a function of it;
                None: all.
            rename: stored name to new name: a mapping, a function, or a list of pairs (regular
                expression, replacement) applied in order, as `re.sub` does. None from a function or
                a pair drops the tensor. A transform, a function of the array such as
                `numpy.transpose`, may follow the new name.
            cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at
                least one dimension, or a mapping of filters to dtypes: the first that matches
                counts, None changes nothing. True: numbers become what their targets are. Python
                scalars keep their types.
            allow_loss: True allows casts that change values by more than rounding: overflow, lost
                fractions. The result counts them.
            strict: True: anything that does not match is an error. False: load what matches. None,
                TensorFlow's rule: existing objects must fit their values, and the assertions of the
                status report the rest.
            partial: True: values may remain without an object (`expect_partial`), also of objects
                whose registered saver is unknown here.

        Returns:
            The status, whose assertions report what was matched.

        Raises:
            InvalidError: a shape or dtype that differs, a value that cannot be replaced in its
                place, a cast that loses values, or a wrong argument; with `strict`, something that
                does not match.
            TensorNotFoundError: a tensor that the object graph names is missing; a key of `cast` or
                `rename` matches none; with `strict`, objects have no tensor.
            CheckpointNotFoundError: there is no checkpoint at `save_path`.
            CorruptError, UnsupportedError, LimitError, StorageError: it is damaged, of an unknown
                version, too large, or cannot be read now; arrays then have unspecified contents.
        """
        choose = functools.partial(
            Changes.of, names, filter, rename, cast, allow_loss, strict, may_defer=True
        )
        status = self._restored(save_path, options, choose, partial, (SAVE_COUNTER,))
        if save_path is not None:
            self.save_counter  # noqa: B018 (created when it is used)
        return status

    def _restored(
        self,
        save_path: Path | None,
        given: CheckpointOptions | None,
        choose: Callable[[], Changes],
        partial: bool,
        optional: tuple[str, ...],
    ) -> LoadStatus:
        def begin() -> Begun | None:
            choice, options = choose(), CheckpointOptions.of(given)
            check_switch("partial", partial)
            if save_path is None:
                return None
            path_text(save_path, "save_path", urls=True)
            if choice.strict and optional:
                self.save_counter  # noqa: B018 (created when it is used)
            view = self._view()
            restore = functools.partial(
                restored,
                view=view,
                choice=choice,
                skip_slots=options.experimental_skip_slot_variables,
                optional=optional,
                expect_partial=partial,
                may_lack=self._ckptfmt_may_lack,
            )
            return Begun(view, options, restore)

        found: tuple[Restoration, LoadStatus] | None = None
        if self._ckptfmt_coordinator is not None:
            found = restored_together(self._ckptfmt_coordinator, save_path, begin)
        elif (begun := begin()) is not None and save_path is not None:
            wait_for_saves()
            found = begun.restore(reading.open(save_path))
        if found is None:
            return InitializationOnlyStatus()
        self._ckptfmt_last, status = found
        return status

    # ---- objects

    def _root(self) -> Any:
        root = self._ckptfmt_root
        if isinstance(root, weakref.ref):
            root = root()
            if root is None:
                raise InvalidError("the root object of this Checkpoint no longer exists")
        return root

    def _view(self) -> View:
        root, beside = (self, None) if self._ckptfmt_root is None else (self._root(), self)
        return View(root, beside, self._ckptfmt_layouts)


Checkpoint.__module__ = "ckptfmt"


def _record(path: str, options: CheckpointOptions, is_numbered: bool) -> Work | None:
    """Return the function that records a numbered checkpoint in the state file."""
    if not is_numbered:
        return None
    # The working directory may have changed when a background save ends.
    place = absolute(path)
    return functools.partial(
        update_checkpoint_state,
        os.path.dirname(place),
        place,
        save_relative_paths=True,
        durability=options.durability,
    )


_METHODS = frozenset(
    name for name in (*vars(Checkpoint), *vars(Trackable)) if not name.startswith("_")
)


def _is_counter(counter: Any) -> bool:
    return (
        isinstance(counter, np.ndarray)
        and counter.shape == ()
        and counter.dtype.kind in "iu"
        and not is_immutable(counter)
    )
