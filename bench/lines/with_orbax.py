# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import jax
from orbax.checkpoint import v1 as ocp
from safetensors.flax import load_file


def weights(model, other):
    ocp.save(Path("weights").absolute(), model)
    return ocp.load(Path("weights").absolute(), other)


def training(run, other):
    ocp.save(Path("state").absolute(), run)
    return ocp.load(Path("state").absolute(), other)


def one_tensor(name):
    partial = ocp.options.PyTreeOptions(
        loading=ocp.options.PyTreeOptions.Loading(partial_load=True)
    )
    with ocp.Context(pytree_options=partial):
        like = {name: jax.ShapeDtypeStruct((8, 4), "float32")}
        return ocp.load(Path("weights").absolute(), like)[name]


def sharded(state, other):
    ocp.save(Path("sharded").absolute(), state)
    return ocp.load(Path("sharded").absolute(), other)


def convert():
    ocp.save(Path("converted").absolute(), load_file("weights.safetensors"))


def manager(train_step, state, batches):
    kept = ocp.training.preservation_policies
    best = kept.BestN(get_metric_fn=lambda metrics: -metrics["loss"], n=1)
    policy = kept.AnyPreservationPolicy([kept.LatestN(3), best])
    place = Path("run").absolute()
    with ocp.training.Checkpointer(place, preservation_policy=policy) as manager:
        if manager.latest is not None:
            state = manager.load(abstract_state=state)
        for batch in batches[state["step"] :]:
            state, loss = train_step(state, batch)
            manager.save_async(state["step"], state, metrics={"loss": loss}, force=True)
    return state
