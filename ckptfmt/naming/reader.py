# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.Reader` and `ckptfmt.open`: a Reader that takes the names that people use as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptfmt._base.arguments import Verify
from ckptfmt._base.names import tensor_text
from ckptfmt._core import cached_property
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.reader import Path
from ckptfmt.errors import TensorNotFoundError

if TYPE_CHECKING:
    from ckptfmt.naming.tensor_names import TensorNames


def open(  # noqa: A001 (as gzip.open and its like: used with the name of the module)
    path: Path,
    *,
    verify: Verify = "auto",
    limits: Mapping[str, int] | None = None,
    follow_symlinks: bool = True,
) -> Reader:
    """Open a checkpoint for reading. Reads the index's footer and first block, no tensor.

    >>> ckptfmt.save("model", {"w": np.arange(6.0).reshape(3, 2)}, metadata={"epoch": 1})
    >>> with ckptfmt.open("model") as reader:
    ...     print(*reader, reader["w"].shape, reader["w"][1:, 0], reader.metadata)
    w (3, 2) [2. 4.] {'epoch': 1}

    Args:
        path: a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these. A
            directory has a `checkpoint` file or a single checkpoint. A local path is taken
            literally; URLs ("s3://bucket/run/model"): see `ckptfmt.stores`.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
            Chunk checksums make a part cheap to check. The index is always checked.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.
        follow_symlinks: False refuses an index or data file that is a symbolic link.

    Raises:
        CheckpointNotFoundError: there is no checkpoint; the message says what was found.
        CorruptError: the index is damaged.
        UnsupportedError: an index of an unknown version, or a V1 checkpoint.
        LimitError: the index exceeds one of `limits`.
        StorageError: a file exists and cannot be read.
        InvalidError: an argument of the wrong type or value.
    """

    return Reader._at(path, verify, limits, follow_symlinks)


class Reader(reading.Reader):
    """An open checkpoint: a mapping from tensor names to handles, in key order.

    Names are str, bytes that are not UTF-8 as surrogate escapes; bytes are taken everywhere. A
    variable is also found by the names under which `ckptfmt inspect` and `--tree` list it (the path
    of its object, "model/kernel"); a stored name always wins, and `keys` are stored names. Names
    that begin with `_CKPTFMT_` belong to the format: they are left out of listings, and found when
    asked for. Any number of threads may use a reader; it can be pickled (by path). A forked
    child opens local files again when it reads; a reader of a URL must be opened anew.

    >>> ckptfmt.save("model", {"layer/kernel": np.ones((2, 3)), "step": 7})
    >>> reader = ckptfmt.Reader("model")
    >>> list(reader), list(reader.keys(prefix="layer/")), "step" in reader
    (['layer/kernel', 'step'], ['layer/kernel'], True)
    >>> int(reader["step"].read()), reader["layer/kernel"][0].tolist()
    (7, [1.0, 1.0, 1.0])
    >>> reader.close()

    Args:
        prefix: the path without extension; `ckptfmt.open` finds checkpoints by other paths as well.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.
        follow_symlinks: False refuses an index or data file that is a symbolic link.

    Attributes:
        prefix: the path without extension, str.
        header: the header of the index, a `types.Header`.
        metadata: what a save was given as `metadata`, a dict.

    Raises:
        CheckpointNotFoundError: there is no checkpoint at `prefix`.
        CorruptError, UnsupportedError, LimitError, StorageError: its index is damaged, of an
            unknown version, beyond `limits`, or cannot be read now.
    """

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        return isinstance(name, (str, bytes)) and tensor_text(name) in self._people

    def _otherwise(self, name: str | bytes, _: TensorNotFoundError) -> str:
        return self._people.find(tensor_text(name))

    @cached_property
    def _people(self) -> TensorNames:
        # Most programs know the stored names: the first tensor comes 7 ms sooner without it.
        from ckptfmt.naming.tensor_names import TensorNames  # noqa: PLC0415

        return TensorNames(self)

    def _by_stored_names(self) -> reading.Reader:
        found = reading.Reader.__new__(reading.Reader)
        found.__dict__.update(self.__dict__)
        return found


Reader.__module__ = "ckptfmt"
