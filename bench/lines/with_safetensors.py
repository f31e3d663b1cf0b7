# SPDX-License-Identifier: Apache-2.0
import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_file, save_model


def weights(model, other):
    save_model(model, "weights.safetensors")
    load_model(other, "weights.safetensors")


def one_tensor(name):
    with safe_open("weights.safetensors", "pt") as file:
        return file.get_tensor(name)


def convert():
    save_file(torch.load("weights.pt"), "converted.safetensors")
