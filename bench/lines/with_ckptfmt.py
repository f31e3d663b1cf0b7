# SPDX-License-Identifier: Apache-2.0
import ckptfmt


def one_tensor(name):
    return ckptfmt.open("weights")[name].read()


def convert():
    ckptfmt.convert("weights.safetensors", "converted")
