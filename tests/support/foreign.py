# SPDX-License-Identifier: Apache-2.0
"""Files and directories of other checkpoint formats, made without their frameworks."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ckptfmt
from ckptfmt.safetensors import save_file

from .hostile import OPENERS, zip_of

CONVERT = "`ckptfmt convert PATH PREFIX`"


class Made(NamedTuple):
    """One file or directory.

    Attributes:
        make: makes it in a directory and returns its path.
        what: what an error calls it.
        pointer: which call reads it, or that ckptfmt does not.
        converts: whether `ckptfmt.convert` reads it.
    """

    make: Callable[[Path], Path]
    what: str
    pointer: str
    converts: bool = False


def _file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return make


def _safetensors(name: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        save_file({"x": np.arange(3.0)}, directory / name)
        return directory / name

    return make


def _hugging_face(directory: Path) -> Path:
    (directory / "hf").mkdir()
    (directory / "hf/config.json").write_text("{}")
    _safetensors("hf/model.safetensors")(directory)
    return directory / "hf"


def _npz(directory: Path) -> Path:
    np.savez(directory / "x.npz", x=np.arange(3.0))
    return directory / "x.npz"


def _npy(directory: Path) -> Path:
    np.save(directory / "x.npy", np.arange(3.0))
    return directory / "x.npy"


def _table(directory: Path) -> Path:
    ckptfmt.save(directory / "other", {"x": np.arange(3.0)})
    shutil.copy(directory / "other.index", directory / "v1.ckpt")
    return directory / "v1.ckpt"


def _v1_directory(directory: Path) -> Path:
    (directory / "v1").mkdir()
    _table(directory).rename(directory / "v1/v1.ckpt")
    (directory / "v1/checkpoint").write_text('model_checkpoint_path: "v1.ckpt"\n')
    return directory / "v1"


def _orbax(name: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        step = directory / name
        step.mkdir(parents=True)
        for file in ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"):
            (step / file).touch()
        return directory / name.split("/", maxsplit=1)[0]

    return make


def _torch_directory(directory: Path) -> Path:
    (directory / "bin").mkdir()
    (directory / "bin/pytorch_model.bin").write_bytes(TORCH_ZIP)
    return directory / "bin"


TORCH_ZIP = zip_of(**{"archive/data.pkl": pickle.dumps({}, 2)})
KERAS_ZIP = zip_of(**{"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b""})
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(100)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
TORCH = "ckptfmt does not read it, torch.load(PATH) does; then ckptfmt.torch.save"
LOAD_FILE = "ckptfmt.safetensors.load_file reads it"
ORBAX = "orbax.checkpoint.StandardCheckpointer().restore(PATH)"
V1 = "tf.train.load_checkpoint(PATH) reads V1"

FOREIGN = {
    "safetensors": Made(_safetensors("x.safetensors"), "a safetensors file", LOAD_FILE, True),
    "safetensors of another name": Made(
        _safetensors("x.bin"), "a safetensors file", CONVERT, converts=True
    ),
    "safetensors index": Made(
        OPENERS["safetensors index"].make,
        "the index of a model in several safetensors files",
        LOAD_FILE,
        converts=True,
    ),
    "Hugging Face directory": Made(
        _hugging_face,
        "a directory with 'model.safetensors', a safetensors file",
        CONVERT,
        converts=True,
    ),
    "directory of .bin": Made(
        _torch_directory, "a directory with 'pytorch_model.bin', a PyTorch file", TORCH
    ),
    "npz": Made(_npz, "a NumPy .npz file", CONVERT, converts=True),
    "npy": Made(_npy, "a NumPy .npy file", "ckptfmt does not read it, numpy.load does"),
    "h5": Made(_file("x.h5", HDF5), "an HDF5 file", CONVERT),
    "weights.h5": Made(
        _file("x.weights.h5", HDF5),
        "a Keras .weights.h5 file",
        "ckptfmt.keras.load_weights(model, PATH) reads it",
    ),
    "keras": Made(_file("x.keras", KERAS_ZIP), "a Keras .keras file", "keras.models.load_model"),
    "torch": Made(_file("x.pt", TORCH_ZIP), "a PyTorch file", TORCH),
    "torch of another name": Made(_file("x.ckpt", TORCH_ZIP), "a PyTorch file", TORCH),
    "old torch": Made(
        _file("old.pt", pickle.dumps({}, 2)), "a Python pickle (an old PyTorch file?)", "torch.load"
    ),
    "DCP": Made(
        lambda directory: OPENERS["DCP metadata"].make(directory).parent,
        "a directory of torch.distributed.checkpoint (DCP)",
        CONVERT,
        converts=True,
    ),
    "Orbax": Made(_orbax("orbax"), "an Orbax checkpoint", ORBAX),
    "steps of Orbax": Made(
        _orbax("steps/12"), "a directory with '12', an Orbax checkpoint", "ckptfmt.jax.save"
    ),
    "GGUF": Made(_file("x.gguf", b"GGUF\3" + bytes(60)), "a GGUF model", "ckptfmt does not read"),
    "V1": Made(_table, "a checkpoint of TensorFlow's V1 format", V1),
    "V1 directory": Made(_v1_directory, "a checkpoint of TensorFlow's V1 format", V1),
    "LFS pointer": Made(_file("model", POINTER), "a Git LFS pointer", "`git lfs pull`"),
    **{
        f"LFS pointer named {name}": Made(
            _file(name, POINTER), "a Git LFS pointer", "`git lfs pull`"
        )
        for name in ("x.safetensors", "x.npz", "x.weights.h5", "x.pt", "x.keras")
    },
}


def check_refusal(error: ckptfmt.CkptfmtError, made: Made, name: str) -> None:
    """The error names the format and the call that reads it."""
    kind = ckptfmt.UnsupportedError if name.startswith("V1") else ckptfmt.CheckpointNotFoundError
    assert type(error) is kind
    assert error.path is not None
    assert made.what in error.message
    assert made.pointer in error.message
