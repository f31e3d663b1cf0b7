# SPDX-License-Identifier: Apache-2.0
"""Files in the safetensors format, and models of several such files with an index.

A file is the size of its header (8 bytes, little-endian), a JSON header that names dtype, shape and
data offsets of each tensor, and the bytes of the tensors without gaps, row-major and little-endian.
`<name>.safetensors.index.json` maps tensor names to the files of a model. A directory without an
index is a model of all its files; those that torch.distributed.checkpoint writes have slices of
tensors, and their metadata say where each begins in its tensor.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes, foreign
from ckptfmt._base.arguments import invalid
from ckptfmt._base.untrusted import checked_shape, parsed_json
from ckptfmt.bundle.comparing import pieces
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    LimitError,
    ShardMissingError,
    UnsupportedError,
    shortened,
)
from ckptfmt.files.locate import kind_of_file
from ckptfmt.formats.tensors import (
    READ_BYTES,
    UNNAMED,
    Box,
    ByteFile,
    Kind,
    Places,
    Read,
    Unreadable,
    overlap,
    read_chunks,
)

INDEX = ".safetensors.index.json"
METADATA = "__metadata__"
# In the metadata of files that torch.distributed.checkpoint writes: JSON, by names of tensors.
SHARDING = "DCP_SHARDING_INFO"
# Names of files that belong together: the rank of DCP, the name of the model, number and count.
_NUMBERED = re.compile(
    r"(?:shard-\d{5,}-)?(.*)-(\d{5,})-of-(\d{5,})\.safetensors",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
_OF_A_RANK = re.compile(r"shard-\d{5,}-.*", re.ASCII | re.DOTALL | re.IGNORECASE)
# The limit of the safetensors library.
HEADER_MAX = 100_000_000
# The library aligns the data so that all dtypes can be mapped.
ALIGNMENT = 8
# Of a tensor in the header. Others are ignored, as the library does.
KEYS = {"dtype", "shape", "data_offsets"}

# numpy's name of each dtype.
_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": dtypes.FP4,
}
_CODES = {name: code for code, name in _NAMES.items()}
# Bits of an element of the dtypes that take less than a byte; a checkpoint has none of 6.
_BITS = {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


@functools.cache
def _dtype_of(code: str) -> np.dtype[Any] | None:
    name = _NAMES.get(code)
    if name is None:
        return None
    try:
        return np.dtype(name)
    except TypeError:
        return dtypes.narrow_dtype(name)


@functools.cache
def code_of(dtype: np.dtype[Any]) -> str | None:
    """Return the name that safetensors has for a numpy dtype; None if it has none."""
    return _CODES.get(dtype.name)


def _bits(dtype: np.dtype[Any]) -> int:
    """Return the bits of an element in a file."""
    return _BITS.get(code_of(dtype) or "", 8 * dtype.itemsize)


def _nbytes(kind: Kind) -> int:
    return math.prod(kind.shape) * _bits(kind.dtype) // 8


def has_pairs(shape: tuple[int, ...]) -> bool:
    """Return whether the last dimension has pairs of elements, as F4 needs in torch too."""
    return bool(shape) and not shape[-1] % 2


def base_of(path: str) -> str:
    """Return the path of a file or an index without its extension."""
    return re.sub(r"\.safetensors(\.index\.json)?\Z", "", path, flags=re.IGNORECASE)


def is_index(path: str) -> bool:
    """Return whether a path has the extension of an index."""
    return path.lower().endswith(INDEX)


def holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a tensor of this dtype can be written."""
    return code_of(dtype) is not None


# ---- reading -------------------------------------------------------------------------------------


class FileTensor:
    """One tensor of a file.

    Attributes:
        code: the name of its dtype in the file, such as "F32".
        offset, nbytes: where its bytes are in the file.
        unknown: keys of the header that are not KEYS.
    """

    def __init__(
        self,
        name: str,
        about: dict[str, Any],
        shape: tuple[int, ...],
        file: ByteFile,
        offset: int,
        nbytes: int,
    ) -> None:
        self.name, self.shape = name, shape
        self.code: str = about["dtype"]
        self.offset, self.nbytes = offset, nbytes
        self.unknown = about.keys() - KEYS
        self._file = file

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype. Raises UnsupportedError if there is none."""
        dtype = _dtype_of(self.code)
        if dtype is None or (self.code == "F4" and not has_pairs(self.shape)):
            raise UnsupportedError(
                f"dtype {self.code} cannot be read as an array of shape {self.shape}",
                path=self._file.path,
                tensor=self.name,
            )
        return dtype

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as a new array, reading little more than it.

        Raises:
            UnsupportedError: a dtype without a numpy dtype.
            CorruptError, StorageError: the bytes cannot be read.
        """
        dtype, shape = self.dtype, self.shape
        if self.code == "F4":
            return self._read_pairs(box)
        found = self._file.read_box(self.offset, dtype, shape, box)
        if not np.little_endian:
            found.byteswap(inplace=True)
        return found

    def _read_pairs(self, box: Box) -> NDArray[Any]:
        first, stop = 0, self.shape[-1]
        if len(box) == len(self.shape):
            first, stop = box[-1].start, box[-1].stop
            box = (*box[:-1], slice(first // 2, -(-stop // 2)))
        shape = (*self.shape[:-1], self.shape[-1] // 2)
        pairs = self._file.read_box(self.offset, np.dtype(np.uint8), shape, box)
        return dtypes.unpacked_fp4(pairs)[..., first % 2 : first % 2 + stop - first]

    def check(self, places: Places) -> int | None:
        """Return None: there are no checksums, and `open_tensors` has checked the rest."""
        return None


class _Slice(NamedTuple):
    """A chunk of a tensor: a tensor of a file, and where it begins."""

    start: tuple[int, ...]
    tensor: FileTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def read(self, box: Box) -> NDArray[Any]:
        return self.tensor.read(box)


class _Joined(FileTensor):
    """A tensor in slices.

    Raises:
        CorruptError: they do not make up one tensor.
        UnsupportedError: elements of less than a byte; a shape that an array cannot have.
    """

    def __init__(self, slices: list[_Slice]) -> None:
        self._slices = slices
        first = slices[0].tensor
        self.name, self.code, self._file = first.name, first.code, first._file
        self.offset, self.nbytes = first.offset, sum(one.tensor.nbytes for one in slices)
        self.unknown = set[str]().union(*(one.tensor.unknown for one in slices))
        unsupported = functools.partial(UnsupportedError, path=self._folder, tensor=self.name)
        if any(one.tensor.code != self.code for one in slices):
            raise self._damaged("its slices have several dtypes")
        if any(len(one.shape) != len(first.shape) for one in slices):
            raise self._damaged("its slices have several numbers of dimensions")
        if self.code in _BITS:
            raise unsupported(f"slices of {self.code} cannot be joined")
        starts = np.array([one.start for one in slices], np.uint64)
        ends = starts + np.array([one.shape for one in slices], np.uint64)
        shape = ends.max(axis=0).tolist()
        self.shape = checked_shape(shape, self._damaged, unsupported, 1)
        if overlap(slices):
            raise self._damaged("its slices overlap")
        if math.prod(self.shape) != sum(math.prod(one.shape) for one in slices):
            raise self._damaged(f"its slices do not cover all of {list(self.shape)}")

    @property
    def _folder(self) -> str:
        return os.path.dirname(self._file.path)

    def _damaged(self, message: str) -> CorruptError:
        return CorruptError(message, failure="BAD_SLICE", path=self._folder, tensor=self.name)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as a new array; errors as `FileTensor.read`."""
        return read_chunks(self._slices, self.shape, self.dtype, box)[0]


class _Tensors(dict[str, FileTensor | Unreadable]):
    """The tensors by name.

    Attributes:
        index_error: what is wrong with the index, as if there were none.
    """

    index_error: CorruptError | None = None


@contextlib.contextmanager
def open_tensors(path: str, *, damaged: bool = False) -> Iterator[tuple[_Tensors, dict[str, str]]]:
    """Open a file, an index of several files, or a directory with an index or with files that have
    different tensors, or slices of tensors, for the time of a `with` block. Gives the tensors by
    name, in the order of their bytes, and the metadata. Of what is `damaged`, tensors that a file
    which is cut short or missing does not have are `Unreadable`, and an index that is not one, or
    contradicts the files, counts as missing (`index_error`).

    Raises:
        CheckpointNotFoundError, StorageError: a file cannot be opened.
        CorruptError: a file is not safetensors, damaged, or is not what the index says.
        LimitError: a header of more than 100 MB.
        UnsupportedError: an unknown dtype; a file of slices without the others of its directory.
        InvalidError: an index that names a file outside of its directory; a directory without an
            index in which two files have a tensor.
        ShardMissingError: of numbered files in a directory without an index one is missing.
    """
    path = _located(path)
    with contextlib.ExitStack() as stack:
        if not is_index(path):
            paths = _files_in(path) or [path]
            files = _entered(paths, stack)
            several = os.path.isdir(path)
            yield _joined(path, files, damaged) if several else _whole(files[0], damaged)
            return
        try:
            opened = _listed(path, damaged, stack)
        except CorruptError as error:
            folder = os.path.dirname(path) or "."
            files = _entered(_files_in(folder), stack)
            if not damaged or not files:
                raise
            opened = _joined(folder, files, damaged)
            opened[0].index_error = error
        yield opened


def shards(path: str) -> list[str]:
    """Return the files that an index, or the index in a directory, names, and without one, or with
    a damaged one, all of a directory; none of a single file."""
    path = _located(path)
    if not is_index(path):
        return _files_in(path)
    folder = os.path.dirname(path)
    try:
        return [os.path.join(folder, name) for name in set(_index(path).values())]
    except CorruptError:
        return _files_in(folder or ".")


def _located(path: str) -> str:
    """Return the index in a directory; other paths as they are."""
    found = _files_in(path, INDEX)
    if len(found) > 1:
        names = ", ".join(map(os.path.basename, found[:8]))
        raise InvalidError(f"the directory has several: {names}", path=path)
    return found[0] if found else path


def _files_in(path: str, end: str = ".safetensors") -> list[str]:
    """Return the files of a directory with this ending; none if `path` is not a directory."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return [os.path.join(path, name) for name in sorted(names) if name.lower().endswith(end)]


def _entered(paths: list[str], stack: contextlib.ExitStack) -> list[ByteFile]:
    return [stack.enter_context(contextlib.closing(ByteFile(one))) for one in paths]


def _listed(
    path: str, damaged: bool, stack: contextlib.ExitStack
) -> tuple[_Tensors, dict[str, str]]:
    """Return the tensors and the metadata of the files that an index names."""
    places = _index(path)
    found = _Tensors()
    metadata: dict[str, str] = {}
    for name in sorted(set(places.values())):
        shard = os.path.join(os.path.dirname(path), name)
        try:
            file = stack.enter_context(contextlib.closing(ByteFile(shard)))
            tensors, text = _whole(file, damaged)
        except (CheckpointNotFoundError, CorruptError) as error:
            if not damaged:
                raise
            here = [one for one, of in places.items() if of == name]
            found |= {one: Unreadable(one, error) for one in here}
            continue
        for tensor in tensors:
            # Loaders read all tensors of a file, listed or not, and one of several copies.
            if places.get(tensor, name) != name or tensor in found:
                raise CorruptError(
                    f"{name} has this tensor, and another file has it, or should have it",
                    failure="BAD_HEADER",
                    path=path,
                    tensor=tensor,
                )
        found |= tensors
        metadata |= text
    for tensor in places:
        if tensor not in found:
            raise CorruptError(
                f"{places[tensor]} does not have this tensor",
                failure="BAD_HEADER",
                path=path,
                tensor=tensor,
            )
    return found, metadata


def _whole(file: ByteFile, damaged: bool) -> tuple[_Tensors, dict[str, str]]:
    """Return the tensors and the metadata of a file. Raises UnsupportedError if it has slices."""
    tensors, metadata, starts = _header(file, damaged)
    folder, name = os.path.split(file.path)
    if starts and (_OF_A_RANK.fullmatch(name) or any(map(any, starts.values()))):
        raise UnsupportedError(
            "the file has slices of tensors, as torch.distributed.checkpoint saves those of one "
            f"rank: give the directory with the files of all, {folder or '.'!r}",
            path=file.path,
        )
    return tensors, metadata


def _joined(path: str, files: list[ByteFile], damaged: bool) -> tuple[_Tensors, dict[str, str]]:
    """Return the tensors and the metadata of all files of a directory. If one of what is `damaged`
    has no header, any tensor of which others have slices may have more of them there."""
    whole = _Tensors()
    lost: dict[str, Unreadable] = {}
    slices: dict[str, list[_Slice]] = {}
    metadata: dict[str, str] = {}
    seen: dict[str, ByteFile] = {}

    @contextlib.contextmanager
    def losing() -> Iterator[None]:
        try:
            yield
        except (ShardMissingError, CorruptError) as error:
            if not damaged:
                raise
            lost[UNNAMED] = Unreadable(UNNAMED, error)

    with losing():
        _check_numbers(path, files)
    for file in files:
        with losing():
            tensors, text, starts = _header(file, damaged)
            metadata |= text
            for name, tensor in tensors.items():
                if name in seen and (name in whole or starts is None):
                    both = " and ".join(os.path.basename(one.path) for one in (seen[name], file))
                    raise InvalidError(
                        f"{both} both have this tensor: give one file, or move the other away",
                        path=path,
                        tensor=name,
                    )
                seen[name] = file
                if isinstance(tensor, Unreadable):
                    lost[name] = tensor
                elif starts is None:
                    whole[name] = tensor
                else:
                    slices.setdefault(name, []).append(_Slice(starts[name], tensor))
    for name, parts in slices.items():
        is_whole = len(parts) == 1 and not any(parts[0].start)
        if UNNAMED in lost:
            lost[name] = Unreadable(name, lost[UNNAMED].error)
        elif name not in lost:
            whole[name] = parts[0].tensor if is_whole else _Joined(parts)
    whole.update(lost)
    return whole, metadata


def _check_numbers(path: str, files: list[ByteFile]) -> None:
    """Raise ShardMissingError if one of the files <name>-<number>-of-<count> is missing."""
    found: dict[tuple[str, int], set[int]] = {}
    for file in files:
        match = _NUMBERED.fullmatch(os.path.basename(file.path))
        if match is not None:
            found.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, count), numbers in found.items():
        missing = next(n for n in range(1, count + 2) if n not in numbers)
        if missing <= count:
            raise ShardMissingError(
                f"there is no {stem}-{missing:05}-of-{count:05}.safetensors, nor an index",
                path=path,
            )


def _index(path: str) -> dict[str, str]:
    """Return the file of each tensor."""
    with contextlib.closing(ByteFile(path)) as file:
        if file.size > HEADER_MAX:
            raise LimitError(f"an index of {file.size} bytes", path=path)
        index = _json(file, file.read(file.size, 0))
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise _bad(file, "an index must have a 'weight_map' from names to files")
    for name in places.values():
        if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise InvalidError(
                f"the index names {shortened(name)!r}, which is not a file beside it", path=path
            )
    return places


def _bad(file: ByteFile, message: str, tensor: str | None = None) -> CorruptError:
    return CorruptError(message, failure="BAD_HEADER", path=file.path, tensor=tensor)


def _json(file: ByteFile, text: bytes) -> Any:
    return parsed_json(text, functools.partial(_bad, file), unique=True)


def _header(
    file: ByteFile, damaged: bool
) -> tuple[_Tensors, dict[str, str], dict[str, tuple[int, ...]] | None]:
    """Return the tensors in the order of their bytes, the metadata, and of a file that may have
    slices where each begins in its tensor."""
    if file.size < 8:
        raise CorruptError(
            f"not a safetensors file: {file.size} bytes", failure="TRUNCATED", path=file.path
        )
    size = int.from_bytes(file.read(8, 0), "little")
    if size > file.size - 8:
        kind = kind_of_file(file.path)
        seems = "" if kind in (foreign.UNKNOWN, foreign.SAFETENSORS) else f" ({kind.seems})"
        raise CorruptError(
            f"the header should have {size} bytes, and the file has {file.size}{seems}",
            failure="TRUNCATED",
            path=file.path,
        )
    if size > HEADER_MAX:
        raise LimitError(f"a header of {size} bytes", path=file.path)
    header = _json(file, file.read(size, 8))
    if not isinstance(header, dict):
        raise _bad(file, "the header must be a JSON object")
    metadata = header.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise _bad(file, "the metadata must be texts")
    begin = 8 + size
    found = [_tensor(file, name, about, begin) for name, about in header.items()]
    found.sort(key=lambda one: (one.offset, one.nbytes))
    end = begin
    for one in found:
        if one.offset != end:
            raise _bad(file, "the bytes overlap others, or others are missing before", one.name)
        end += one.nbytes
    sharding = metadata.pop(SHARDING, None)
    tensors = _Tensors({one.name: one for one in found})
    starts = None if sharding is None else _starts(file, sharding, {one.name: one for one in found})
    if end != file.size:
        failure = "TRUNCATED" if end > file.size else "BAD_HEADER"
        error = CorruptError(
            f"the tensors end at byte {end}, and the file has {file.size}",
            failure=failure,
            path=file.path,
        )
        if not damaged or end < file.size:
            raise error
        cut = [one.name for one in found if one.offset + one.nbytes > file.size]
        tensors |= {name: Unreadable(name, error) for name in cut}
    return tensors, metadata, starts


def _starts(
    file: ByteFile, sharding: str, tensors: Mapping[str, FileTensor]
) -> dict[str, tuple[int, ...]]:
    listed = _json(file, sharding.encode("utf-8", "surrogatepass"))
    found = {}
    for name, tensor in tensors.items():
        damaged = functools.partial(_bad, file, tensor=name)
        about = listed.get(name) if isinstance(listed, dict) else None
        offsets = about.get("saved_offsets") if isinstance(about, dict) else None
        found[name] = checked_shape(offsets, damaged, damaged)
        if len(found[name]) != len(tensor.shape):
            raise damaged(f"{SHARDING} must have an offset for each dimension")
    return found


def _tensor(file: ByteFile, name: str, about: Any, begin: int) -> FileTensor:
    if not isinstance(about, dict) or not about.keys() >= KEYS:
        raise _bad(file, "a tensor must have dtype, shape and data_offsets", name)
    code, offsets = about["dtype"], about["data_offsets"]
    damaged = functools.partial(_bad, file, tensor=name)

    def unsupported(message: str) -> UnsupportedError:
        return UnsupportedError(message, path=file.path, tensor=name)

    if not isinstance(code, str) or (code not in _NAMES and code not in _BITS):
        raise unsupported(f"dtype {code!r:.80} is unknown")
    dtype = _dtype_of(code)
    shape = checked_shape(about["shape"], damaged, unsupported)
    offsets = checked_shape(offsets, damaged, unsupported)
    if len(offsets) != 2:
        raise damaged("data_offsets must be where the bytes begin and end")
    bits = math.prod(shape) * (_BITS[code] if dtype is None else _bits(dtype))
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise damaged(f"{code}{list(shape)} does not take bytes {offsets[0]} to {offsets[1]}")
    checked_shape(shape, damaged, unsupported, 1 if dtype is None else dtype.itemsize)
    return FileTensor(name, about, shape, file, begin + offsets[0], bits // 8)


# ---- writing -------------------------------------------------------------------------------------


def write(path: str, kinds: Sequence[Kind], metadata: Mapping[str, str], read: Read) -> None:
    """Write a file.

    Args:
        path: of the file, which is written in place.
        kinds: the tensors, of dtypes that it `holds`.
        metadata: texts.
        read: called for boxes of each tensor, in the order of the file.

    Raises:
        InvalidError: as `header_of`.
        OSError: the file cannot be written.
    """
    text, ordered = header_of(kinds, metadata)
    with open(path, "wb", buffering=READ_BYTES) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for kind in ordered:
            for box in pieces(kind.shape, kind.dtype.itemsize):
                array = np.ascontiguousarray(read(kind.name, box))
                array = array if np.little_endian else array.byteswap()
                raw = array.reshape(-1).view(np.uint8)
                file.write((dtypes.packed_fp4(raw) if code_of(kind.dtype) == "F4" else raw).data)


def header_of(kinds: Sequence[Kind], metadata: Mapping[str, str]) -> tuple[bytes, list[Kind]]:
    """Return the header of a file, and its tensors in the order of their bytes: by decreasing size
    of an element and then by name, as the safetensors library stores them.

    Raises:
        InvalidError: a name or text that the header cannot have; a header that loaders refuse.
    """
    ordered = sorted(kinds, key=lambda kind: (-_bits(kind.dtype), kind.name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for kind in ordered:
        if kind.name == METADATA:
            raise InvalidError("safetensors uses this name for metadata", tensor=METADATA)
        if not _is_utf8(kind.name):
            raise InvalidError("safetensors names must be UTF-8", tensor=kind.name)
        if code_of(kind.dtype) == "F4" and not has_pairs(kind.shape):
            raise InvalidError(
                f"F4 has pairs in the last dimension of {kind.shape}", tensor=kind.name
            )
        header[kind.name] = {
            "dtype": code_of(kind.dtype),
            "shape": list(kind.shape),
            "data_offsets": [end, end + _nbytes(kind)],
        }
        end += _nbytes(kind)
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise InvalidError("the texts of safetensors' metadata must be UTF-8") from None
    if len(text) > HEADER_MAX:
        raise invalid(
            "max_shard_bytes",
            f"the header of {len(kinds)} tensors has {len(text)} bytes, and loaders read at most "
            f"{HEADER_MAX}: max_shard_bytes= divides the tensors among several files",
        )
    return text + b" " * (-len(text) % ALIGNMENT), ordered


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split(kinds: Sequence[Kind], most: int) -> list[list[Kind]]:
    """Divide tensors into files of at most `most` bytes; a larger tensor has a file of its own."""
    files: list[list[Kind]] = [[]]
    size = 0
    for kind in kinds:
        if files[-1] and size + _nbytes(kind) > most:
            files.append([])
            size = 0
        files[-1].append(kind)
        size += _nbytes(kind)
    return files


def shard_names(path: str, count: int) -> list[str]:
    """Return the files of a model whose index, or only file, is `path`."""
    stem = base_of(path)
    return [f"{stem}-{shard + 1:05}-of-{count:05}.safetensors" for shard in range(count)]


def shards_of(path: str) -> set[str]:
    """Return the names of the files of an index, as `shard_names` gives them; none if there is no
    index, or it cannot be read."""
    stem = re.escape(os.path.basename(base_of(path)))
    try:
        found = _index(path).values()
    except CkptfmtError:
        return set()
    ours = re.compile(stem + r"-[0-9]{5,}-of-[0-9]{5,}\.safetensors")
    return {name for name in found if ours.fullmatch(name)}


def refuse_beside(path: str, *, is_split: bool) -> None:
    """Refuse a result of one file beside an index of several, and the reverse: a loader could read
    what is there.

    Args:
        path: of the file, or of the index.
        is_split: whether the result is an index and several files.

    Raises:
        InvalidError: names the other file.
    """
    base = base_of(path)
    others = {f"{base}.safetensors", path} - {base + INDEX} if is_split else {base + INDEX}
    for other in sorted(others):
        if os.path.lexists(other):
            raise InvalidError(
                "a loader could read this file instead of the result: remove it, or give the "
                "result another name",
                path=other,
            )


def index_json(files: Mapping[str, Sequence[Kind]]) -> bytes:
    """Return the index of a model of several files."""
    total = sum(_nbytes(kind) for kinds in files.values() for kind in kinds)
    places = {kind.name: name for name, kinds in files.items() for kind in kinds}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"
