# SPDX-License-Identifier: Apache-2.0
"""What is to be saved, before it is: SaveSpec and SaveableObject, as TensorFlow's.

A SaveSpec names one tensor, or one slice of one, and may leave making it to a function that is
called late: only one shard's tensors need to be in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import dtypes
from ckptfmt.arguments import listed, wrong
from ckptfmt.arrays import Sources
from ckptfmt.errors import InvalidError, about
from ckptfmt.names import tensor_bytes, tensor_text
from ckptfmt.saving.devices import canonical, device_of
from ckptfmt.slices import SliceSpec, parse_spec

__all__ = ["DSaveSpec", "Dtype", "SaveSpec", "SaveableObject", "as_array"]

# A numpy dtype, or the name of the one kind that numpy cannot tell from strings.
Dtype = np.dtype[Any] | str


class SaveSpec:
    """One tensor, or one slice of one, to be saved; as TensorFlow's
    `saveable_object.SaveSpec`.

    Args:
        tensor: what `Writer.add` takes for an array, or a function without arguments that gives
            one; or None: the object is recorded and no value saved. A function is called once,
            when `tensor` is first asked for, and may give None.
        slice_spec: "" for a whole tensor, else the text of `SaveSliceInfo.spec` ("4 6 0,2:0,6").
        name: the tensor's name in the checkpoint.
        dtype: what `Writer.add` takes for a dtype. A function and None need it; otherwise it is
            that of the tensor.
        device: the name of the device that the tensor is on, which says what task saves it. A
            function needs it; otherwise it is `tensor.device` where that is a device name, or "".

    Attributes:
        slice_spec, name, device: as given.
        dtype: the numpy dtype (strings are `object`, quantized types TensorFlow's structured
            dtypes), or "variant".

    Raises:
        InvalidError: an argument of the wrong type, data or a dtype that a checkpoint cannot hold,
            or a function without dtype or device. It names the tensor.
    """

    def __init__(
        self,
        tensor: Any | Callable[[], Any],
        slice_spec: str,
        name: str,
        dtype: Any = None,
        device: str | None = None,
    ) -> None:
        tensor_bytes(name)  # refuses what is no name
        self.name: str = tensor_text(name)
        if not isinstance(slice_spec, str):
            raise _named(wrong("a slice_spec", "a str", slice_spec), self.name)
        if device is not None and not isinstance(device, str):
            raise _named(wrong("a device", "a str", device), self.name)
        self._make: Callable[[], Any] | None = tensor if callable(tensor) else None
        self._tensor: Any = None if self._make else tensor
        if self._make is not None and (dtype is None or device is None):
            raise InvalidError(
                "When passing a callable `tensor` to a SaveSpec, an explicit dtype and device must "
                "be provided.",
                tensor=self.name,
            )
        if tensor is None and dtype is None:
            raise InvalidError("a SaveSpec without a tensor needs a dtype", tensor=self.name)
        self.dtype: Dtype = _dtype_of(self.name, tensor, dtype)
        self.slice_spec = slice_spec
        self.device: str = device_of(tensor) if device is None else device

    @property
    def tensor(self) -> Any:
        """The tensor, of any type that `Writer.add` takes, or None.

        Not to be asked for by several threads at once.

        Raises:
            Exception: whatever the function raised that was given for it; it is called again when
                the tensor is next asked for.
        """
        if self._make is not None:
            self._tensor = self._make()
            self._make = None
        return self._tensor

    @property
    def box(self) -> SliceSpec | None:
        """`slice_spec`, parsed; None for a whole tensor.

        Raises:
            InvalidError: the text is malformed, or says a slice that is not inside its tensor.
        """
        spec = self.slice_spec.strip()
        if not spec:
            return None
        with about(self.name):
            return parse_spec(spec)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.name!r}, slice_spec={self.slice_spec!r}, "
            f"dtype={str(self.dtype)!r}, device={self.device!r})"
        )


class DSaveSpec(SaveSpec):
    """A SaveSpec of a tensor that is spread over a mesh; as `tf.experimental.dtensor`'s DSaveSpec.

    Args:
        tensor, slice_spec, name, dtype, device: as in SaveSpec.
        global_shape: the shape of the tensor that all devices hold together.
        layout: the Layout by which they hold it.
    """

    def __init__(
        self,
        tensor: Any | Callable[[], Any],
        slice_spec: str,
        name: str,
        global_shape: Sequence[int],
        layout: Any,
        dtype: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__(tensor, slice_spec, name, dtype, device)
        try:
            self.global_shape: tuple[int, ...] = tuple(int(size) for size in global_shape)
        except (TypeError, ValueError):
            raise InvalidError(
                f"global_shape {global_shape!r} is no sequence of integers", tensor=self.name
            ) from None
        self.layout = layout


class SaveableObject:
    """An object that saves and restores one or more tensors; as TensorFlow's
    `saveable_object.SaveableObject`.

    Args:
        op: the object, or None. One op cannot be saved under two names.
        specs: its tensors, all on one device.
        name: the name that the object is saved under.

    Raises:
        InvalidError: `specs` is no sequence of SaveSpec, or `name` is no str.
    """

    def __init__(self, op: Any, specs: Sequence[SaveSpec], name: str) -> None:
        self.op = op
        if not isinstance(name, str):
            raise wrong("a SaveableObject's name", "a str", name)
        self.name = name
        self.specs: list[SaveSpec] = listed("specs", specs, "SaveSpec")
        for spec in self.specs:
            if not isinstance(spec, SaveSpec):
                raise _named(wrong("each of specs", "a SaveSpec", spec), name)

    @property
    def device(self) -> str:
        """The device of all its specs.

        Raises:
            InvalidError: it has no specs, or they are on several devices.
        """
        devices = {canonical(spec.device): spec.device for spec in self.specs}
        if len(devices) == 1:
            return next(iter(devices.values()))
        raise InvalidError(
            f"the specs of a SaveableObject are on one device, not on {sorted(devices)}"
            if devices
            else "a SaveableObject without specs is on no device",
            tensor=self.name,
        )

    def restore(
        self,
        restored_tensors: Sequence[NDArray[Any]],
        restored_shapes: Sequence[Sequence[int]] | None,
    ) -> Any:
        """Sets the object to what was read; to be overridden.

        Args:
            restored_tensors: one array a spec, in their order.
            restored_shapes: the shapes that they are to have, or None: those that they have.

        Raises:
            NotImplementedError: this class does not override it.
            InvalidError: (overrides) the tensors do not fit the object.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, specs={self.specs!r})"


def as_array(name: str, tensor: Any, dtype: Any = None) -> tuple[Any, Dtype]:
    """A tensor as the writer would take it, and its dtype: a numpy array, which is not copied when
    it is one already.

    Raises:
        InvalidError: as `Writer.add`, naming the tensor.
    """
    if type(tensor) is np.ndarray and tensor.dtype == dtype and tensor.dtype in dtypes.CODES:
        return tensor, tensor.dtype
    sources = Sources()
    sources.add(tensor_bytes(name), tensor, dtype)
    return sources.arrays[0], _dtype_of_code(sources.codes[0])


def _dtype_of(name: str, tensor: Any, dtype: Any) -> Dtype:
    if dtype is None and type(tensor) is np.ndarray and tensor.dtype in dtypes.CODES:
        found: np.dtype[Any] = tensor.dtype
        return found
    with about(name):
        if dtype is not None:
            return _dtype_of_code(dtypes.code_of(dtype))
        # What has a dtype of its own need not be fetched from wherever it is to know it.
        code = getattr(tensor, "dtype_code", None)
        if isinstance(code, int):
            return _dtype_of_code(code)
        if hasattr(tensor, "dtype"):
            with contextlib.suppress(InvalidError):  # a framework's own: numpy may know what it is
                return _dtype_of_code(dtypes.code_of(tensor.dtype))
        return as_array(name, tensor)[1]


def _dtype_of_code(code: int) -> Dtype:
    found = dtypes.numpy_dtype(code)
    name = dtypes.name_of(code)
    if found is None:
        raise InvalidError(f"{name} is no dtype that numpy can hold")
    return name if name == dtypes.VARIANT else found


def _named(error: InvalidError, tensor: str) -> InvalidError:
    error.tensor = tensor
    return error
