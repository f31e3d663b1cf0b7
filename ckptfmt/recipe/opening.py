# SPDX-License-Identifier: Apache-2.0
"""Opens what a command is given, a checkpoint or a file of another format, to read it only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from ckptfmt._base.arguments import Verify, invalid
from ckptfmt._base.hints import near
from ckptfmt._base.names import is_url, printable
from ckptfmt.bundle.graph import leaf_name
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.reader import open as open_checkpoint
from ckptfmt.errors import CkptfmtError, TensorNotFoundError, UnsupportedError, masked, warn
from ckptfmt.files.places import names_in
from ckptfmt.formats import safetensors
from ckptfmt.formats.tensors import FileTensor, Unreadable
from ckptfmt.recipe.convert import convert
from ckptfmt.recipe.sources import Format, format_of, module_of


class Opened(NamedTuple):
    """What was opened.

    Attributes:
        reader: of the checkpoint, or of a temporary one that the file was converted to.
        path: the prefix of the checkpoint, or the path of the file.
        format: the format of what is at `path`.
        left_out: in words, what of the file could not be read.
    """

    reader: Reader
    path: str
    format: Format
    left_out: tuple[str, ...] = ()


def kind_of(path: str) -> Format:
    """Return the format of what is at a path; "tensorflow" for a URL and for what is not known or
    does not exist, whose reader reports what it is."""
    if is_url(path) or not os.path.exists(path):
        return "tensorflow"
    return format_of(path, exists=True)


def open_tensors(
    kind: Format, path: str
) -> AbstractContextManager[tuple[Mapping[str, FileTensor], dict[str, str]]]:
    """Open a file of a format other than "tensorflow": its tensors and its metadata. Reads what
    describes the tensors, not their values; errors as `open_tensors` of the format."""
    opened: AbstractContextManager[tuple[Mapping[str, FileTensor], dict[str, str]]]
    opened = module_of(kind).open_tensors(path)
    return opened


def files_of(kind: Format, path: str) -> list[str]:
    """Return the files that hold the tensors of a format other than "tensorflow"."""
    if kind == "safetensors":
        return sorted(safetensors.shards(path)) or [path]
    if kind == "dcp":
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        return sorted(os.path.join(folder, name) for name in names_in(folder or "."))
    return [path]


@contextlib.contextmanager
def open_any(path: str, tensor: str | None = None, verify: Verify = "auto") -> Iterator[Opened]:
    """Open a checkpoint, or a file of another format through a temporary conversion.

    Args:
        path: what `ckptfmt.open` or `ckptfmt.convert` takes.
        tensor: of a file, convert only the tensor of this name, after which an index in brackets
            may follow.
        verify: how a checkpoint is read; "off" is refused for other files.

    Raises:
        TensorNotFoundError: the file has no such tensor.
        UnsupportedError: this tensor of the file, or none, can be read; others are left out, with a
            CkptfmtWarning.
        CkptfmtError: as `ckptfmt.open` and `ckptfmt.convert`.
    """
    kind = kind_of(path)
    if kind == "tensorflow":
        with open_checkpoint(path, verify=verify) as reader:
            yield Opened(reader, reader.prefix, kind)
        return
    if verify == "off":
        raise invalid("unverified", "only the values of checkpoints have checksums", path=path)
    chosen, unread = None, list[CkptfmtError]()
    if tensor is not None:
        chosen = _stored_name(kind, path, tensor)
    else:
        unread = _unsupported(kind, path)
    with tempfile.TemporaryDirectory(prefix="ckptfmt-") as directory:
        prefix = os.path.join(directory, "converted")
        try:
            # Reading the result compares it with its checksums.
            done = convert(
                path,
                prefix,
                to="tensorflow",
                keep=chosen,
                drop=[str(error.tensor) for error in unread] or None,
                drop_metadata=chosen is not None,  # a value of a DCP directory has a name
                durability="none",
                check_result=False,
            )
            left_out = [*(done.dropped if kind == "dcp" else ()), *map(str, unread)]
            for what in left_out:
                warn(f"left out: {what}")
            with open_checkpoint(prefix) as reader:
                yield Opened(reader, path, kind, tuple(left_out))
        except CkptfmtError as error:
            if (error.path or "").startswith(directory):
                error.path = masked(path)
            raise


def _unsupported(kind: Format, path: str) -> list[CkptfmtError]:
    """Return why tensors cannot be read that are left out, as there are others."""
    with open_tensors(kind, path) as (tensors, _):
        errors = [one.error for one in tensors.values() if isinstance(one, Unreadable)]
        found = [error for error in errors if isinstance(error, UnsupportedError)]
        return [*found] if len(found) < len(tensors) else []


def _stored_name(kind: Format, path: str, given: str) -> str:
    with open_tensors(kind, path) as (tensors, _):
        by_name = {leaf_name(name): name for name in tensors}
        by_name |= {printable(name): name for name in tensors} | {name: name for name in tensors}
        name = given if given in by_name or "[" not in given else given[: given.rindex("[")]
        if name not in by_name:
            hint = near(name, list(tensors))
            raise TensorNotFoundError(f"not found in the file{hint}", path=path, tensor=name)
        _ = tensors[by_name[name]].dtype  # refuses what cannot be read
    return by_name[name]
