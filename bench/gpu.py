# SPDX-License-Identifier: Apache-2.0
"""Saving 4.3 GB from the memory of a GPU, and loading them there, beside torch and safetensors.

    python bench/gpu.py FOLDER      # 13 GB there, and CUDA

Prints the best and the median of three, in seconds, and bytes per second of the best.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import ckptfmt.torch as ct

COUNT, ELEMENTS = 64, 16 << 20


def measure(what: str, call: Callable[[], Any]) -> None:
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        del result
    rate = COUNT * ELEMENTS * 4 / min(times) / 1e9
    print(f"{what:30} {min(times):6.3f} {statistics.median(times):6.3f}  {rate:5.2f} GB/s")


def main(folder: str) -> None:
    os.makedirs(folder)
    state = {f"t{number}": torch.randn(ELEMENTS, device="cuda") for number in range(COUNT)}
    ours, pickled, safe = (f"{folder}/{name}" for name in ("ours", "x.pt", "x.safetensors"))
    measure("ckptfmt.torch.save", lambda: ct.save(state, ours))
    measure("torch.save", lambda: torch.save(state, pickled))
    measure("safetensors save_file", lambda: save_file(state, safe))
    began = time.perf_counter()
    future = ct.save_async(state, ours)
    print(f"ckptfmt.torch.save_async blocks {time.perf_counter() - began:.3f}")
    future.result()
    target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    measure("ckptfmt.torch.load", lambda: ct.load(ours, device="cuda"))
    measure("ckptfmt.torch.load_into", lambda: ct.load_into(target, ours))
    measure("torch.load", lambda: torch.load(pickled, map_location="cuda"))
    measure("torch.load(mmap=True)", lambda: torch.load(pickled, map_location="cuda", mmap=True))
    measure("safetensors load_file", lambda: load_file(safe, device="cuda"))
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
