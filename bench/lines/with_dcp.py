# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from shutil import rmtree

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def weights(model, other):
    dcp.save(model.state_dict(), checkpoint_id="weights")
    dcp.load(other.state_dict(), checkpoint_id="weights")  # in place


def training(run, other):
    model, optimizer = get_state_dict(run["model"], run["optimizer"])
    state = {"model": model, "optimizer": optimizer, "scheduler": run["scheduler"].state_dict()}
    dcp.save(
        {**state, "step": run["step"], "rng": torch.get_rng_state()},
        checkpoint_id="state",
        no_dist=True,
    )
    model, optimizer = get_state_dict(other["model"], other["optimizer"])
    state = {"model": model, "optimizer": optimizer, "scheduler": other["scheduler"].state_dict()}
    state |= {"step": other["step"], "rng": torch.get_rng_state()}
    dcp.load(state, checkpoint_id="state")
    set_state_dict(
        other["model"],
        other["optimizer"],
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    other["scheduler"].load_state_dict(state["scheduler"])
    other["step"] = state["step"]
    torch.set_rng_state(state["rng"])


def one_tensor(name):
    state = {name: torch.empty(8, 4)}
    dcp.load(state, checkpoint_id="weights")
    return state[name]


def sharded(state, other):
    dcp.save(state, checkpoint_id="sharded")
    dcp.load(other, checkpoint_id="sharded")


def convert():
    torch_save_to_dcp("weights.pt", "converted")


def manager(train_step, state, batches):
    def finish(save):
        save.result()
        saved = [file.parent for file in sorted(Path("run").glob("*/.metadata"))]
        best = min(saved, key=lambda path: float(path.name.split("_")[1]))
        for path in set(saved[:-3]) - {best}:
            rmtree(path)

    def parts():
        model, optimizer = get_state_dict(state["model"], state["optimizer"])
        return {"model": model, "optimizer": optimizer, "step": state["step"]}

    if saved := sorted(Path("run").glob("*/.metadata")):
        stored = parts()
        dcp.load(stored, checkpoint_id=saved[-1].parent)
        set_state_dict(
            state["model"],
            state["optimizer"],
            model_state_dict=stored["model"],
            optim_state_dict=stored["optimizer"],
        )
        state["step"] = stored["step"]
    save = None
    for batch in batches[state["step"] :]:
        loss = train_step(state, batch)
        if save is not None:
            finish(save)
        place = f"run/{state['step']:09}_{loss}"
        save = dcp.async_save(parts(), checkpoint_id=place, no_dist=True)
    if save is not None:
        finish(save)
