# SPDX-License-Identifier: Apache-2.0
"""The array seam of saving: the only place that decides what is an array.

`as_source` takes what a caller wants to store: numpy arrays, DLPack objects in CPU memory (torch,
JAX, ...; every dtype that both sides have, without a copy), buffers, objects with `__array__`,
scalars, strings and stored tensors. `ckptfmt._base.targets` has the other side.

`Sources` holds what the writer takes: numeric arrays by address and strides, strings as bytes
objects.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, names
from ckptfmt._base.adapters import TENSORFLOW, adapter_for, refused
from ckptfmt._core import BYTES, SOURCE
from ckptfmt.errors import InvalidError, about

# Full shape, start, and lengths (-1: a full dimension) of a slice.
Slice = tuple[Sequence[int], Sequence[int], Sequence[int]]

_NOTHING = np.empty(1, np.uint8)

# Arrays whose addresses are asked for at once: what is made for that stays in the cache.
BATCH = 512
_DTYPE, _NBYTES = operator.attrgetter("dtype"), operator.attrgetter("nbytes")
_RANK, _SHAPE = operator.attrgetter("ndim"), operator.attrgetter("shape")
_DENSE = operator.attrgetter("flags.c_contiguous")
_flat = itertools.chain.from_iterable


# ---- one array -----------------------------------------------------------------------------------

# DLDeviceType of memory that the processor can read, and the names of others.
_CPU_DEVICES = (1, 3, 11, 13)
_DEVICES = {2: "cuda", 8: "metal", 10: "rocm", 14: "oneapi"}
_DLPACK_VERSION = (1, 1)
DEVICE_SHOWN_MAX = 32  # characters of a device in a message
# Types of elements that hold no others, and sequences of such elements.
_PLAIN = {bool, int, float, complex, bytes, str}
_FLAT = (bytes, str, bytearray, memoryview, range)
_DEPTH_MAX = 64  # dimensions of an array of NumPy


def as_source(data: Any, code: int | None = None) -> NDArray[Any]:
    """Return an array to store; numpy arrays and DLPack tensors in CPU memory are not copied.

    Args:
        data: an array of any framework, a buffer, an object with `__array__`, a scalar, or nested
            sequences. Text stays whole: numpy's own string types drop trailing NULs.
        code: dtype code for data that has no dtype of its own.

    Raises:
        InvalidError: not an array.
    """
    if isinstance(data, np.ndarray):
        refuse_masked(data)
        return data
    if data is None:
        raise InvalidError("None is not an array")
    if isinstance(data, Mapping):
        raise InvalidError("a nested mapping is not an array: save it with ckptfmt.save_tree")
    if isinstance(data, (bytes, str)):
        scalar = np.empty((), object)
        scalar[()] = data
        return scalar
    if _dtype_name(data) in _REFERENCES:
        raise InvalidError(
            f"{describe(data)} refers to an object of TensorFlow and holds no values: {TENSORFLOW}"
        )
    if has_dlpack(data) and _dtype_name(data) not in _BELOW_8_BITS:
        return dlpack_array(data, way_out=": pass a copy, for example tensor.cpu()")[0]
    try:
        refuse_masked(data)
        if hasattr(data, "dtype") or code is None:
            array = np.asarray(data)
        else:
            array = np.asarray(data, dtypes.numpy_dtype(code))
        if array.dtype.kind in "SU" and not hasattr(data, "dtype"):
            array = np.asarray(data, object)
    except InvalidError:
        raise
    except Exception as error:  # whatever the object's own __array__ raises
        raise InvalidError(f"{describe(data)} is not an array: {error}") from error
    if hasattr(data, "dtype") and array.shape == () and array.dtype == object and array[()] is data:
        calls = adapter_for(data) or "save the arrays that it consists of"
        raise InvalidError(f"{describe(data)} is not one array: {calls}")
    return array


def refuse_masked(data: Any, above: tuple[int, ...] = ()) -> None:
    """Refuse a masked array, also at any depth of nested sequences: no copy of its values has its
    mask. Refuse sequences in which NumPy would find no end.

    Args:
        data: what will be made an array.
        above: identities of the sequences that it is in.

    Raises:
        InvalidError: it is or has one.
    """
    if isinstance(data, np.ndarray):
        if isinstance(data, np.ma.MaskedArray):
            raise InvalidError("a masked array would lose its mask: fill it first")
        return
    is_nested = type(data) in (list, tuple) or (
        isinstance(data, Sequence) and not isinstance(data, _FLAT)
    )
    if is_nested and len(above) <= _DEPTH_MAX:
        if id(data) in above:
            raise InvalidError(f"a {type(data).__name__} that contains itself is not an array")
        if not _PLAIN.issuperset(map(type, data)):
            for one in data:
                refuse_masked(one, (*above, id(data)))


# TensorFlow's dtypes of tensors that refer to its own objects. If asked to export these, or
# strings, through DLPack, it aborts the process.
_REFERENCES = (dtypes.VARIANT, "resource")
# JAX does not export these through DLPack; NumPy gets a byte for each element.
_BELOW_8_BITS = ("int2", "uint2", "int4", "uint4", dtypes.FP4)


def has_dlpack(data: Any) -> bool:
    """Return whether to use DLPack."""
    if not hasattr(data, "__dlpack__") or isinstance(data, np.generic):
        return False
    return _dtype_name(data) not in (dtypes.STRING, *_REFERENCES)


def _dtype_name(data: Any) -> str | None:
    return getattr(getattr(data, "dtype", None), "name", None)


def dlpack_array(
    data: Any, *, writable: bool = False, way_out: str = ""
) -> tuple[NDArray[Any], bool]:
    """Return a numpy array over the memory of a DLPack object, and whether that memory is a copy
    that the framework made.

    Args:
        data: the object.
        writable: as in `_core.array_of_capsule`.
        way_out: the end of the message for memory of another device.

    Raises:
        InvalidError: it is not in CPU memory, has no numpy dtype, or the framework refuses.
    """
    if getattr(data, "requires_grad", False) and hasattr(data, "detach"):
        data = data.detach()  # the same memory; torch exports no tensor that requires grad
    dtype = getattr(data, "dtype", None)
    # Older versions of torch do not export these.
    if getattr(dtype, "itemsize", 0) == 1 and str(dtype).startswith("torch.float8"):
        plain = data.view(sys.modules["torch"].uint8)
        array, copied = dlpack_array(plain, writable=writable, way_out=way_out)
        return array.view(dtypes.narrow_dtype(str(dtype).removeprefix("torch."))), copied
    try:
        if hasattr(data, "untyped_storage"):  # of torch
            if has_lost_memory(data):
                raise InvalidError(
                    f"the storage of {describe(data)} was resized and no longer holds it"
                )
            # torch exports the values that such a tensor is the negative of.
            if data.is_neg() or data.is_conj():
                data = data.resolve_conj().resolve_neg()
        device, index = map(int, data.__dlpack_device__())
        if device not in _CPU_DEVICES:
            name = _DEVICES.get(device, f"DLPack device {device}")
            raise InvalidError(
                f"{describe(data)} is in the memory of {name}:{index}, not of the CPU{way_out}"
            )
        try:
            capsule = data.__dlpack__(max_version=_DLPACK_VERSION)
        except TypeError:  # from before versions
            capsule = data.__dlpack__()
        return _core.array_of_capsule(capsule, writable=writable)
    except InvalidError:
        raise
    except Exception as error:  # whatever the framework raises
        raise InvalidError(f"{describe(data)} cannot be used through DLPack: {error}") from error


def has_lost_memory(tensor: Any) -> bool:
    """Return whether the storage of a torch tensor was resized and no longer holds it."""
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * step for size, step in steps)
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(tensor.numel() and end > tensor.untyped_storage().nbytes())


def describe(data: Any) -> str:
    """Name what was given: its type, with dtype and device if it has them."""
    kind = type(data)
    module = kind.__module__.partition(".")[0]
    text = kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"
    dtype, device = getattr(data, "dtype", None), getattr(data, "device", None)
    if dtype is not None:
        text += f" of dtype {str(dtype).removeprefix('torch.')}"
    # JAX's arrays name their sharding here.
    named = device is not None and not callable(device) and 0 < len(str(device)) <= DEVICE_SHOWN_MAX
    return f"{text} on {device}" if named and str(device) != "cpu" else text


# ---- what the writer takes -----------------------------------------------------------------------


class Columns(Protocol):
    """Tensors and slices as the writer takes them: Sources, or copies of these."""

    @property
    def names(self) -> list[bytes]:
        """One each."""
        ...

    @property
    def sizes(self) -> list[int]:
        """Bytes of data, without what the format adds to strings."""
        ...

    def size_column(self) -> NDArray[np.int64]:
        """Return `sizes` as an array."""
        ...

    def table(self, first: int = 0, last: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """Some of them as an array of SOURCE, and what must outlive the call that takes it."""
        ...


class Sources:
    """Tensors and slices to write, collected in columns, because there may be a million of them.

    Attributes:
        arrays: one each; of strings only their shape counts.
        swapped: rows in the other byte order.
        elements: what rows of strings hold.
        slices: rows that are slices.
    """

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.swapped: set[int] = set()
        self.elements: dict[int, list[bytes]] = {}
        self.slices: dict[int, Slice] = {}
        # Rows that came as plain arrays, many at once, with the first of each run. The lists get
        # those once they are asked for; what they lack is always of runs.
        self._runs: list[tuple[int, _core.PlainArrays]] = []
        self._listed = 0  # runs that the lists have all of
        self._names: list[bytes] = []
        self._codes: list[int] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def names(self) -> list[bytes]:
        """One each."""
        self._list_runs()
        return self._names

    @property
    def codes(self) -> list[int]:
        """That of the dtype of each."""
        self._list_runs()
        return self._codes

    @property
    def sizes(self) -> list[int]:
        """Bytes of data, without what the format adds to strings."""
        self._list_runs()
        return self._sizes

    def size_column(self) -> NDArray[np.int64]:
        """As `sizes`."""
        count = len(self.arrays)
        if len(self._runs) == 1 and self._runs[0][1].count == count:
            return self._runs[0][1].sizes[:count]
        return np.array(self.sizes, np.int64)

    def _list_runs(self) -> None:
        """Make the lists as long as all rows."""
        for first, run in self._runs[self._listed :]:
            start = len(self._names) - first
            if start < run.count:
                self._names += run.names()[start:]
                self._codes += run.table["dtype"][start : run.count].tolist()
                self._sizes += run.sizes[start : run.count].tolist()
        self._listed = max(len(self._runs) - 1, 0)  # the last one may get longer

    def add(self, name: bytes, data: Any, dtype: Any = None, part: Slice | None = None) -> None:
        """Add a tensor, or the slice `part` of one; numeric numpy arrays are never copied.

        Everything else goes through `np.asarray`: Python numbers become int64, float64, complex128
        or bool. `dtype` decides the type of such data; an array must have it already (a quantized
        type also takes the plain integers).

        Raises:
            InvalidError: a dtype that a checkpoint cannot hold, or data that is not of the dtype
                asked for.
        """
        if type(data) is np.ndarray and dtype is None:
            code = dtypes.CODES.get(data.dtype)
            if code is not None:
                self._append(name, data, code, data.nbytes, part)
                return
        wanted = None
        if hasattr(data, "dtype_code") and dtype is None:
            # A TensorHandle. numpy cannot tell all stored types apart.
            dtype, data = data.dtype_code, data.read()
        if dtype is not None or type(data) is not np.ndarray:
            with about(names.tensor_text(name)):
                wanted = None if dtype is None else dtypes.code_of(dtype)
                if type(data) is not np.ndarray:
                    data = as_source(data, wanted)
        if data.dtype.kind in "OSUT":
            code, elements = _strings(name, data, wanted)
            self.elements[len(self)] = elements
            self._append(name, data, code, sum(map(len, elements)), part)
            return
        code, swapped = _numeric(name, data, wanted)
        if swapped:
            self.swapped.add(len(self))
        self._append(name, data, code, data.nbytes, part)

    def extend(self, given: list[Any], values: list[Any], more: int = 0) -> None:
        """As `add` of each name and value; many plain arrays at once.

        Args:
            given: the names, bytes or str that is all ASCII.
            values: as many.
            more: how many are likely to follow.
        """
        run = self._run_for(len(values), more)
        done = run.take(given, values)
        self.arrays += values[:done]
        for name, value in zip(given[done:], values[done:], strict=True):
            self.add(names.tensor_bytes(name), value)

    def _run_for(self, count: int, more: int) -> _core.PlainArrays:
        """Return the last run, if it ends with the last row and has room for so many, or a new
        one."""
        if self._runs:
            first, run = self._runs[-1]
            if first + run.count == len(self.arrays) and run.count + count <= len(run.table):
                return run
            more = 0  # other kinds are among them: runs are short
        run = _core.PlainArrays(count + more, dtypes.CODES)
        self._runs.append((len(self.arrays), run))
        return run

    def _append(
        self, name: bytes, array: NDArray[Any], code: int, size: int, part: Slice | None
    ) -> None:
        if part is not None:
            self.slices[len(self)] = part
        if self._runs:
            self._list_runs()
        self._names.append(name)
        self._codes.append(code)
        self._sizes.append(size)
        self.arrays.append(array)

    def table(self, first: int = 0, last: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """Some of them as an array of SOURCE, and what must outlive the call that takes it."""
        table, *owners = self.described(first, last)
        return table, owners

    def described(
        self, first: int = 0, last: int | None = None
    ) -> tuple[NDArray[Any], list[Any], list[Any]]:
        """As `table`, with what must outlive the call in two parts: what keeps the data of the
        arrays, but for strings, and the columns that all else is in."""
        last = len(self.arrays) if last is None else last
        tables: list[NDArray[Any]] = []
        owners: list[Any] = []
        at = first
        for start, run in self._runs:
            begin, end = max(start, at), min(start + run.count, last)
            if begin >= end:
                continue
            if at < begin:
                tables.append(self._described_now(at, begin, owners))
            tables.append(run.table[begin - start : end - start])
            owners.append(run)
            at = end
        if at < last or not tables:
            tables.append(self._described_now(at, last, owners))
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        lent = (
            self.arrays[first:last]
            if self.elements or last - first < len(self.arrays)
            else self.arrays
        )
        for row in self.elements:
            if first <= row < last:
                lent[row - first] = _NOTHING
        slices = {row - first: s for row, s in self.slices.items() if first <= row < last}
        if slices:
            table = table.copy()
        for row, slice_ in slices.items():
            box = _numbers(slice_)
            owners.append(box)
            table["slice"][row] = _core.address(box)
        return table, lent, owners

    def _described_now(self, first: int, last: int, owners: list[Any]) -> NDArray[Any]:
        """Return the table of rows that were added one by one, without their slices. Objects other
        than the arrays that must outlive the table are added to `owners`."""
        count = last - first
        table = np.zeros(count, SOURCE)
        raw_names, arrays = self.names[first:last], self.arrays[first:last]
        blob = np.frombuffer(b"".join(raw_names) or b"\0", np.uint8)
        name_sizes = np.fromiter(map(len, raw_names), np.uint64, count)
        table["name"] = _starts(name_sizes) + np.uint64(_core.address(blob))
        table["name_size"] = name_sizes
        table["dtype"] = np.fromiter(self.codes[first:last], np.int32, count)

        elements = {row - first: self.elements[row] for row in self.elements if first <= row < last}
        for row in elements:
            arrays[row] = _NOTHING
        shapes = list(map(_SHAPE, self.arrays[first:last]))
        ranks = table["rank"] = np.fromiter(map(len, shapes), np.int32, count)
        dims = _numbers(shapes)
        table["dims"] = _starts(ranks) * np.uint64(8) + np.uint64(_core.address(dims))
        dense = list(map(_DENSE, arrays))
        data = table["data"]
        # What lends the addresses is dropped at once: the arrays keep what they are of.
        data[:] = _core.addresses(arrays, dense)[0]
        owners += [blob, dims]
        for row, bytes_list in elements.items():
            pointers, joined = _pointers(bytes_list)
            owners += [pointers, joined]
            data[row] = _core.address(pointers)
        for row in (row for row, is_dense in enumerate(dense) if not is_dense):
            strides = _numbers([arrays[row].strides])
            owners.append(strides)
            table["strides"][row] = _core.address(strides)
        for row in self.swapped:
            if first <= row < last:
                table["swapped"][row - first] = 1
        return table


def batches(sizes: NDArray[np.int64], limit: int) -> list[slice]:
    """Consecutive runs of at most so many bytes, or of one."""
    ends = sizes.cumsum()
    found = []
    first = done = 0
    while first < len(sizes):
        last = max(int(ends.searchsorted(done + limit, "right")), first + 1)
        found.append(slice(first, last))
        first, done = last, int(ends[last - 1])
    return found


def _numbers(rows: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    """Return all numbers one after the other; never empty, so that they have an address."""
    found = np.fromiter(_flat(rows), np.int64)
    return found if found.size else np.zeros(1, np.int64)


def _starts(sizes: NDArray[Any]) -> NDArray[np.uint64]:
    """Return where each of consecutive runs of these sizes begins."""
    ends: NDArray[np.uint64] = sizes.cumsum(dtype=np.uint64)
    return ends - sizes.astype(np.uint64)


def _pointers(elements: list[bytes]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return an array of `ckptfmt_bytes`, and the bytes that it points into."""
    joined = np.frombuffer(b"".join(elements) or b"\0", np.uint8)
    table = np.zeros(max(len(elements), 1), BYTES)
    sizes = np.fromiter(map(len, elements), np.uint64, len(elements))
    table["data"][: len(elements)] = _starts(sizes) + np.uint64(_core.address(joined))
    table["size"][: len(elements)] = sizes
    return table, joined


# ---- single values -------------------------------------------------------------------------------


def _invalid(name: bytes, message: str) -> InvalidError:
    return InvalidError(message, tensor=names.tensor_text(name))


def _other_dtype(name: bytes, array: NDArray[Any], wanted: int) -> InvalidError:
    wanted_name = dtypes.name_of(wanted)
    return _invalid(name, f"the array must have dtype {wanted_name}, not {array.dtype}")


def _numeric(name: bytes, array: NDArray[Any], wanted: int | None) -> tuple[int, bool]:
    """Code of a numeric array, and whether its bytes are in the other order."""
    found = dtypes.code_of_array(array.dtype)
    if wanted is not None and (found is None or found[0] != wanted):
        quantized = dtypes.numpy_dtype(wanted)
        plain = quantized[0] if quantized is not None and quantized.names else None
        if plain is None or plain != array.dtype.newbyteorder("="):
            raise _other_dtype(name, array, wanted)
        return wanted, not array.dtype.isnative
    if found is None:
        raise _invalid(name, f"dtype {array.dtype} cannot be stored")
    return found


def _strings(name: bytes, array: NDArray[Any], wanted: int | None) -> tuple[int, list[bytes]]:
    """Code and elements of an array of strings, or of the payloads of variants."""
    code = dtypes.code_of(dtypes.STRING) if wanted is None else wanted
    if dtypes.numpy_dtype(code) != np.dtype(object):
        raise _other_dtype(name, array, code)
    return code, [_element(name, element) for element in array.reshape(-1).tolist()]


def _element(name: bytes, element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        try:
            return element.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise _invalid(name, f"a string cannot be encoded: {error.reason}") from None
    if isinstance(element, (bytearray, memoryview)):
        return bytes(element)
    if isinstance(element, int) and element.bit_length() >= 64:
        raise _invalid(name, "an int must fit into int64 or uint64")
    refusal = refused("object arrays can store bytes and str", element)
    refusal.tensor = names.tensor_text(name)
    raise refusal
