# SPDX-License-Identifier: Apache-2.0
"""Other checkpoint formats: how their names, files and directories are recognised, and which call
reads and writes each."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from typing import Literal, NamedTuple

# The formats that `ckptfmt.convert` reads, apart from checkpoints.
Convertible = Literal["safetensors", "npz", "hdf5", "dcp"]
TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
LFS_POINTER = b"version https://git-lfs"
CONVERT = (
    "`ckptfmt convert PATH PREFIX` makes it a checkpoint; `ckptfmt inspect`, `show`, `verify`, "
    "`report` and `diff` take it as it is"
)
# The first bytes of a zip archive: sizes of the name and of the fields before the first member.
ZIP_HEADER, ZIP_NAME_SIZE = 30, slice(26, 28)


class Foreign(NamedTuple):
    """A format other than TensorFlow's V2 checkpoints.

    Attributes:
        what: a file or directory of the format, in words.
        reading: what reads it.
        writing: what writes it; "" for formats that no name belongs to.
        convertible: its name in `ckptfmt.convert`; None if that does not read it.
        instead: what to do about it, where {directory} is that of its path, {base} the path
            without the extension, or what a browser adds, and {rename} the command that makes it
            this path.
    """

    what: str
    reading: str = ""
    writing: str = ""
    convertible: Convertible | None = None
    instead: str = ""

    def refusal(self, path: str) -> str:
        """Why `ckptfmt.open` cannot open it, and what does."""
        if self.instead:
            base = _COPY.sub("", path)
            base = os.path.splitext(path)[0] if base == path else base
            instead = self.instead.format(
                directory=os.path.dirname(path) or ".",
                base=base,
                rename=shlex.join(["mv", path, base]),
            )
            return f"{self.what}; {instead}"
        reading = f": {self.reading}" if self.reading else ""
        return f"{self.what}, not a TensorFlow checkpoint{reading}"

    @property
    def seems(self) -> str:
        """What an error about a damaged file adds."""
        return f"it looks like {self.what}"


SAFETENSORS = Foreign(
    "a safetensors file",
    f"ckptfmt.safetensors.load_file reads it, and {CONVERT}",
    "ckptfmt.safetensors.save_file writes one, and ckptfmt.convert makes one of a checkpoint",
    "safetensors",
)
SAFETENSORS_INDEX = Foreign(
    "the index of a model in several safetensors files",
    SAFETENSORS.reading,
    "ckptfmt.convert(..., max_shard_bytes=N) makes one, and the files, of a checkpoint",
    "safetensors",
)
NPZ = Foreign(
    "a NumPy .npz file",
    f"numpy.load reads it, and {CONVERT}",
    "numpy.savez writes one, and ckptfmt.convert makes one of a checkpoint",
    "npz",
)
NPY = Foreign(
    "a NumPy .npy file", "ckptfmt does not read it, numpy.load does", "numpy.save writes one"
)
HDF5 = Foreign(
    "an HDF5 file",
    f"h5py and, if Keras wrote it, Keras read it, and {CONVERT}",
    "ckptfmt.convert makes one of a checkpoint",
    "hdf5",
)
KERAS_WEIGHTS = Foreign(
    "a Keras .weights.h5 file",
    f"ckptfmt.keras.load_weights(model, PATH) reads it, and {CONVERT}",
    "ckptfmt.keras.save_weights(model, PATH) writes one",
    "hdf5",
)
KERAS = Foreign(
    "a Keras .keras file",
    "ckptfmt does not read it, keras.models.load_model(PATH) does; then "
    "ckptfmt.keras.save_weights saves the weights of the model",
    "keras.Model.save writes one",
)
TORCH = Foreign(
    "a PyTorch file",
    "ckptfmt does not read it, torch.load(PATH) does; then ckptfmt.torch.save saves what it "
    "returns",
    "torch.save writes one",
)
PICKLE = Foreign(
    "a Python pickle (an old PyTorch file?)",
    "ckptfmt does not read pickles. If torch.save wrote it, torch.load(PATH) reads it; then "
    "ckptfmt.torch.save saves what it returns",
)
DCP = Foreign(
    "a directory of torch.distributed.checkpoint (DCP)",
    f"torch.distributed.checkpoint.load reads it, and {CONVERT}",
    convertible="dcp",
)
DCP_FILE = Foreign(
    "a file of a directory of torch.distributed.checkpoint (DCP)",
    instead="open its directory, '{directory}'",
)
UNFINISHED_DCP = Foreign(
    "a directory of torch.distributed.checkpoint (DCP) without its .metadata: a save that did not "
    "finish"
)
ORBAX = Foreign(
    "an Orbax checkpoint",
    "ckptfmt does not read it, orbax.checkpoint.StandardCheckpointer().restore(PATH) does; then "
    "ckptfmt.jax.save saves what it returns",
)
OUR_ORBAX = Foreign("a step of Orbax that ckptfmt's handler wrote")
DEEPSPEED = Foreign(
    "a checkpoint of DeepSpeed",
    "`python zero_to_fp32.py DIRECTORY OUTPUT --safe_serialization`, a program that DeepSpeed "
    "leaves there, makes it safetensors files, which `ckptfmt convert` reads",
)
MEGATRON = Foreign(
    "a checkpoint of Megatron",
    "`ckptfmt convert PATH/iter_N PREFIX` reads a step that has .distcp files; others have PyTorch "
    "files, which torch.load reads",
)
DIFFUSERS = Foreign(
    "a pipeline of diffusers, with a directory for each model",
    "`ckptfmt convert PATH/unet PREFIX`, for example, reads one of them",
)
ONNX = Foreign(
    "an ONNX model",
    "ckptfmt does not read it, onnx.load(PATH) does; ckptfmt.save saves the arrays that "
    "onnx.numpy_helper.to_array makes of its initializers",
    "only the framework that has the model writes one (torch.onnx.export, tf2onnx)",
)
MSGPACK = Foreign(
    "a msgpack file of Flax",
    "ckptfmt does not read it, flax.serialization.msgpack_restore does; then ckptfmt.jax.save "
    "saves what it returns",
    "flax.serialization.to_bytes makes one of what ckptfmt.load_tree returns",
)
GGUF = Foreign(
    "a GGUF model",
    "ckptfmt does not read it",
    "ckptfmt does not write them; llama.cpp makes one from a .safetensors file, which "
    "ckptfmt.convert writes",
)
SAVED_MODEL = Foreign(
    "the program of a SavedModel",
    writing="tf.saved_model.save writes one",
    instead="open its directory, '{directory}'",
)
META_GRAPH = Foreign(
    "the graph of a checkpoint of TensorFlow 1",
    writing="tf.compat.v1.train.export_meta_graph writes one",
    instead="open '{base}'",
)
GRAPH = Foreign(
    "a graph of TensorFlow",
    "tf.io.gfile and tf.compat.v1.GraphDef read it",
    "tf.saved_model.save and tf.io.write_graph write such",
)
JSON = Foreign(
    "a JSON file",
    "it has no tensors",
    "`ckptfmt show --json PATH NAME` prints the values of a tensor, `ckptfmt inspect --json PATH` "
    "lists all",
)
TEXT = Foreign(
    "a text file", "it has no tensors", "`ckptfmt show PATH NAME` prints the values of a tensor"
)
DOWNLOAD = Foreign("a download that did not finish", instead="download it again, to '{base}'")
COPY = Foreign("an .index file under another name", instead="rename it: {rename}")
V1 = Foreign(
    "a table file: a checkpoint of TensorFlow's V1 format, or an .index file under another name",
    "ckptfmt reads only V2 checkpoints, which are an .index file and data files; "
    "tf.train.load_checkpoint(PATH) reads V1",
)
LFS = Foreign("a Git LFS pointer: the file itself was never fetched (`git lfs pull`)")
HTML = Foreign("an HTML page, as a download that failed leaves behind")
STATE_FILE = Foreign(
    "the text file that names a directory's checkpoints",
    instead="open its directory, '{directory}'",
)
EMPTY = Foreign("an empty file")
_PACKED = "save the checkpoint first, then store its files in an archive"
ZIP = Foreign("a zip archive", "unpack it first, `unzip FILE -d DIRECTORY`", _PACKED)
TAR = Foreign("a tar archive", "unpack it first, `tar -xf FILE -C DIRECTORY`", _PACKED)
_GZIP = Foreign("a gzip file", "decompress it first")
_ZSTANDARD = Foreign("a Zstandard file", "decompress it first")
_MODEL_INDEX = Foreign(
    "the index of a model in several files",
    "ckptfmt reads such indexes of safetensors files only; if it is of PyTorch's .bin files, "
    "torch.load reads each of them",
    SAFETENSORS_INDEX.writing,
)
UNKNOWN = Foreign("a file of an unknown kind")

# TensorFlow's users name checkpoints model.ckpt, and .bin says nothing: these are not here.
_EXTENSIONS = {
    ".safetensors.index.json": SAFETENSORS_INDEX,
    ".index.json": _MODEL_INDEX,
    ".safetensors": SAFETENSORS,
    ".npz": NPZ,
    ".npy": NPY,
    ".weights.h5": KERAS_WEIGHTS,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".keras": KERAS,
    ".pt": TORCH,
    ".pth": TORCH,
    ".gguf": GGUF,
    ".onnx": ONNX,
    ".msgpack": MSGPACK,
    "saved_model.pb": SAVED_MODEL,
    **dict.fromkeys((".pb", ".pbtxt"), GRAPH),
    ".meta": META_GRAPH,
    ".json": JSON,
    ".txt": TEXT,
    ".zip": ZIP,
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"), TAR),
}
# What browsers and other programs add to the name of a file.
_DOWNLOADS = (".incomplete", ".part", ".partial", ".crdownload", ".download")
_COPY = re.compile(r"(?<=\.index)( \(\d+\)|[-. _~][^/]*)$")


def by_name(path: str) -> tuple[Foreign, str] | None:
    """Return the format that a name belongs to and the extension that says so; None for others."""
    lower = path.lower()
    for extension, kind in _EXTENSIONS.items():
        if lower.endswith(extension):
            return kind, path[-len(extension) :]
    return None


def by_head(path: str, head: bytes, tail: bytes) -> Foreign:
    """Return what a file is, by its first bytes (some hundred) and its last 8."""
    if path.lower().endswith(_DOWNLOADS):
        return DOWNLOAD
    if tail == TABLE_MAGIC:
        return COPY if _COPY.search(path) else V1
    if not head:
        return EMPTY
    if head[257:262] == b"ustar":
        return TAR
    kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), None) or _by_text(head)
    if kind is ZIP:
        kind = _zip(head)
    name = os.path.basename(path)
    if kind in (TORCH, PICKLE) and (name == ".metadata" or name.endswith(".distcp")):
        return DCP_FILE
    named = by_name(path)
    if named is not None and (kind, named[0]) in _NAMED:
        return named[0]
    return kind


_MAGIC = [
    (LFS_POINTER, LFS),
    (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\x1f\x8b", _GZIP),
    (b"\x28\xb5\x2f\xfd", _ZSTANDARD),
    (b"\x93NUMPY", NPY),
    (b"GGUF", GGUF),
]
# What the name adds to the content.
_NAMED = {
    *((HDF5, KERAS_WEIGHTS), (_GZIP, TAR), (_ZSTANDARD, TAR), (ZIP, NPZ)),
    *((UNKNOWN, kind) for kind in (SAFETENSORS_INDEX, _MODEL_INDEX, TAR, ONNX, MSGPACK)),
    *((UNKNOWN, kind) for kind in (SAVED_MODEL, META_GRAPH, GRAPH, JSON, TEXT)),
}
_HTML = (b"<!doctype html", b"<html", b"<?xml")
_STATE = re.compile(rb"\s*(#[^\n]*\n\s*)*(all_)?model_checkpoint_path")


def _by_text(head: bytes) -> Foreign:
    if head.lstrip().lower().startswith(_HTML):
        return HTML
    if _STATE.match(head):
        return STATE_FILE
    size = int.from_bytes(head[:8], "little")
    if len(head) > 9 and head[8:10] in (b'{"', b"{ ", b"{}") and size < 1 << 40:
        return SAFETENSORS
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return PICKLE
    return UNKNOWN


def _zip(head: bytes) -> Foreign:
    """Return what a zip archive is, by the name of its first member."""
    size = int.from_bytes(head[ZIP_NAME_SIZE], "little")
    name = head[ZIP_HEADER : ZIP_HEADER + size]
    if name.endswith(b".npy"):
        return NPZ
    if name in (b"metadata.json", b"config.json", b"model.weights.h5"):
        return KERAS
    if re.search(rb"/(data\.pkl|data/[0-9]+|version|byteorder|code/.*)$", name, re.S):
        return TORCH
    return ZIP


# Of names in a directory, what only these formats have: other files are found beside checkpoints.
_MODEL_FILES = [
    (r".*\.safetensors\.index\.json", SAFETENSORS_INDEX),
    (r"(adapter_)?model\.safetensors", SAFETENSORS),
    (r"(pytorch|adapter)_model\.bin(\.index\.json)?", TORCH),
    (r".*_(model|optim)_states\.pt", DEEPSPEED),
    (r"latest_checkpointed_iteration\.txt|mp_rank_\d+(_\d+)*", MEGATRON),
    (r"model_index\.json", DIFFUSERS),
]


def beside(name: str, found: Iterable[str]) -> tuple[str, Foreign] | None:
    """Return a name in a directory that a browser gave to the file `name`, and what it is, or
    None."""
    for other in sorted(found):
        is_download = other.lower().endswith(_DOWNLOADS)
        if (os.path.splitext(other)[0] if is_download else _COPY.sub("", other)) == name != other:
            return other, DOWNLOAD if is_download else COPY
    return None


def by_listing(names: Iterable[str]) -> Foreign | None:
    """Return what a directory with these names is; None unless a name is one that only a format or
    Hugging Face's models have."""
    found = sorted(names)
    if ".metadata" in found:
        return DCP
    if any(name.endswith(".distcp") for name in found):
        return UNFINISHED_DCP
    if "_CHECKPOINT_METADATA" in found or "manifest.ocdbt" in found:
        return ORBAX
    for pattern, kind in _MODEL_FILES:
        for name in found:
            if re.fullmatch(pattern, name, re.S | re.I):
                return kind._replace(what=f"a directory with '{name}', {kind.what}")
    return None
