# SPDX-License-Identifier: Apache-2.0
"""Device names, as TensorFlow's DeviceSpec reads them (tests/interop/test_policies.py asks it)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptfmt.errors import InvalidError
from ckptfmt.saving.devices import canonical, device_of, task_of

WORKER = "/job:worker/replica:0/task:1/device:"
# Name; full form; CPU of its task.
NAMES = [
    (f"{WORKER}GPU:3", f"{WORKER}GPU:3", f"{WORKER}CPU:0"),
    ("/job:ps/task:2", "/job:ps/task:2", "/job:ps/task:2/device:CPU:0"),
    ("/task:02/job:ps", "/job:ps/task:2", "/job:ps/task:2/device:CPU:0"),
    ("/cpu:0", "/device:CPU:0", "/device:CPU:0"),
    ("/GPU:1", "/device:GPU:1", "/device:CPU:0"),
    ("gpu", "/device:GPU:*", "/device:CPU:0"),
    ("/gpu:*", "/device:GPU:*", "/device:CPU:0"),
    ("/device:gpu:7", "/device:GPU:7", "/device:CPU:0"),
    ("/device:tpu:7", "/device:tpu:7", "/device:CPU:0"),
    ("/tpu:7", "/device:TPU:7", "/device:CPU:0"),
    ("/device:XLA_GPU:0", "/device:XLA_GPU:0", "/device:CPU:0"),
    ("/job:a/job:b/cpu:0", "/job:b/device:CPU:0", "/job:b/device:CPU:0"),
    ("//job:a//task:1/", "/job:a/task:1", "/job:a/task:1/device:CPU:0"),
    ("/", "", "/device:CPU:0"),
    ("", "", ""),
]
# TensorFlow raises for these: here they are the caller's own.
NO_NAMES = [
    *("my accelerator", "/job", "/task:one", "/replica:*", "/device:GPU:x", "/cpu:0/gpu:0"),
    *("/device:CPU:0/device:GPU:0", "/xla_gpu:0", "/job:a/shelf:3", "/device:GPU"),
]


@pytest.mark.parametrize(("name", "full", "task"), NAMES)
def test_names(name: str, full: str, task: str) -> None:
    assert canonical(name) == full
    assert canonical(full) == full
    assert task_of(name) == task
    assert task_of(task) == task


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_device_name_stays(name: str) -> None:
    assert canonical(name) == name
    assert task_of(name) == name


@pytest.mark.parametrize("ask", [canonical, task_of])
@pytest.mark.parametrize("given", [None, 3, b"/cpu:0"])
def test_only_texts(ask: Any, given: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        ask(given)
    assert caught.value.message == f"a device must be a str, not {type(given).__name__}"


def test_devices_of_tensors() -> None:
    assert device_of(SimpleNamespace(device="/job:a/task:1")) == "/job:a/task:1"
    assert device_of(np.zeros(2)) == ""  # NumPy 2 says "cpu"
    assert device_of(SimpleNamespace(device=object())) == ""
    assert device_of(None) == ""
