# SPDX-License-Identifier: Apache-2.0
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
