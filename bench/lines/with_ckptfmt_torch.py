# SPDX-License-Identifier: Apache-2.0
import ckptfmt.torch


def weights(model, other):
    ckptfmt.torch.save(model, "weights")
    ckptfmt.torch.load_into(other, "weights")


def training(run, other):  # run["random"] is a ckptfmt.torch.RandomState
    ckptfmt.torch.save(run, "state")
    ckptfmt.torch.load_into(other, "state")
