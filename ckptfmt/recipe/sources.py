# SPDX-License-Identifier: Apache-2.0
"""What changes take of a checkpoint or a file of another format: its tensors, by their new names,
with the values that casts and transforms make, and the metadata that go with them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import foreign, names
from ckptfmt._base.casting import dtype_text
from ckptfmt._base.hints import NAMED_MAX, some
from ckptfmt._base.patterns import Passing, filter_function
from ckptfmt._base.renaming import CastFirst, Transform, transformed, transformed_kind
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.graph_keys import missing_tensors
from ckptfmt.bundle.meanings import COMPLEX, PRNG_KEYS, Meant, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, LimitError
from ckptfmt.files.locate import holds_checkpoints, locate, recognised
from ckptfmt.files.places import is_file, names_in
from ckptfmt.formats import torch_state
from ckptfmt.formats.tensors import Box, Tensor, Unreadable
from ckptfmt.naming.metadata import NamedInMetadata
from ckptfmt.naming.roles import KERAS_NAMES, OPTIMIZER_STATES
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.plan import Tensors, plan
from ckptfmt.recipe.values import mapped_array

Format = Literal["tensorflow", "safetensors", "npz", "hdf5", "dcp"]
WAY_OUT = "drop_metadata=True"


def format_of(path: str, *, exists: bool) -> Format:
    """Return the format of a path: if it `exists` by what is there, where that can be recognised,
    else by its extension. What `convert` cannot read counts as "tensorflow", whose reader reports
    what it is."""
    if exists and not names.is_url(path):
        if is_file(names.index_name(path)):
            return "tensorflow"
        kind = recognised(path)
        if kind is not None:
            return kind.convertible or "tensorflow"
        found = names_in(path) if os.path.isdir(path) else []
        # Such a file does not make a directory a model, but there is nothing else to convert.
        if any(name.lower().endswith(".safetensors") for name in found) and not holds_checkpoints(
            found
        ):
            return "safetensors"
    named = foreign.by_name(path)
    return (named[0].convertible if named is not None else None) or "tensorflow"


def module_of(name: Format) -> Any:
    """Return the module of a format other than "tensorflow"."""
    return importlib.import_module(f"ckptfmt.formats.{name}")


@dataclass
class Taken:
    """What changes take of a source: what `opened` gives, after `take`.

    Attributes:
        path: of the source.
        tensors: by their new names, but for the object graph and what cannot be read.
        metadata: by which the new names are.
        dropped: in words, what the source has that is not taken.
        missing: keys of the object graph without a tensor.
        passing: returns the function of a filter by all names that tensors have.
        changes: cast values, and count what that loses.
        casts: by new name, the dtypes before and after.
        uncast: new names of the 0-d tensors of the kind of `cast=DTYPE`, which leaves them.
    """

    path: str
    tensors: dict[str, Any]
    metadata: dict[str, Any]
    dropped: list[str]
    missing: tuple[str, ...]
    passing: Passing
    changes: Changes = field(default_factory=Changes)
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    uncast: tuple[str, ...] = ()

    def check_output(self, most: int) -> None:
        """Refuse what becomes far more than its file has.

        Raises:
            LimitError: the tensors have more than `most` bytes.
        """
        total = 0
        for name, one in self.tensors.items():
            total += math.prod(one.shape) * one.dtype.itemsize
            if total > most:
                raise LimitError(
                    f"its arrays have more than {most} bytes, far more than the file; "
                    "limits={'expansion_max': N} allows N times its bytes",
                    path=self.path,
                    tensor=name,
                )

    def described(self, bits: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the metadata, with `bits` the dtypes of torch that tensors are the bits of, and
        otherwise without notes on tensors that are values now."""
        tensors = self.tensors
        changed = [name for name, one in tensors.items() if isinstance(one, Made)]
        notes: dict[str, str | None] = dict.fromkeys([*changed, *_complex(tensors)])
        notes |= bits or {}
        if not notes:
            return self.metadata
        return NamedInMetadata(tensors, self.metadata, self.path, way_out=WAY_OUT).noted(notes)


@contextlib.contextmanager
def opened(
    kind: Format,
    source: str,
    limits: Mapping[str, int] | None,
    *,
    keeps: bool,
    forgets: bool = False,
    way_out: str = WAY_OUT,
    as_state: bool = False,
    sift: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[Taken]:
    """Give all that a source has, with its metadata if `keeps`.

    Args:
        forgets: whether damaged metadata of a checkpoint count as none.
        way_out: the argument that makes it so, for errors; "" if the caller has none.
        as_state: whether a DCP directory becomes a state of `ckptfmt.torch`.
        sift: removes the tensors of a file of another format that cannot be read; the file may be
            damaged then.

    Raises:
        CkptfmtError: as Reader, and `open_tensors` of the format.
    """
    dropped: list[str] = []
    missing: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        if kind != "tensorflow":
            opening = module_of(kind).open_tensors(source, damaged=sift is not None)
            tensors, metadata = stack.enter_context(opening)
            if sift is not None:
                sift(tensors)
            if kind == "dcp" and as_state:
                metadata = module_of(kind).take_state(tensors)
            if kind == "hdf5":
                names = sorted(map(list, tensors.group_names.items()))
                metadata = {KERAS_NAMES: names} if names else {}
                if tensors.has_attributes:
                    dropped.append("the attributes of groups and datasets")
            if kind == "safetensors":
                metadata = {name: of_text(name, one) for name, one in metadata.items()}
                metadata = torch_state.with_ties(tensors, metadata)
                if unknown := set[str]().union(*(one.unknown for one in tensors.values())):
                    dropped.append(f"unknown keys of the header: {some(sorted(unknown))}")
            # A name means its tensor alone, whether or not it is taken.
            passing: Passing = functools.partial(filter_function, present=frozenset(tensors))
        else:
            reader = stack.enter_context(Reader(locate(source), limits=limits))
            if reader._settle_metadata(replaced=forgets, way_out=way_out):
                dropped.append("the metadata")
            missing, metadata = missing_tensors(reader), reader.metadata
            passing = TensorNames(reader).passing
            last: dict[Handle, NDArray[Any]] = {}
            tensors = {one.name: Handle(meant(one), last, one.meaning) for one in reader.values()}
            if tensors.pop(OBJECT_GRAPH_KEY, None):
                dropped.append("TensorFlow's object graph")
        if not keeps:
            dropped += torch_state.left_out(tensors, metadata)
        metadata = metadata if keeps else {}
        yield Taken(source, dict(tensors), metadata, dropped, missing, passing)


def take(every: Taken, changes: Changes) -> Taken:
    """Return what changes take of all tensors.

    Raises:
        TensorNotFoundError, InvalidError: as `plan`; a transform fails; metadata that cannot follow
            the new names.
    """
    tensors, every.changes = every.tensors, changes
    stored, rename = list(tensors), changes.rename
    named = rename is not None or changes.drop is not None or changes.keep is not None
    metadata = every.metadata if named or changes.cast is not None else {}
    described = NamedInMetadata(stored, metadata, every.path, way_out=WAY_OUT, are_values=True)

    def kinds(rows: Sequence[int]) -> tuple[list[Any], list[tuple[int, ...]]]:
        chosen = [tensors[stored[row]] for row in rows]
        unread = [
            isinstance(one, Unreadable) or getattr(one, "left_out", None) is not None
            for one in chosen
        ]
        found = [None if no else one.dtype for one, no in zip(chosen, unread, strict=True)]
        return found, [one.shape for one in chosen]

    found = plan(changes, Tensors(stored, kinds, every.path, described, every.passing))
    new_names = found.new_names()
    if named:
        edited = described.edited(new_names, cut=False, rename=rename)
        every.metadata = every.metadata if edited is None else edited
    taken = {new: tensors[old] for old, new in new_names.items() if new is not None}
    refuse_unreadable(taken)
    every.dropped += _take_unread(taken, every.metadata)
    every.casts = _complex(taken)
    for old, (before, to) in found.casts.items():
        meaning = getattr(tensors[old], "meaning", None)
        every.casts[str(new_names[old])] = meaning or dtype_text(before), dtype_text(to)
    last: dict[str, NDArray[Any]] = {}
    for old in [*found.transforms, *found.only_cast()]:
        new, tensor = str(new_names[old]), tensors[old]
        dtype = found.casts[old][1] if old in found.casts else None
        if dtype is not None and isinstance(tensor, Handle):
            tensor = tensor.dequantized
        taken[new] = Made(new, tensor, found.transforms.get(old), dtype, changes, last)
    every.uncast = tuple(str(new_names[old]) for old in changes.results()["uncast"])
    every.tensors = taken
    return every


def refuse_unreadable(tensors: Mapping[str, Any]) -> None:
    """Raise the error of the first tensor that cannot be read, with what leaves all of them out."""
    found = {name: one.error for name, one in tensors.items() if isinstance(one, Unreadable)}
    for error in found.values():
        which = [*found] if len(found) <= NAMED_MAX else "FILTER"
        message = f"{error.message}; drop={which} leaves out what cannot be read"
        raise type(error)(message, **error.details())


def _take_unread(tensors: dict[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Remove what cannot be read; return the names and classes in words."""
    kinds = {name: getattr(one, "left_out", None) for name, one in tensors.items()}
    found = {name: kind for name, kind in kinds.items() if kind is not None}
    for name in found:
        del tensors[name]
    texts = [f"'{names.printable(name)}', a {kind}" for name, kind in found.items()]
    if texts and not tensors and not metadata:
        raise InvalidError(f"no tensor is left: {texts[0]}, cannot be read")
    return texts


def _complex(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
    """Return the names of complex32 tensors, and the dtypes that they have and are read as."""
    meanings = {name: getattr(one, "meaning", None) for name, one in tensors.items()}
    return {name: (one, "complex64") for name, one in meanings.items() if one == COMPLEX}


def of_text(name: str, text: str) -> Any:
    """Return the value of metadata from safetensors, which has texts alone: the list that
    `ckptfmt` stored, of members that name tensors."""
    if name in (OPTIMIZER_STATES, PRNG_KEYS, KERAS_NAMES):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            return found if isinstance(found, list) else text
    return text


class Made:
    """A tensor that is cast and transformed when it is read.

    Attributes:
        stored: the tensor before.

    Args:
        name: its new name.
        tensor: the stored tensor, with numbers if it is quantized and cast.
        transform: None if it is only cast; else it casts first, if the tensor is cast.
        dtype: that it is cast to.
        changes: cast the values, and count what that loses.
        last: the transformed tensor that was read last, by name: large ones are read box by box.
    """

    def __init__(
        self,
        name: str,
        tensor: Any,
        transform: Transform | CastFirst | None,
        dtype: np.dtype[Any] | None,
        changes: Changes,
        last: dict[str, NDArray[Any]],
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype or tensor.dtype, tensor.shape
        self.stored, self._transform, self._changes, self._last = tensor, transform, changes, last
        if transform is not None:
            self.dtype, self.shape = transformed_kind(name, tensor.dtype, tensor.shape, transform)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box of the result."""
        if self._transform is None:
            start = tuple(side.start for side in box)
            array = self.stored.read(box)
            return self._changes.converted(array, self.dtype, self.name, start, start)
        if self.name not in self._last:
            self._last.clear()
            array = transformed(
                self.name, self.stored.read(), self._transform, self.shape, self.dtype
            )
            self._last[self.name] = np.ascontiguousarray(array).reshape(self.shape)
        return self._last[self.name][box] if box else self._last[self.name]


class Handle:
    """A tensor of a TensorFlow checkpoint, verified whatever part of it is read.

    Args:
        handle: of the tensor.
        last: the tensor of its checkpoint that was last read in boxes but has no sums of chunks,
            whole: there is room for one.
        meaning: the dtype that it is the bits of.
    """

    def __init__(
        self, handle: TensorHandle, last: dict[Handle, NDArray[Any]], meaning: str | None = None
    ) -> None:
        self.name, self.shape, self.meaning = handle.name, handle.shape, meaning
        self._handle, self._last = handle, last

    @functools.cached_property
    def dequantized(self) -> Handle:
        """The same tensor with numbers, if it is quantized."""
        handle = self._handle
        return Handle(handle.dequantized(), self._last) if isinstance(handle, Meant) else self

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        self._handle._check_rank()
        if isinstance(self._handle, Meant):
            self._handle.taken(is_cast=True)
        if self._handle.dtype is None:
            raise self._handle._unsupported(
                f"the elements of {self._handle.dtype_name} are not known"
            )
        if self._handle.dtype_name == "variant":
            raise self._handle._unsupported("another format would hold variants as strings")
        return self._handle.dtype

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as an array."""
        if not box:
            return self._handle.read(verify="full")
        if self._handle.partial_reads_verified:
            return np.asarray(self._handle[(*box, ...)])
        if self not in self._last:
            self._last.clear()
            array = mapped_array(self.name, self.shape, self.dtype, None)
            self._handle.read_into(array, verify="full")
            self._last[self] = array
        return self._last[self][box].copy()  # a view would keep the file after its turn
