# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch beside other formats: save, load, peak memory, files.

    python bench/torch_formats.py [--smoke] [--mib 256 2048] [--samples 5] [--folder DIRECTORY]

Needs torch and safetensors. Each call runs in a process of its own, the libraries take turns.
Files are in the page cache and nothing is synced (the row "synced" is ckptfmt's default). A load
is timed with a pass over all bytes, because some formats read a tensor when it is first used.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import ckptfmt.torch

OURS = "ckptfmt.torch"
MIB = 1 << 20


def state_of(mib: int) -> dict[str, torch.Tensor]:
    """Tensors as in a language model: an embedding of a quarter, layers of two dtypes."""
    torch.manual_seed(mib)
    left, state = mib * MIB, {"embedding": torch.randn(mib * MIB // 16, 1)}
    left -= state["embedding"].nbytes
    for layer in range(48):
        size = left // 48
        state[f"layers.{layer}.weight"] = torch.randn(size // 8)
        state[f"layers.{layer}.cache"] = torch.randn(size // 4).to(torch.bfloat16)
        state[f"layers.{layer}.bias"] = torch.randn(64)
    return state


def ckptfmt_save(state: dict[str, torch.Tensor], path: str) -> None:
    ckptfmt.torch.save(state, path, durability="none")


def ckptfmt_load_into(path: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    ckptfmt.torch.load_into(state, path)
    return state


def torch_load_into(path: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    for name, tensor in torch.load(path).items():
        state[name].copy_(tensor)
    return state


def safetensors_load_into(path: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    for name, tensor in load_file(path).items():
        state[name].copy_(tensor)
    return state


def dcp_save(state: dict[str, torch.Tensor], path: str) -> None:
    writer = dcp.FileSystemWriter(path, sync_files=False)
    dcp.save(state, storage_writer=writer, no_dist=True)


def dcp_load_into(path: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


SIDES: dict[str, dict[str, Callable[..., Any]]] = {
    OURS: {"save": ckptfmt_save, "load": ckptfmt.torch.load, "load into": ckptfmt_load_into},
    "ckptfmt.torch, synced": {"save": ckptfmt.torch.save},
    "torch.save": {"save": torch.save, "load": torch.load, "load into": torch_load_into},
    "safetensors": {
        "save": save_file,
        "load": load_file,
        "load into": safetensors_load_into,
    },
    "DCP": {"save": dcp_save, "load into": dcp_load_into},
}


def measure(side: str, verb: str, mib: int, path: str) -> dict[str, float]:
    """One call in this process: its seconds, and by how much it raised the peak of memory."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    call = SIDES[side][verb]
    state = {} if verb == "load" else state_of(mib)
    if verb == "load into":
        for tensor in state.values():
            tensor.zero_()
    # Imports and the first touch of each library are not measured.
    with tempfile.TemporaryDirectory() as scratch:
        warm = {"x": torch.zeros(4)}
        SIDES[side]["save"](warm, f"{scratch}/warm")
        if verb != "save":
            call(f"{scratch}/warm", *([warm] if verb == "load into" else []))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    if verb == "save":
        call(state, path)
    else:
        loaded = call(path) if verb == "load" else call(path, state)
        for tensor in loaded.values():
            tensor.view(torch.uint8 if tensor.ndim else tensor.dtype).reshape(-1)[::4096].sum()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if verb != "save":
        expected = state_of(mib)
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    return {"seconds": seconds, "mib": (peak - before) / 1024}


def run(mib: int, samples: int, folder: str) -> None:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    files = {}
    for _ in range(samples):
        for side, calls in SIDES.items():
            path = Path(folder, "checkpoint")
            path.mkdir()
            for verb in calls:
                words = ["--one", side, verb, str(mib), str(path / "state")]
                command = [sys.executable, __file__, *words]
                ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.setdefault((side, verb), []).append(json.loads(ran.stdout))
            files[side] = [one.stat().st_size for one in path.rglob("*") if one.is_file()]
            shutil.rmtree(path)
    print(f"\n## {mib} MiB\n")
    print("| | save | load | load into | peak of save | of load | of load into | files | bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for side in SIDES:
        cells = []
        for field in ("seconds", "mib"):
            for verb in ("save", "load", "load into"):
                cells.append(cell(found, side, verb, field))
        print(f"| {side} | {' | '.join(cells)} | {len(files[side])} | {sum(files[side]):,} |")


def cell(
    found: dict[tuple[str, str], list[dict[str, float]]], side: str, verb: str, field: str
) -> str:
    if (side, verb) not in found:
        return "-"
    value, ours = (
        statistics.median(one[field] for one in found[who, verb]) for who in (side, OURS)
    )
    if field == "mib":
        return f"{value:.0f} MiB"
    return f"{value:.3f} s" + (f" ({value / ours:.2f})" if side != OURS else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one sample of 4 MiB")
    parser.add_argument("--mib", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--folder", help="where files are written; default a temporary directory")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        side, verb, mib, path = arguments.one
        print(json.dumps(measure(side, verb, int(mib), path)))
        return
    print("# State dicts of torch\n")
    print("Medians; in brackets the ratio to ckptfmt.torch. Peaks are what a call adds. Written by")
    threads = torch.get_num_threads()
    print(f"`bench/torch_formats.py`, with torch {torch.__version__} and {threads} threads.")
    for mib in [4] if arguments.smoke else arguments.mib:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            run(mib, 1 if arguments.smoke else arguments.samples, folder)


if __name__ == "__main__":
    main()
