# SPDX-License-Identifier: Apache-2.0
import os
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file


def weights(model, other):
    torch.save(model.state_dict(), "weights.pt")
    other.load_state_dict(torch.load("weights.pt"))


def training(run, other):
    state = {name: run[name].state_dict() for name in ("model", "optimizer", "scheduler")}
    torch.save({**state, "step": run["step"], "rng": torch.get_rng_state()}, "state.pt")
    state = torch.load("state.pt")
    for name in ("model", "optimizer", "scheduler"):
        other[name].load_state_dict(state[name])
    other["step"] = state["step"]
    torch.set_rng_state(state["rng"])


def one_tensor(name):
    return torch.load("weights.pt", mmap=True)[name]


def convert():
    torch.save(load_file("weights.safetensors"), "converted.pt")


def manager(train_step, state, batches):
    def write(copy, loss):
        torch.save(copy, "run/unfinished")
        os.replace("run/unfinished", f"run/{copy['step']:09}_{loss}.pt")
        saved = sorted(Path("run").glob("*.pt"))
        best = min(saved, key=lambda path: float(path.stem.split("_")[1]))
        for path in set(saved[:-3]) - {best}:
            path.unlink()

    Path("run").mkdir(exist_ok=True)
    if saved := sorted(Path("run").glob("*.pt")):
        stored = torch.load(saved[-1])
        state["model"].load_state_dict(stored["model"])
        state["optimizer"].load_state_dict(stored["optimizer"])
        state["step"] = stored["step"]
    with ThreadPoolExecutor(1) as pool:
        saves = []
        for batch in batches[state["step"] :]:
            loss = train_step(state, batch)
            parts = {name: state[name].state_dict() for name in ("model", "optimizer")}
            saves.append(pool.submit(write, deepcopy({**parts, "step": state["step"]}), loss))
    for save in saves:
        save.result()
