# SPDX-License-Identifier: Apache-2.0
"""What a manager writes down in its directory: the state file, which is TensorFlow's, and beside it
the metrics of checkpoints. A file that cannot be read is ignored, with a warning."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from ckptfmt.bundle.checkpoint_state import STATE_NAME, CheckpointState, format_state, parse_state
from ckptfmt.errors import CkptfmtWarning, CorruptError, InvalidError, LimitError, StorageError
from ckptfmt.manager.directory import CheckpointDirectory
from ckptfmt.manager.leftovers import METRICS_NAME
from ckptfmt.manager.metrics import Record, format_records, mark_of, parse_records
from ckptfmt.names import index_name

__all__ = ["Books", "mark"]

INDEX_BYTES_MAX = 1 << 40


class Books:
    """The state file and the metrics of a directory, as they were seen last.

    Args:
        path: of the directory.

    Attributes:
        state: the state file's content, as it was read or written last; None if there was none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.state: bytes | None = None

    def read_state(self, place: CheckpointDirectory) -> CheckpointState | None:
        """What the state file says, if that is not what it said when it was read last."""
        path = os.path.join(self._path, STATE_NAME)
        try:
            before, self.state = self.state, place.read(STATE_NAME)
            if self.state is None or self.state == before:
                return None
            state = parse_state(self.state, path)
            if not state.model_checkpoint_path:
                raise CorruptError(
                    "it names no model_checkpoint_path", failure="BAD_PROTO", path=path
                )
        except (CorruptError, LimitError, StorageError) as error:
            warnings.warn(f"{error}; the state file is ignored", CkptfmtWarning, stacklevel=4)
            return None
        return state

    def write_state(self, place: CheckpointDirectory, state: CheckpointState) -> None:
        """Makes the state file say this, if it does not."""
        content = format_state(state)
        if content != self.state:
            place.write_state(STATE_NAME, content)
            self.state = content

    def name_of(self, path: str) -> str | None:
        """The name of a path of the state file, if it lies right in the directory."""
        if os.path.isabs(path):
            where, name = os.path.split(path)
            if os.path.abspath(where) != os.path.abspath(self._path or "."):
                return None
        else:
            name = path.removeprefix("./")
        return name if name not in ("", ".", "..") and "/" not in name else None

    def read_records(self, place: CheckpointDirectory) -> dict[str, Record]:
        """The metrics of the checkpoints that are there, and are those that they were written
        for."""
        try:
            content = place.read(METRICS_NAME)
            records = {} if content is None else parse_records(content)
        except (InvalidError, StorageError) as error:
            path = os.path.join(self._path, METRICS_NAME)
            warnings.warn(f"{path}: {error}; the metrics are ignored", CkptfmtWarning, stacklevel=4)
            return {}
        there = set(place.names()) if records else set()
        return {
            name: record
            for name, record in records.items()
            if index_name(name) in there and mark(place, name) == record.mark
        }

    def write_records(
        self,
        place: CheckpointDirectory,
        records: Mapping[str, Record],
        durability: str | None = None,
    ) -> None:
        """Makes the file of metrics say this, if it does not; there is none as long as there never
        were any."""
        content = format_records(records)
        there = place.read(METRICS_NAME)
        if content != there and (records or there is not None):
            place.write_state(METRICS_NAME, content, durability)


def mark(place: CheckpointDirectory, name: str) -> str:
    """What the index of a checkpoint is known by; "" if it cannot be read."""
    try:
        return mark_of(place.read(index_name(name), INDEX_BYTES_MAX) or b"")
    except StorageError:
        return ""
