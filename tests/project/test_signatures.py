# SPDX-License-Identifier: Apache-2.0
"""The signatures that other people's code is written against: names, order, kinds and defaults."""

from __future__ import annotations

import functools
import inspect
from concurrent.futures import Future
from typing import Any

import ckptfmt

_SAVE = (
    "(prefix, tensors, *, metadata=None, level='v2+', compression=None, durability='full', "
    "base=None, progress=None)"
)
SIGNATURES: dict[str, str] = {
    "save": _SAVE,
    "save_async": _SAVE,
    "load": "(path, names=None, *, filter=None, rename=None, cast=None, verify='auto', "
    "progress=None)",
    "load_into": "(path, targets, *, names=None, filter=None, rename=None, cast=None, strict=True, "
    "verify='auto', progress=None)",
    "save_v2": "(prefix, tensor_names, shape_and_slices, tensors)",
    "restore_v2": "(prefix, tensor_names, shape_and_slices, dtypes=None)",
    "merge_v2_checkpoints": "(checkpoint_prefixes, destination_prefix, delete_old_dirs=True, "
    "allow_missing_files=False)",
    "sharded_filename": "(basename, shard, num_shards)",
    "open": "(path, *, verify='auto')",
    "Reader.keys": "(self, *, prefix=None, glob=None, regex=None)",
    "Reader.table": "(self)",
    "Reader.digest": "(self)",
    "types.TensorHandle.read": "(self)",
    "types.TensorHandle.read_into": "(self, array)",
    "types.TensorHandle.map": "(self)",
    "Writer": "(prefix)",
    "Writer.add": "(self, name, array)",
    "Writer.add_slice": "(self, name, array, shape=None, offset=None, *, spec=None)",
    "merge": "(prefixes, destination, *, inputs='keep')",
    "editing.edit": "(source, destination, *, rename=None, drop=None, keep=None, cast=None, "
    "metadata=None, strip_optimizer=False)",
    "editing.average": "(sources, destination)",
    "verify": "(path)",
    "convert": "(source, destination)",
    "latest_checkpoint": "(directory)",
    "sharded.save": "(prefix, tensors, layouts, coordinator)",
    "sharded.restore": "(prefix, layouts, coordinator)",
}


def promised(text: str) -> list[inspect.Parameter]:
    scope: dict[str, Any] = {}
    exec(f"def f{text}: ...", scope)
    return list(inspect.signature(scope["f"]).parameters.values())


def test_signatures() -> None:
    """Further parameters have a default and come after the promised positional ones."""
    for name, signature in SIGNATURES.items():
        found: Any = functools.reduce(getattr, name.split("."), ckptfmt)  # type: ignore[arg-type]
        actual = dict(inspect.signature(found).parameters)
        wanted = promised(signature)
        names = [one.name for one in wanted if one.kind != one.KEYWORD_ONLY]
        assert list(actual)[: len(names)] == names, name
        for one in wanted:
            ours = actual.pop(one.name)
            assert (ours.kind, ours.default) == (one.kind, one.default), (name, one.name)
        for more in actual.values():
            assert more.default is not more.empty or more.kind == more.VAR_KEYWORD, (name, more)


ERRORS: dict[str, tuple[str, ...]] = {
    "CorruptError": ("CkptfmtError",),
    "UnsupportedError": ("CkptfmtError",),
    "LimitError": ("CkptfmtError",),
    "InvalidError": ("CkptfmtError", "ValueError"),
    "TensorNotFoundError": ("CkptfmtError", "KeyError"),
    "CheckpointNotFoundError": ("StorageError", "FileNotFoundError"),
    "StorageError": ("CkptfmtError", "OSError"),
    "ShardMissingError": ("StorageError",),
    "GenerationGoneError": ("StorageError",),
    "DurabilityUnknownError": ("StorageError",),
    "MergeConflictError": ("CkptfmtError", "ValueError"),
    "BusyError": ("CkptfmtError",),
}


def test_errors() -> None:
    for name, bases in ERRORS.items():
        assert tuple(base.__name__ for base in getattr(ckptfmt.errors, name).__bases__) == bases
    assert issubclass(ckptfmt.types.SaveFuture, Future)


def test_names() -> None:
    handle = (
        "shape dtype nbytes slices shard offset crc32c read read_into map partial_reads_verified"
    )
    for name in handle.split():
        assert name == "dtype" or hasattr(ckptfmt.types.TensorHandle, name), name
    for name in ("metadata", "verify", "digest", "keys", "table"):
        assert hasattr(ckptfmt.Reader, name), name
    functions = (
        "load_checkpoint list_variables load_variable latest_checkpoint get_checkpoint_state "
        "checkpoint_exists"
    )
    for name in functions.split():
        assert callable(getattr(ckptfmt.tf, name)), name
