# SPDX-License-Identifier: Apache-2.0
import ckptfmt.jax


def weights(model, other):
    ckptfmt.jax.save("weights", model)
    return ckptfmt.jax.load("weights", like=other)


def training(run, other):
    ckptfmt.jax.save("state", run)
    return ckptfmt.jax.load("state", like=other)


def sharded(state, other):
    ckptfmt.jax.save("sharded", state)
    return ckptfmt.jax.load("sharded", like=other)
