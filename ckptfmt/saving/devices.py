# SPDX-License-Identifier: Apache-2.0
"""Device names, parsed as TensorFlow's DeviceSpec does, and the task of a device.

All parts of a name are optional: `/job:worker/replica:0/task:1/device:GPU:3`, or short `/gpu:3`.
Whether a device exists does not matter here. Any other str, for which DeviceSpec raises, is taken
as the name of a custom device, as a Mesh may have them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ckptfmt._base.arguments import wrong

# The device types that may be written without "device:".
_SHORT_FORMS = ("CPU", "GPU", "TPU", "CUSTOM", "EPU")


class _Parts(NamedTuple):
    job: str | None
    replica: int | None
    task: int | None
    kind: str | None
    number: int | None

    def text(self) -> str:
        found = [
            f"/{name}:{value}"
            for name, value in zip(("job", "replica", "task"), self[:3], strict=True)
            if value is not None
        ]
        if self.kind is not None:
            found.append(f"/device:{self.kind}:{'*' if self.number is None else self.number}")
        return "".join(found)


def _parsed(device: str) -> _Parts | None:
    """Parse a device name; return None if it is not one."""
    names: dict[str, str] = {}
    kind: str | None = None
    index: str | None = None
    for part in device.split("/"):
        words = part.split(":")
        if len(words) == 2 and words[0] in ("job", "replica", "task"):
            names[words[0]] = words[1]
        elif len(words) <= 2 and words[0].upper() in _SHORT_FORMS:
            if kind is not None:
                return None
            kind, index = words[0].upper(), words[1] if len(words) == 2 else None
        elif len(words) == 3 and words[0] == "device":
            if kind is not None:
                return None
            kind, index = words[1], words[2]
        elif words[0]:
            return None
    index = None if index == "*" else index
    try:
        replica, task, number = (
            None if text is None else int(text)
            for text in (names.get("replica"), names.get("task"), index)
        )
    except ValueError:
        return None
    # DeviceSpec accepts only these two in lower case after "device:".
    kind = kind.upper() if kind in ("cpu", "gpu") else kind
    return _Parts(names.get("job"), replica, task, kind, number)


@functools.lru_cache(maxsize=4096)
def canonical(device: str) -> str:
    """Return the full form of a device name: "/cpu:0" becomes "/device:CPU:0".

    As `tf.DeviceSpec.from_string(device).to_string()`, but any other str, for which TensorFlow
    raises, is returned unchanged: it may name a device of the caller.

    Raises:
        InvalidError: it is not a str.
    """
    parts = _parsed(_checked(device))
    return device if parts is None else parts.text()


@functools.lru_cache(maxsize=4096)
def task_of(device: str) -> str:
    """Return the CPU of a device's task, by which tensors are grouped for saving.

    As TensorFlow's `saveable_object_util.set_cpu0`: "/job:worker/task:1/device:GPU:3" gives
    "/job:worker/task:1/device:CPU:0". "" (no known device) is returned unchanged, as is any
    other str: a custom device is a task of its own.

    Raises:
        InvalidError: it is not a str.
    """
    parts = _parsed(_checked(device))
    return device if parts is None or not device else parts._replace(kind="CPU", number=0).text()


def device_in_task(device: str) -> str:
    """Return a device name without its task: "/job:a/task:1/gpu:3" gives "/device:GPU:3"; "" for a
    str that is not a device name."""
    parts = _parsed(device)
    return "" if parts is None else parts._replace(job=None, replica=None, task=None).text()


def names_one_device(text: str) -> bool:
    """Return whether the text is the name of a device with its type and number."""
    parts = _parsed(text)
    return parts is not None and parts.kind is not None and parts.number is not None


def device_text(device: Any) -> str | None:
    """Return a device name as a str: of a str itself, of an object such as `tf.DeviceSpec` what
    its `to_string` returns; None for anything else."""
    if isinstance(device, str):
        return device
    to_string = getattr(device, "to_string", None)
    text = to_string() if callable(to_string) and hasattr(device, "device_type") else None
    return text if isinstance(text, str) else None


def device_of(tensor: Any) -> str:
    """Return the device name of a tensor; "" if it has none.

    Only names that begin with "/" count: that of a NumPy array, "cpu", does not identify a task.
    """
    device = getattr(tensor, "device", None)
    return device if isinstance(device, str) and device.startswith("/") else ""


def _checked(device: str) -> str:
    if not isinstance(device, str):
        raise wrong("a device", "a str", device)
    return device
