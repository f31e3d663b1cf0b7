# SPDX-License-Identifier: Apache-2.0
"""What is taken of a source, in a file, or files, of another format."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import foreign
from ckptfmt._base.arguments import Durability, check_choice, invalid
from ckptfmt._base.casting import dtype_text
from ckptfmt._base.hints import some
from ckptfmt._base.progress import Meter, Progress
from ckptfmt.bundle.comparing import pieces
from ckptfmt.errors import InvalidError, storage_errors
from ckptfmt.files.temporary import (
    make_directory,
    open_directory,
    replacing_file,
    sync_descriptor,
)
from ckptfmt.formats import safetensors, torch_state
from ckptfmt.formats.tensors import Box, Kind, Read
from ckptfmt.recipe.sources import Format, Taken, module_of, of_text
from ckptfmt.recipe.values import equal_values, other_values


def kinds_of(
    taken: Taken, holds: Callable[[np.dtype[Any]], bool], result: str, most: int
) -> list[Kind]:
    """Return what the tensors become.

    Raises:
        InvalidError: the result cannot hold a dtype.
        LimitError: the tensors have more than `most` bytes.
    """
    kinds = [Kind(name, one.dtype, one.shape) for name, one in taken.tensors.items()]
    for name, dtype, _ in kinds:
        if not holds(dtype):
            hint = "" if dtype.kind == "O" else f"cast={{{name!r}: DTYPE}} converts it, "
            raise invalid(
                None,
                f"{result} cannot hold {dtype_text(dtype)}; {hint}drop={name!r} leaves it out",
                tensor=name,
            )
    taken.check_output(most)
    return kinds


def compare(kinds: list[Kind], result: Read, taken: Taken) -> None:
    """Raise CorruptError if the result does not hold what was taken."""
    losses = taken.changes.done.losses.copy()
    for kind in kinds:
        for box in pieces(kind.shape, max(kind.dtype.itemsize, 1)):
            if not equal_values(result(kind.name, box), taken.tensors[kind.name].read(box)):
                raise other_values(kind.name)
    taken.changes.done.losses = losses  # what is read again is not lost again


class Output(NamedTuple):
    """One file of the result, under its temporary name."""

    path: str
    kinds: list[Kind]


class Export:
    """The conversion to a file, or files, of another format."""

    def __init__(
        self,
        format: Format,  # noqa: A002 (the format's name)
        destination: str,
        durability: Durability,
        max_shard_bytes: int | None,
    ) -> None:
        check_choice("durability", durability, get_args(Durability))
        if format == "dcp":
            raise invalid(
                "to", "to: 'dcp' directories are only read; ckptfmt.torch.dcp saves with torch"
            )
        self._module, self._format, self._path = module_of(format), format, destination
        self._durability: Durability = durability
        self._most = max_shard_bytes
        if safetensors.is_index(destination) and max_shard_bytes is None:
            raise invalid(
                "max_shard_bytes",
                "a safetensors index needs max_shard_bytes= for the size of its files",
                path=destination,
            )

    def check(self, taken: Taken, most: int) -> tuple[list[Kind], dict[str, str]]:
        """Return what the tensors become, as `kinds_of`, and the metadata; add what has no place in
        the result to `taken.dropped`."""
        kinds = kinds_of(taken, self._module.holds, self._format, most)
        exported, lost = torch_state.exported(
            taken.tensors, taken.described(), taken.changes.rename
        )
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in exported.items()
        }
        if others := [name for name in texts if of_text(name, texts[name]) != exported[name]]:
            lost.append(f"the types of metadata, which become texts: {some(others)}")
        taken.dropped += lost
        named = foreign.by_name(self._path)
        is_keras = named is not None and named[0] is foreign.KERAS_WEIGHTS
        if is_keras and self._format == "hdf5":
            self._check_keras_names(kinds)
        return kinds, texts

    def write(
        self, taken: Taken, check_result: bool, progress: Progress | None, most: int
    ) -> tuple[str, list[Kind]]:
        """Write all files, then make them visible, the index last. Return the path, and what the
        tensors have become."""
        kinds, texts = self.check(taken, most)
        meter = Meter(progress, sum(kind.nbytes for kind in kinds))

        def read(name: str, box: Box) -> NDArray[Any]:
            array: NDArray[Any] = taken.tensors[name].read(box)
            meter.add(array.nbytes)
            return array

        return self._write_files(kinds, texts, read, taken if check_result else None), kinds

    def _check_keras_names(self, kinds: list[Kind]) -> None:
        """Refuse what no Keras model loads: only a model says which variable is which."""
        unlike = self._module.unlike_keras(kinds)
        if unlike is not None:
            name, why = unlike
            raise InvalidError(
                f"{why}, so that it cannot be in a .weights.h5 file. Load the checkpoint into the "
                "model, ckptfmt.keras.load_weights(model, PATH), and save that, "
                "model.save_weights('NAME.weights.h5'); or name the result .h5 to keep the names",
                path=self._path,
                tensor=name,
            )

    def _write_files(
        self,
        kinds: list[Kind],
        metadata: Mapping[str, str],
        read: Read,
        again: Taken | None,
    ) -> str:
        """Write all files; compare them with `again`. Return the path."""
        folder = os.path.dirname(self._path)
        make_directory(folder, self._durability)
        with open_directory(folder) as directory, contextlib.ExitStack() as stack:

            def new(path: str, like: str | None = None) -> str:
                opened = replacing_file(directory, path, self._durability, like)
                return stack.enter_context(opened)[0]

            index_name = None
            files = [Output(self._path, kinds)]
            path, parts = self._path, [kinds]
            if self._most is not None:
                parts = safetensors.split(kinds, self._most)
            base = safetensors.base_of(path)
            is_split = len(parts) > 1 or safetensors.is_index(path)
            if self._format == "safetensors":
                safetensors.refuse_beside(path, is_split=is_split)
            if is_split:
                path = base + safetensors.INDEX
                index = new(path)  # entered first, so that it becomes visible last
                index_name = os.path.basename(path)
                paths = safetensors.shard_names(path, len(parts))
                files = [Output(*one) for one in zip(paths, parts, strict=True)]
                for part in parts:
                    safetensors.header_of(part, metadata)  # refused before anything is read
                with open(index, "wb") as out:
                    by_file = {os.path.basename(one.path): one.kinds for one in files}
                    out.write(safetensors.index_json(by_file))
            for file in files:
                temporary = new(file.path, index_name)
                self._module.write(temporary, file.kinds, metadata, read)
                if again is not None:
                    self._check(temporary, file.kinds, again)
            if index_name is not None:
                # Never an index of old files and new ones, after a power cut either.
                gone = safetensors.shards_of(path) - {os.path.basename(one.path) for one in files}
                self._remove(directory, index_name, *sorted(gone))
        return path

    def _remove(self, directory: int, *names: str) -> None:
        """Remove files of the directory, the first one durably before the others."""
        for name in names:
            path = os.path.join(os.path.dirname(self._path), name)
            with storage_errors(path), contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
                if name == names[0] and self._durability == "full":
                    sync_descriptor(directory)

    def _check(self, path: str, kinds: list[Kind], taken: Taken) -> None:
        with self._module.open_tensors(path) as (tensors, _):
            if tensors.keys() != {kind.name for kind in kinds}:
                raise other_values(None)
            compare(kinds, lambda name, box: tensors[name].read(box), taken)
