# SPDX-License-Identifier: Apache-2.0
"""Descriptions of what to save: SaveSpec, SaveableObject and ShardableTensor, as TensorFlow's.

A SaveSpec names one tensor or slice. A function can create the tensor when it is saved.
`Saver.save` calls all functions before it writes, so all tensors are in memory at that time.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid, listed, wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.names import tensor_bytes, tensor_name
from ckptfmt._base.slices import SliceSpec, parse_spec
from ckptfmt.errors import InvalidError, about
from ckptfmt.saving.devices import canonical, device_of, device_text
from ckptfmt.saving.mesh import Layout

# A numpy dtype, or "variant", which numpy cannot distinguish from strings.
Dtype = np.dtype[Any] | str


class SaveSpec:
    """A tensor, or a slice of one, to save; as TensorFlow's `saveable_object.SaveSpec`.

    >>> spec = ckptfmt.SaveSpec(np.ones((2, 3)), "4 3 0,2:-", "w")
    >>> ckptfmt.Saver({"variable": {"w": {"4 3 0,2:-": spec}}}).save("part")
    'part'

    Args:
        tensor: an array of NumPy or another framework, or what `np.asarray` takes; a function
            without arguments that returns one or None; or None, which saves no value. A function is
            called when `tensor` is first read, and again by every `Saver.save`.
        slice_spec: "" for a whole tensor, else its full shape and the slice, as
            `SaveSliceInfo.spec`: "4 6 0,2:0,6".
        name: the tensor's name in the checkpoint, str.
        dtype: a numpy dtype or its name, or "variant", "qint8" and the like; required for a
            function and None. None: the tensor's dtype.
        device: name of the tensor's device, or a `tf.DeviceSpec`. It determines the task that saves
            the tensor; required for a function. Default: `tensor.device` if that is a device name,
            else "".

    Attributes:
        slice_spec: as given.
        name: as given.
        device: the name.
        dtype: the numpy dtype (strings are `object`, quantized types TensorFlow's structured
            dtypes), or "variant".

    Raises:
        InvalidError: an argument of the wrong type, data or a dtype that a checkpoint cannot hold,
            or a function without dtype or device. It names the tensor.
    """

    is_empty = False  # only a block of a layout can be

    def __init__(
        self,
        tensor: Any | Callable[[], Any],
        slice_spec: str,
        name: str,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.name: str = tensor_name(name, "name")
        if not isinstance(slice_spec, str):
            raise _named(wrong("a slice_spec", "a str", slice_spec, "slice_spec"), self.name)
        place = device_of(tensor) if device is None else device_text(device)
        if place is None:
            raise _named(wrong("a device", "a str or a DeviceSpec", device, "device"), self.name)
        self._make: Callable[[], Any] | None = tensor if callable(tensor) else None
        # The tensor, or what the function returned.
        self._tensor: Any = None if self._make else tensor
        self._asked = self._make is None
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
        self.device: str = place

    @property
    def tensor(self) -> Any:
        """The tensor, of any type that `Writer.add` takes, or None. Not thread-safe.

        Raises:
            Exception: what the function raises; the next access calls it again.
        """
        if self._make is not None and not self._asked:
            self._tensor = self._make()
            self._asked = True
        return self._tensor

    def fresh(self) -> Self:
        """Return a copy of this spec whose function was not called yet."""
        if self._make is None:
            return self
        spec = copy.copy(self)
        spec._tensor, spec._asked = None, False
        return spec

    def with_tensor(self, tensor: Any) -> Self:
        """Return a copy of this spec with this tensor, and without the function that made it.

        Args:
            tensor: an array of the same dtype and shape.
        """
        spec = copy.copy(self)
        spec._make, spec._tensor, spec._asked = None, tensor, True
        return spec

    @property
    def box(self) -> SliceSpec | None:
        """`slice_spec`, parsed; None for a whole tensor.

        Raises:
            InvalidError: the text is malformed, or the slice is not inside its tensor.
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


SaveSpec.__module__ = "ckptfmt"


class DSaveSpec(SaveSpec):
    """A SaveSpec of a tensor on a mesh; as `tf.experimental.dtensor`'s DSaveSpec.

    A device outside the mesh has the whole tensor.

    Args:
        tensor: an array in the shape of its slice, which is checked when it is read; a function
            without arguments that returns one or None; or None.
        name: the tensor's name in the checkpoint, str.
        dtype: a numpy dtype or its name, or "variant", "qint8" and the like; required for a
            function and None. None: the tensor's dtype.
        device: name of the tensor's device, or a `tf.DeviceSpec`. It determines the task that saves
            the tensor; required for a function. Default: `tensor.device` if that is a device name,
            else "".
        slice_spec: "" for the device's slice in the layout, or the text of a slice of a tensor of
            shape `global_shape`.
        global_shape: shape of the whole tensor.
        layout: its Layout; or TensorFlow's, or the text of one, as `Layout.of` takes them.

    Attributes:
        slice_spec: text of the slice; "" for the whole tensor.
        global_shape: shape of the whole tensor.
        layout: the Layout.
        is_empty: True if the device's slice is empty: nothing is saved, and a restore returns an
            empty array.

    Raises:
        InvalidError: as SaveSpec; `layout` cannot be read; `global_shape` has another rank;
            `slice_spec` is malformed or has another full shape.
    """

    def __init__(
        self,
        tensor: Any | Callable[[], Any],
        slice_spec: str,
        name: str,
        global_shape: Sequence[int],
        layout: Any,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(tensor, slice_spec, name, dtype, device)
        try:
            self.global_shape: tuple[int, ...] = tuple(int(size) for size in global_shape)
        except (TypeError, ValueError):
            raise invalid(
                "global_shape",
                f"global_shape must be a sequence of integers, got {global_shape!r}",
                tensor=self.name,
            ) from None
        with about(self.name):
            self.layout = Layout.of(layout)
        whole = (0,) * self.layout.rank, self.global_shape, (-1,) * self.layout.rank
        with about(self.name):
            # Any device of the mesh serves to check the shape.
            place = _device_of_mesh(self.layout, self.device)
            block = self.layout.slice_of(self.global_shape, place or self.layout.mesh.devices[0])
        given = self.box
        if given is not None:
            if given.full_shape != self.global_shape:
                raise InvalidError(
                    f"slice spec '{slice_spec}' is of a tensor of another shape than global_shape "
                    f"{self.global_shape}",
                    tensor=self.name,
                )
            block = given
        elif place is None:
            block = SliceSpec(self.global_shape, *whole)
        if given is None:
            self.slice_spec = "" if block[1:] == whole else text_of(block)
        self._block = block
        self.is_empty = 0 in block.lengths

    @property
    def tensor(self) -> Any:
        """As in SaveSpec.

        Raises:
            InvalidError: the tensor does not have the shape of its slice.
        """
        tensor = super().tensor
        shape = None if tensor is None else getattr(tensor, "shape", None)
        if tensor is not None and shape is None:
            with about(self.name):
                shape = as_array(self.name, tensor, self.dtype)[0].shape
        if shape is not None and tuple(shape) != self._block.shape:
            raise InvalidError(
                f"a tensor of shape {tuple(shape)} on device '{self.device}' is not of shape "
                f"{self._block.shape}, as the layout {self.layout.text} of global_shape "
                f"{self.global_shape} or the slice spec '{self.slice_spec}' says",
                tensor=self.name,
            )
        return tensor

    @property
    def box(self) -> SliceSpec | None:
        """As in SaveSpec; it may be empty."""
        return self._block if self.is_empty else super().box

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape that the tensor must have."""
        return self._block.shape


DSaveSpec.__module__ = "ckptfmt.tf"


def _device_of_mesh(layout: Layout, device: str) -> str | None:
    """Return the mesh's name of a device; None for a device outside the mesh."""
    devices = layout.mesh.devices
    if device in devices or not device:
        return device or None
    wanted = canonical(device)
    return next((name for name in devices if canonical(name) == wanted), None)


def text_of(box: SliceSpec) -> str:
    """Return the shape_and_slice text of a box, with "-" for whole dimensions."""
    pairs = zip(box.start, box.lengths, strict=True)
    slices = ":".join("-" if size < 0 else f"{start},{size}" for start, size in pairs)
    return f"{' '.join(map(str, box.full_shape))} {slices}"


class SaveableObject:
    """An object that saves and restores one or more tensors; as TensorFlow's
    `saveable_object.SaveableObject`.

    Args:
        op: the object, or None.
        specs: SaveSpecs of its tensors, all on one device.
        name: the object's name.

    Raises:
        InvalidError: `specs` or `name` has the wrong type.
    """

    def __init__(self, op: Any, specs: Sequence[SaveSpec], name: str) -> None:
        self.op = op
        if not isinstance(name, str):
            raise wrong("a SaveableObject's name", "a str", name, "name")
        self.name = name
        self.specs: list[SaveSpec] = listed("specs", specs, "SaveSpec")
        for spec in self.specs:
            if not isinstance(spec, SaveSpec):
                raise _named(wrong("each of specs", "a SaveSpec", spec, "specs"), name)

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
        """Set the object to the restored tensors. Subclasses override it.

        Args:
            restored_tensors: one array for each spec, in their order.
            restored_shapes: shapes to give them, or None to leave them unchanged.

        Raises:
            InvalidError: this class does not override it; or the tensors do not fit the object.
        """
        raise InvalidError(
            f"Calling an abstract method. {type(self).__name__} must override restore",
            tensor=self.name,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, specs={self.specs!r})"


SaveableObject.__module__ = "ckptfmt.tf"


@dataclass(frozen=True, eq=False, repr=False)
class ShardableTensor:
    """A tensor, or a slice of one, for sharding callbacks; as
    `tf.train.experimental.ShardableTensor`.

    Two are equal only if they are the same object, but equal fields have equal hashes, as there.

    Attributes:
        tensor_save_spec: its SaveSpec, or None. TensorFlow's name, `_tensor_save_spec`, works too.
        tensor: the array; of a slice only the slice. Callbacks must not change it.
        dtype: as `SaveSpec.dtype`.
        device: the name of the device that the tensor is on, or "".
        name: the SaveSpec's name.
        shape: the shape of `tensor`.
        slice_spec: "" for a whole tensor, else full shape and slice ("4 6 0,2:0,6"), stripped.
        checkpoint_key: its name in the checkpoint.
        trackable: the object that owns it, or None.
        alignment: the data file pads each tensor to a multiple of this many bytes. None if sizes
            count as in TensorFlow (level "v2").
    """

    tensor_save_spec: SaveSpec | None
    tensor: Any
    dtype: Dtype
    device: str
    name: str
    shape: tuple[int, ...]
    slice_spec: str
    checkpoint_key: str
    trackable: Any = None
    alignment: int | None = None

    @classmethod
    def from_spec(cls, spec: SaveSpec, trackable: Any = None) -> ShardableTensor | None:
        """Return the tensor of a SaveSpec, whose function is called now; None without a value.

        Args:
            spec: the SaveSpec, whose name is also that in the checkpoint.
            trackable: the object that owns it.

        Raises:
            InvalidError: the tensor cannot be stored, or does not have the dtype or the slice shape
                of the spec.
        """
        tensor = spec.tensor
        if tensor is None:
            return None
        array, _ = as_array(spec.name, tensor, spec.dtype)
        box = spec.box
        if box is not None and box.shape != array.shape:
            raise InvalidError(
                f"slice spec '{spec.slice_spec}' and an array of shape {array.shape} do not fit",
                tensor=spec.name,
            )
        return cls(
            tensor_save_spec=spec,
            tensor=array,
            dtype=spec.dtype,
            device=spec.device,
            name=spec.name,
            shape=array.shape,
            slice_spec=spec.slice_spec.strip(),
            checkpoint_key=spec.name,
            trackable=trackable,
        )

    def for_callback(self, alignment: int | None) -> ShardableTensor:
        """Return a copy with a read-only view of the tensor."""
        array = self.tensor.view()
        array.flags.writeable = False
        spec = self.tensor_save_spec
        return dataclasses.replace(
            self,
            tensor=array,
            tensor_save_spec=None if spec is None else spec.with_tensor(array),
            alignment=alignment,
        )

    @property
    def _tensor_save_spec(self) -> SaveSpec | None:
        return self.tensor_save_spec

    @property
    def box(self) -> SliceSpec:
        """Its box in the tensor of its key.

        Raises:
            InvalidError: `slice_spec` is malformed.
        """
        return parsed_text(self.slice_spec) or whole_box(tuple(self.shape))

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, self.device, self.checkpoint_key))

    def __repr__(self) -> str:
        fields = (field.name for field in dataclasses.fields(self))
        return "\n".join(
            ["ShardableTensor:", *(f"  {name}={getattr(self, name)!r}" for name in fields)]
        )


ShardableTensor.__module__ = "ckptfmt.tf"


@functools.lru_cache(maxsize=8192)
def parsed_text(spec: str) -> SliceSpec | None:
    """`parse_spec`, which remembers the texts of the last tensors."""
    return parse_spec(spec)


def whole_box(shape: tuple[int, ...]) -> SliceSpec:
    """Return the slice that is the whole tensor."""
    return SliceSpec(shape, (0,) * len(shape), shape, shape)


def as_array(name: str, tensor: Any, dtype: Any = None) -> tuple[Any, Dtype]:
    """Return a tensor as the numpy array that the writer takes, and its dtype. Numpy arrays are not
    copied.

    Raises:
        InvalidError: as `Writer.add`, naming the tensor.
    """
    if type(tensor) is np.ndarray and tensor.dtype == dtype:
        return tensor, tensor.dtype
    sources = Sources()
    sources.add(tensor_bytes(name), tensor, dtype)
    return sources.arrays[0], _dtype_of_code(sources.codes[0])


def _dtype_of(name: str, tensor: Any, dtype: Any) -> Dtype:
    if dtype is None and type(tensor) is np.ndarray:
        found: np.dtype[Any] = tensor.dtype
        if found in dtypes.CODES or found.kind == "O":
            return found
    with about(name):
        if dtype is not None:
            return _dtype_of_code(dtypes.code_of(dtype))
        # An object with a dtype need not be converted to an array.
        code = getattr(tensor, "dtype_code", None)
        if isinstance(code, int):
            return _dtype_of_code(code)
        if hasattr(tensor, "dtype"):
            with contextlib.suppress(InvalidError):  # a framework's dtype that numpy may understand
                return _dtype_of_code(dtypes.code_of(tensor.dtype))
        return as_array(name, tensor)[1]


def _dtype_of_code(code: int) -> Dtype:
    found = dtypes.numpy_dtype(code)
    name = dtypes.name_of(code)
    if found is None:
        raise InvalidError(f"{name} must be a dtype that numpy can represent")
    return name if name == dtypes.VARIANT else found


def _named(error: InvalidError, tensor: str) -> InvalidError:
    error.tensor = tensor
    return error
