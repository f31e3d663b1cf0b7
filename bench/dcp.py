# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over ckptfmt's storage beside its own FileSystemWriter.

    python bench/dcp.py [--smoke] [--mib 512] [--ranks 4] [--samples 3] [--folder DIRECTORY]

Needs torch. Sharded tensors are saved by several processes, loaded by as many, by half as many with
the other dimension sharded, and by one; then made into one checkpoint of whole tensors: for DCP by
dcp_to_torch_save, for ckptfmt nothing is left to do. The two storages take turns in the same
processes. Files are in the page cache; both save with their defaults, which sync. A time is that of
the slowest rank, the median of the samples; bytes read are those of all ranks by /proc/self/io.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ckptfmt.torch.dcp import StorageReader, StorageWriter

MIB = 1 << 20
LAYERS = 24
STORAGES: dict[str, tuple[Any, Any]] = {
    "ckptfmt": (StorageWriter, StorageReader),
    "DCP": (dcp.FileSystemWriter, dcp.FileSystemReader),
}


def state_of(mib: int, axis: int, filled: bool) -> dict[str, Any]:
    """Layers of a matrix and 16 vectors, sharded along one axis; an optimizer's values."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = max(mib * MIB // LAYERS // 4096 // 64 * 64, 64)
    make = torch.randn if filled else torch.zeros
    state: dict[str, Any] = {"model": {}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "step": 1}
    for layer in range(LAYERS):
        whole = make(rows, 1024)
        tensor = distribute_tensor(whole, mesh, [Shard(axis)], src_data_rank=None)
        state["model"][f"layers.{layer}.weight"] = tensor
        for part in range(16):
            state["model"][f"layers.{layer}.norm{part}"] = make(1024)
    return state


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def timed(call: Callable[[], Any]) -> list[float]:
    """Seconds of the slowest rank, and bytes read by all."""
    dist.barrier()
    before, start = bytes_read(), time.perf_counter()
    call()
    found = torch.tensor([time.perf_counter() - start, 0.0], dtype=torch.float64)
    found[1] = bytes_read() - before
    slowest = found[:1].clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(found)
    return [float(slowest), float(found[1])]


def rank_main(job: dict[str, Any]) -> None:
    """Run in each process; rank 0 prints the samples."""
    warnings.simplefilter("ignore")
    folder = Path(job["folder"])
    dist.init_process_group("gloo", init_method=f"file://{job['place']}", **job["group"])
    state = state_of(job["mib"], job["axis"], job["what"] == "save")
    samples: dict[str, list[list[float]]] = {name: [] for name in STORAGES}
    for number in range(job["samples"]):
        for name, (writer, reader) in STORAGES.items():
            where = folder / name / "ckpt"
            if job["what"] == "save":
                if dist.get_rank() == 0:
                    shutil.rmtree(folder / name, ignore_errors=True)
                    (folder / name).mkdir()
                call = partial(dcp.save, state, storage_writer=writer(where))
            else:
                call = partial(dcp.load, state, storage_reader=reader(where))
            found = timed(call)
            if number or job["samples"] == 1:  # the first one warms up
                samples[name].append(found)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(samples))
    dist.destroy_process_group()


def run(folder: Path, what: str, ranks: int, **job: Any) -> dict[str, list[float]]:
    """Return the median seconds and the bytes read, by storage."""
    job |= {"folder": str(folder), "what": what, "place": f"{folder}/meet-{time.time_ns()}"}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(ranks):
        job["group"] = {"rank": rank, "world_size": ranks}
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        )
    outs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(1)
    samples = json.loads(outs[0])
    return {
        name: [statistics.median(one[0] for one in found), found[-1][1]]
        for name, found in samples.items()
    }


def consolidate(folder: Path, samples: int) -> dict[str, list[float]]:
    """Time DCP's conversion into one file of whole tensors. The merge of ckptfmt is in its save."""
    warnings.simplefilter("ignore")
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        dcp_to_torch_save(folder / "DCP" / "ckpt", folder / "whole.pt")
        times.append(time.perf_counter() - start)
    return {"ckptfmt": [0.0, 0.0], "DCP": [statistics.median(times), 0.0]}


def files_of(folder: Path) -> tuple[int, int]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return len(paths), sum(path.stat().st_size for path in paths)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one sample of 4 MiB on 2 ranks")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        rank_main(json.loads(given.job))
        return
    mib, ranks, samples = (4, 2, 1) if given.smoke else (given.mib, given.ranks, given.samples + 1)
    folder = Path(tempfile.mkdtemp(prefix="dcp-", dir=given.folder))
    shape = {"mib": mib, "samples": samples}
    try:
        rows = {f"save by {ranks}": run(folder, "save", ranks, axis=0, **shape)}
        sizes = {name: files_of(folder / name) for name in STORAGES}
        rows[f"load by {ranks}, the same shards"] = run(folder, "load", ranks, axis=0, **shape)
        half = ranks // 2
        rows[f"load by {half}, other shards"] = run(folder, "load", half, axis=1, **shape)
        rows["load by 1"] = run(folder, "load", 1, axis=0, **shape)
        rows["make it one checkpoint"] = consolidate(folder, min(samples, 2))
    finally:
        shutil.rmtree(folder)
    lines = [
        f"torch {torch.__version__}, {mib} MiB, {LAYERS * 17} tensors, {os.cpu_count()} CPUs",
        "",
        "| | ckptfmt | DCP | DCP / ckptfmt | MiB read: ckptfmt | DCP |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for what, row in rows.items():
        (ours, mine), (theirs, other) = row["ckptfmt"], row["DCP"]
        ratio = f"{theirs / ours:.2f}" if ours else ""
        read = f"{mine / MIB:.0f} | {other / MIB:.0f}" if what.startswith("load") else " | "
        lines.append(f"| {what} | {ours:.3f} s | {theirs:.3f} s | {ratio} | {read} |")
    (count, size), (their_count, their_size) = sizes["ckptfmt"], sizes["DCP"]
    lines.append(f"| files | {count} | {their_count} | | | |")
    lines.append(f"| MiB | {size / MIB:.2f} | {their_size / MIB:.2f} | | | |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
