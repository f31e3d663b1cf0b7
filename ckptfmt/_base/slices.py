# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors as text: TensorFlow's SaveSliceInfo and the shape_and_slice specs of SaveV2 and
RestoreV2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ckptfmt import _core
from ckptfmt._base.arguments import check_sized, invalid, wrong
from ckptfmt._base.names import tensor_bytes
from ckptfmt.errors import InvalidError


class SliceSpec(NamedTuple):
    """A parsed shape_and_slice text: a box in a tensor. All have one number a dimension.

    `lengths` is the box's shape as it was written, with -1 for `-`: TensorFlow stores the two
    differently.
    """

    full_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index into an array of the full shape."""
        return tuple(
            slice(first, first + size) for first, size in zip(self.start, self.shape, strict=True)
        )


SliceSpec.__module__ = "ckptfmt.types"


def check_texts(
    tensor_names: Sequence[str | bytes], shape_and_slices: Sequence[str | bytes]
) -> None:
    """Check these two arguments as TensorFlow's SaveV2 and RestoreV2 do; raise InvalidError."""
    for what, texts in (("tensor_names", tensor_names), ("shape_and_slices", shape_and_slices)):
        check_sized(what, texts, "texts")
    if len(tensor_names) != len(shape_and_slices):
        raise invalid(
            "shape_and_slices",
            "tensor_names and shape_and_slices have different number of elements: "
            f"{len(tensor_names)} vs. {len(shape_and_slices)}",
        )
    for spec in shape_and_slices:
        if not isinstance(spec, (str, bytes)):
            raise wrong("a shape_and_slice text", "str or bytes", spec, "shape_and_slices")


def parse_spec(spec: str | bytes) -> SliceSpec | None:
    """Parse a shape_and_slice text such as "4 6 0,2:-"; return None for "", the whole tensor.

    Raises:
        InvalidError: TensorFlow's SaveV2 would refuse the text or crash.
    """
    if not isinstance(spec, (str, bytes)):
        raise wrong("a shape_and_slice text", "str or bytes", spec, "spec")
    parsed = _core.parse_spec(tensor_bytes(spec))
    if parsed is None:
        return None
    dims, starts, lengths = parsed
    shape = tuple(d if n < 0 else n for d, n in zip(dims, lengths, strict=True))
    return SliceSpec(dims, starts, shape, lengths)


@dataclass
class SaveSliceInfo:
    """The position of a variable in a larger one, as `tf.Variable.SaveSliceInfo`.

    >>> ckptfmt.SaveSliceInfo("w", [4, 6], [0, 2], [2, 3]).spec
    '4 6 0,2:2,3'

    Attributes:
        full_name: name of the full variable, str.
        full_shape: shape of the full variable, ints.
        var_offset: index of the first element of this part, one int for each dimension.
        var_shape: shape of this part, ints.
    """

    full_name: str | None = None
    full_shape: Sequence[int] | None = None
    var_offset: Sequence[int] | None = None
    var_shape: Sequence[int] | None = None

    @property
    def spec(self) -> str:
        """The shape_and_slice text, `start,length` in every dimension; a single space for a scalar.

        As TensorFlow's, which strips that space before it reaches SaveV2; so does `stripped_spec`.
        """
        if self.full_shape is None or self.var_offset is None or self.var_shape is None:
            raise InvalidError(
                "this SaveSliceInfo has no slice: set full_shape, var_offset and var_shape"
            )
        try:
            full = " ".join(f"{int(dim)}" for dim in self.full_shape)
            pairs = zip(self.var_offset, self.var_shape, strict=False)
            return f"{full} {':'.join(f'{int(start)},{int(size)}' for start, size in pairs)}"
        except (TypeError, ValueError):
            raise InvalidError(
                f"full_shape {self.full_shape!r}, var_offset {self.var_offset!r} and var_shape "
                f"{self.var_shape!r} must be sequences of integers"
            ) from None

    @property
    def stripped_spec(self) -> str:
        """`spec` as it is given to `save_v2`: "" for a scalar."""
        return self.spec.strip()

    @classmethod
    def from_spec(cls, spec: str) -> SaveSliceInfo:
        """Return the slice that a `spec` text describes; `full_name` stays None. "" gives an object
        without a slice.

        As TensorFlow's: `-` for a whole dimension is refused here (`parse_spec` takes it).

        Raises:
            InvalidError: the text is not of this form.
        """
        if not isinstance(spec, str):
            raise wrong("a spec text", "a str", spec, "spec")
        if not spec:
            return cls()
        full_text, space, slice_text = spec.rpartition(" ")
        if not space:
            raise InvalidError("Spec string must contain space-separated full_shape info.")
        full_shape = [
            _integer(dim, "full_shape must be a sequence of integers") for dim in full_text.split()
        ]
        offsets, sizes = [], []
        for pair in slice_text.split(":"):
            offset, comma, size = pair.partition(",")
            if not comma or "," in size:
                raise InvalidError(
                    "Spec string must contain comma-separated pairs of offsets and shapes."
                )
            offsets.append(_integer(offset, "var_offset must be an integer"))
            sizes.append(_integer(size, "var_shape must be an integer"))
        return cls(full_shape=full_shape, var_offset=offsets, var_shape=sizes)


SaveSliceInfo.__module__ = "ckptfmt"


def _integer(text: str, rule: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidError(
            f"Spec string {rule}. Found '{text[:80]}', which is not an integer."
        ) from None
