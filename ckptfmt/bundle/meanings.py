# SPDX-License-Identifier: Apache-2.0
"""What stored bits stand for: tensors of dtypes of torch that the format lacks.

`ckptfmt.torch` stores such a tensor as one of another dtype, and a note in the metadata (the
grammar is in state_tree.py) has torch's name of its own. A Reader and its handles show what is
stored. What takes values out of a checkpoint reads them through `meant`:

float8_e8m0fnu     uint8    the dtype of ml_dtypes of that name
float4_e2m1fn_x2   uint8    ml_dtypes' float4_e2m1fn: two of each byte, the low bits first
complex32          float16  complex64 of the pairs in the last dimension
quantized          itself   with a cast the float32 of torch's `dequantize`, else refused
all others                  refused: NumPy has no such dtype
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import Verify
from ckptfmt._base.names import tensor_bytes
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import CorruptError, UnsupportedError

Note = dict[str, Any]

# The member of the metadata of `ckptfmt.jax` that says of which tensors the bits are PRNG keys.
PRNG_KEYS = "jax_prng_impls"
E8M0, FP4, COMPLEX = "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32"
# How the dtypes with values are stored.
_CARRIERS = {E8M0: "uint8", FP4: "uint8", COMPLEX: "float16"}
_QUANTIZED = ("qint8", "quint8", "qint32")


def notes_of(metadata: Mapping[str, Any], path: str) -> dict[str, Note]:
    """Return the notes of the tensors of a torch state, by stored name; the parts of a quantizer in
    them are stored names.

    Raises:
        CorruptError: the state is damaged.
        UnsupportedError: a later version wrote it.
    """
    if state_tree.KEY not in metadata:
        return {}
    found: dict[str, Note] = {}

    def leaf(name: str, _kind: str, note: Note) -> str:
        if note:
            found[name] = note
        return name

    nothing = dict.fromkeys(state_tree.TAGS, lambda *_: None)
    try:
        state_tree.decode(state_tree.parse(metadata[state_tree.KEY])["state"], leaf, nothing)
    except UnsupportedError as error:
        error.path = path
        raise
    except state_tree.DAMAGED as error:
        raise CorruptError(
            f"the structure of the torch state is damaged: {error!r}",
            failure="BAD_ENTRY",
            path=path,
        ) from None
    return found


def meant(handle: TensorHandle) -> TensorHandle:
    """Return a handle of what the bits of a tensor stand for; the handle itself without a note."""
    note = handle._note
    return handle if note is None else Meant(handle, note)


def has_values(handle: TensorHandle) -> bool:
    """Return whether a tensor is read without a cast."""
    return not isinstance(handle, Meant) or (handle.dtype is not None and not handle.is_quantized)


def bits_of(handle: TensorHandle) -> TensorHandle:
    """Return a handle of what is stored, of a tensor that is not read as what that means."""
    return handle._stored if isinstance(handle, Meant) and not has_values(handle) else handle


class Meant(TensorHandle):
    """A tensor as what its stored bits stand for.

    Attributes:
        shape, dtype, nbytes: of the values; `dtype` is the stored one of a quantized tensor, and
            None if NumPy has none.
        dtype_name: torch's name.
        dtype_code: of what is stored.

    Raises:
        CorruptError: the note is not one of such a tensor.
    """

    def __init__(self, stored: TensorHandle, note: Note) -> None:
        super().__init__(stored._reader, stored._selection, stored._row, stored.name)
        self._stored, self.note, self._kind = stored, note, str(note["dtype"])
        self._is_dequantized = False
        shape, expected = stored.shape, _CARRIERS.get(self._kind, self._kind)
        known = self._kind in (*_CARRIERS, *_QUANTIZED)
        is_pair = self._kind != COMPLEX or shape[-1:] == (2,)
        if known and (stored.dtype_name != expected or not is_pair or "shape" in note):
            raise self._damaged(f"{self._kind} is not stored as {stored.dtype_name} {shape}")
        if self._kind == COMPLEX:
            self.dtype, shape = np.dtype(np.complex64), shape[:-1]
        elif self._kind == E8M0:
            self.dtype = dtypes.narrow_dtype(E8M0)
        elif self._kind == FP4 and shape:
            self.dtype, shape = dtypes.narrow_dtype("float4_e2m1fn"), (*shape[:-1], 2 * shape[-1])
        elif self._kind not in _QUANTIZED:
            self.dtype = None
        self._record = self._record._replace(shape=shape, element_count=math.prod(shape))

    @property
    def dtype_name(self) -> str:
        """Torch's name of the dtype."""
        return self._kind

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of what NumPy lacks, those stored."""
        return self._stored.nbytes if self.dtype is None else self.size * self.dtype.itemsize

    @property
    def is_quantized(self) -> bool:
        """Whether a cast is needed for its numbers."""
        return self._kind in _QUANTIZED and not self._is_dequantized

    def dequantized(self) -> Meant:
        """Return the tensor with the numbers of torch's `dequantize`; others as they are."""
        if not self.is_quantized:
            return self
        found = Meant(self._stored, self.note)
        found.dtype, found._is_dequantized = np.dtype(np.float32), True
        return found

    def taken(self, *, is_cast: bool) -> Meant:
        """Return the tensor to read, which `is_cast` then.

        Raises:
            UnsupportedError: it has no values.
        """
        found = self.dequantized() if is_cast else self
        if not has_values(found):
            numbers = f"cast={{{self.name!r}: 'float32'}} reads its numbers, "
            raise self._unsupported(
                f"it has the bits of {self._kind}, which NumPy lacks: "
                f"{numbers if self.is_quantized else ''}"
                "ckptfmt.torch.load returns it as it was saved"
            )
        return found

    def unread(self) -> UnsupportedError:
        """Return the error of what reads stored elements alone."""
        return self._unsupported(
            f"it has the bits of {self._kind}: ckptfmt.torch.load returns it as it was saved, and "
            "ckptfmt.load, load_into and load_tree what NumPy has of it"
        )

    # ---- reading

    def read(self, *, verify: Verify | None = None) -> NDArray[Any]:
        """Return all values."""
        return self._read_box(None, self.shape, verify)

    def _read_box(
        self, box: NDArray[np.int64] | None, shape: tuple[int, ...], verify: Verify | None
    ) -> NDArray[Any]:
        self.taken(is_cast=False)
        if box is None:
            return self.values(self._stored.read(verify=verify))
        start, lengths = box[: self.ndim].tolist(), box[self.ndim : 2 * self.ndim].tolist()
        first, rest = list(start), tuple[Any, ...]()
        if self._kind == COMPLEX:
            first, lengths = [*start, 0], [*lengths, 2]
        elif self._kind == FP4:
            first[-1], end = start[-1] // 2, -(-(start[-1] + lengths[-1]) // 2)
            skipped = start[-1] - 2 * first[-1]
            rest = (..., slice(skipped, skipped + lengths[-1]))
            lengths[-1] = end - first[-1]
        corner = np.array([*first, *lengths, 0], np.int64)
        bits = self._stored._read_box(corner, tuple(lengths), verify)
        values: NDArray[Any] = self.values(bits, start)[rest]
        return values

    def _fetch(
        self, box: NDArray[np.int64] | None, array: NDArray[Any], verify: Verify | None
    ) -> None:
        array[...] = self._read_box(box, array.shape, verify)

    def values(self, bits: NDArray[Any], start: list[int] | None = None) -> NDArray[Any]:
        """Return what stored elements stand for, those of the box at `start` or all."""
        if self._kind == COMPLEX:
            pairs = np.ascontiguousarray(bits, np.float32)
            return pairs.view(np.complex64).reshape(bits.shape[:-1])
        if self._kind == FP4:
            return dtypes.unpacked_fp4(bits)
        if self._kind not in _QUANTIZED:
            return bits.view(self.dtype or bits.dtype)
        return self._dequantize(dtypes.plain_quantized(bits), start)

    def _dequantize(self, bits: NDArray[Any], start: list[int] | None) -> NDArray[Any]:
        """Return numbers, rounded at the steps at which torch rounds."""
        try:
            if "axis" not in self.note:
                whole = bits.astype(np.int64) - np.int64(self.note["zero_point"])
                return whole.astype(np.float32) * np.float32(self.note["scale"])
            axis = range(self.ndim)[self.note["axis"]]
            scales, zeros = (
                self._reader[tensor_bytes(self.note[part])].read() for part in state_tree.PARTS
            )
            if not scales.shape == zeros.shape == self.shape[axis : axis + 1]:
                raise ValueError(f"{scales.shape} scales of {self.shape[axis]}")
            first = 0 if start is None else start[axis]
            along = [1] * self.ndim
            along[axis] = bits.shape[axis]
            part = slice(first, first + bits.shape[axis])
            scales = scales[part].reshape(along)
            zeros = zeros[part].reshape(along).astype(np.float32)
            numbers: NDArray[Any] = (bits.astype(np.float32) - zeros) * scales
            return numbers.astype(np.float32, copy=False)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, reason: str) -> CorruptError:
        return CorruptError(
            f"the note of what the tensor was does not fit it: {reason}",
            failure="BAD_ENTRY",
            tensor=self.name,
            path=self._reader.prefix,
        )


def alike(one: TensorHandle, other: TensorHandle) -> bool:
    """Return whether equal bits of two tensors are equal values."""

    def noted(handle: TensorHandle) -> dict[str, Any]:
        note = dict(handle._note or {})
        for part in note.keys() & {*state_tree.PARTS}:
            array = handle._reader[tensor_bytes(note[part])].read()
            note[part] = array.shape, array.tobytes()
        return note

    return one.dtype_code == other.dtype_code and noted(one) == noted(other)
