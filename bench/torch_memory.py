# SPDX-License-Identifier: Apache-2.0
"""Peak memory of loading 256 MiB of model and 512 MiB of AdamW's state with torch.

    python bench/torch_memory.py FOLDER     # about 3 GiB of disk; one process for each figure

Prints, for an optimizer with state and a fresh one, how much resident memory grows while
`ckptfmt.torch.load_into`, and `torch.load` with `load_state_dict`, load the same training state.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

WAYS = ("ckptfmt", "torch.load(mmap=True)", "torch.load")
KINDS = ("with state", "fresh")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def training(*, with_state: bool) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(16)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    if with_state:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"model": model, "optimizer": optimizer}


def make(folder: Path) -> None:
    import torch  # noqa: PLC0415

    import ckptfmt.torch  # noqa: PLC0415

    state = training(with_state=True)
    ckptfmt.torch.save(state, folder / "run")
    torch.save({key: one.state_dict() for key, one in state.items()}, folder / "run.pt")


def measure(way: str, kind: str, folder: Path) -> None:
    import torch  # noqa: PLC0415

    import ckptfmt.torch  # noqa: PLC0415

    state = training(with_state=kind == "with state")
    ckptfmt.torch.save(torch.nn.Linear(2, 2), folder / "tiny")  # what is allocated once
    ckptfmt.torch.load(folder / "tiny")
    before, done = resident(), threading.Event()
    peak = before

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    if way == "ckptfmt":
        ckptfmt.torch.load_into(state, folder / "run")
    else:
        loaded = torch.load(folder / "run.pt", mmap="mmap" in way)
        for key, one in state.items():
            one.load_state_dict(loaded[key])
    took = time.perf_counter() - start
    done.set()
    watcher.join()
    print(f"{way:22} {kind:10} +{(peak - before) >> 20:4} MiB, {took:.2f} s", flush=True)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:] == ["make"]:
        make(folder)
        return
    if sys.argv[2:]:
        measure(sys.argv[2], sys.argv[3], folder)
        return
    own = [sys.executable, __file__, str(folder)]
    subprocess.run([*own, "make"], check=True)
    for kind in KINDS:
        for way in WAYS:
            subprocess.run([*own, way, kind], check=True)


if __name__ == "__main__":
    main()
