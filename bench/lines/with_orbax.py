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
