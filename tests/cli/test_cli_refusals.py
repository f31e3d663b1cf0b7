# SPDX-License-Identifier: Apache-2.0
"""Refusals that lead on: each message has the next step, and the next step works."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.files import contents
from support.hostile import dcp_metadata, zip_value

import ckptfmt
from ckptfmt.safetensors import save_file
from cli.commands import Command

# The words, a text of the message, and the command that it leads to.
REFUSED = {
    # results in formats that ckptfmt does not write
    "convert model x.onnx": ("torch.onnx.export", "convert model x"),
    "convert model x.gguf": ("from a .safetensors file", "convert model x.safetensors"),
    "convert model x.msgpack": ("flax.serialization", "convert model x"),
    "convert model x.pb": ("tf.saved_model.save", "convert model x"),
    "convert model x.pbtxt": ("tf.io.write_graph", "convert model x"),
    "convert model x.meta": ("export_meta_graph", "convert model x"),
    "convert model x.json": ("`ckptfmt show --json PATH NAME`", "show --json model step"),
    "convert model x.txt": ("`ckptfmt show PATH NAME`", "show model step"),
    # files of other formats
    "inspect model.meta": ("open 'model'", "inspect model"),
    "inspect saved/saved_model.pb": ("open its directory, 'saved'", "inspect saved"),
    "inspect flax.msgpack": ("msgpack_restore", "inspect model"),
    "inspect net.onnx": ("onnx.load", "inspect model"),
    "inspect checkpoint": ("open its directory, '.'", "inspect ."),
    # downloads
    "inspect w.safetensors.incomplete": ("download it again", "inspect w.safetensors"),
    "convert w.safetensors.part x": ("download it again", "convert w.safetensors x"),
    "inspect half/model": ("'model.index.crdownload' is a download", "inspect model"),
    "inspect pointer.safetensors": ("`git lfs pull`", "inspect w.safetensors"),
    "verify copied/model": (
        "mv 'copied/model.index (1)' copied/model.index",
        "! mv 'copied/model.index (1)' copied/model.index",
    ),
    "inspect 'copied/model.index (1)'": (
        "mv 'copied/model.index (1)' copied/model.index",
        "! mv 'copied/model.index (1)' copied/model.index",
    ),
    "inspect alone/model": (
        "mv alone/model.index.txt alone/model.index",
        "! cp alone/model.index.txt copied/model.index",
    ),
    # directories
    "inspect {}": ("open '{}/7/default'", "inspect {}/7/default"),
    "inspect ranks/.metadata": ("open its directory, 'ranks'", "inspect model"),
    "inspect ranks/__0_0.distcp": ("open its directory, 'ranks'", "inspect model"),
    "inspect orbax": ("open 'orbax/7/default'", "inspect orbax/7/default"),
    "inspect orbax/7": ("open 'orbax/7/default'", "convert orbax/7/default x"),
    "inspect deepspeed": ("zero_to_fp32.py", "inspect model"),
    "inspect megatron": ("`ckptfmt convert PATH/iter_N PREFIX`", "inspect model"),
    "inspect diffusers": ("`ckptfmt convert PATH/unet PREFIX`", "convert diffusers/unet x"),
    # names of tensors
    "show sliced emb/part_1": ("'emb[2:4, :]'", "show sliced 'emb[2:4, :]'"),
    "show parts emb": ("'emb/part_0'", "show parts emb/part_0"),
    # names that HDF5 cannot hold
    "convert slots x.h5": ("--rename '/[/]/=.' gives", "convert slots x.h5 --rename /[/]/=."),
    "convert slots y.h5": ("--drop 'v/Momentum' leaves", "convert slots y.h5 --drop v/Momentum"),
    # tensors that cannot be read, beside others
    "convert odd.h5 x": (
        "--drop 'fixed' --drop 'none' leaves out",
        "convert odd.h5 x --drop fixed --drop none",
    ),
    "convert odd.npz x --cast half": (
        "--drop 'a, b' --drop 'c' leaves out",
        "convert odd.npz x --cast half --drop 'a, b' --drop c",
    ),
    "show odd.h5 none": ("without a shape", "show odd.h5 fine"),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = {"layer/a": np.arange(3.0), "layer/b": np.ones(3), "step": np.int64(7)}
    for prefix in ("model", "saved/variables/variables", "orbax/7/default/checkpoint"):
        ckptfmt.save(prefix, tensors)
    Path("{}").symlink_to("orbax")
    Path("checkpoint").write_text('model_checkpoint_path: "model"\n', encoding="utf-8")
    Path("saved/saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    for name in ("model.meta", "flax.msgpack", "net.onnx", "orbax/7/_CHECKPOINT_METADATA"):
        Path(name).write_bytes(b"\x0a\x20abc")
    save_file(tensors, "w.safetensors")
    for name in ("w.safetensors.incomplete", "w.safetensors.part"):
        Path(name).write_bytes(Path("w.safetensors").read_bytes()[:90])
    Path("pointer.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    for folder, index in (("half", "model.index.crdownload"), ("copied", "model.index (1)")):
        Path(folder).mkdir()
        shutil.copy("model.index", f"{folder}/{index}")
        shutil.copy("model.data-00000-of-00001", folder)
    Path("alone").mkdir()
    shutil.copy("model.index", "alone/model.index.txt")
    for name in (
        "deepspeed/global_step5/mp_rank_00_model_states.pt",
        "deepspeed/latest",
        "megatron/latest_checkpointed_iteration.txt",
        "diffusers/model_index.json",
    ):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        Path(name).touch()
    Path("ranks").mkdir()
    Path("ranks/.metadata").write_bytes(pickle.dumps(0))
    with zipfile.ZipFile("ranks/__0_0.distcp", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    Path("diffusers/unet").mkdir()
    shutil.copy("w.safetensors", "diffusers/unet/diffusion_pytorch_model.safetensors")
    rows = np.arange(12.0).reshape(4, 3)
    with ckptfmt.Writer("sliced") as writer:
        for start in (0, 2):
            writer.add_slice("emb", rows[start : start + 2], shape=(4, 3), offset=(start, 0))
    ckptfmt.save("parts", {"emb/part_0": rows[:2], "emb/part_1": rows[2:]})
    ckptfmt.save("slots", {"v": np.ones(3), "v/Momentum": np.ones(3)})
    with h5py.File("odd.h5", "w") as file:
        file["fine"], file["fixed"], file["none"] = np.ones(3), np.bytes_("ab"), h5py.Empty("f4")
    np.savez("odd.npz", fine=np.ones(3), **dict.fromkeys(("a, b", "c"), np.array([{}])))


@pytest.mark.parametrize("words", REFUSED)
def test_the_next_step(words: str, command: Command, tmp_path: Path) -> None:
    before = contents(tmp_path)
    text, then = REFUSED[words]
    ran = command(*shlex.split(words))
    assert (ran.status, ran.out) == (2, "")
    assert text in ran.err and "Traceback" not in ran.err
    assert contents(tmp_path) == before
    first, *rest = shlex.split(then)
    if first == "!":
        subprocess.run(rest, check=True)
        first, *rest = "verify", "copied/model"
    assert command(first, *rest).status == 0


@pytest.mark.parametrize(
    "path, unreadable", [("odd.h5", ["fixed", "none"]), ("odd.npz", ["a, b", "c"])]
)
def test_what_cannot_be_read_is_listed(path: str, unreadable: list[str], command: Command) -> None:
    """With the reason, beside the tensors that can be; other commands leave it out."""
    document = json.loads(command("inspect", "--json", path).out)
    dtypes = {one["name"]: one["dtype"] for one in document["tensors"]}
    assert dtypes == {"fine": "float64", **dict.fromkeys(unreadable, "unreadable")}
    problems = [(one["severity"], one["tensor"]) for one in document["problems"]]
    assert problems == [("note", name) for name in unreadable]
    assert command("verify", path).status == 1
    for words in ("inspect", "report", f"diff --filter * {path}"):
        assert command(*words.split(), path).status == 0
    assert command("diff", path, path).status == 2


def test_a_damaged_value_is_listed(command: Command, tmp_path: Path) -> None:
    """Of a DCP directory, whose other values can be read."""
    good = zip_value(pickle.dumps(7, 2))
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/__0_0.distcp").write_bytes(good + good.replace(b"data.pkl", b"data.pkk"))
    metadata = dcp_metadata(len(good), names=("a", "b"), step=len(good))
    (tmp_path / "dcp/.metadata").write_bytes(metadata)
    ran = command("inspect", "--json", "dcp")
    document = json.loads(ran.out)
    assert [one["dtype"] for one in document["tensors"]] == ["int64", "unreadable"]
    assert [(one["severity"], one["tensor"]) for one in document["problems"]] == [("problem", "b")]
    assert ran.status == 1
    words = ["convert", "-q", "dcp", "new"]
    ran = command(*words)
    assert ran.status == 1 and "tensor 'b'" in ran.err
    assert command(*words, "--drop", "b", "--drop-metadata").status == 0
    assert ckptfmt.load("new") == {"a": 7}


@pytest.mark.parametrize(
    "words",
    [
        *("--json", "inspect --json", "inspect --json --frob model", "diff --json model"),
        *("show --json model nothing", "inspect --json nowhere", "frob --json model"),
        *("edit --json model", "average --json model new", "verify --json ''"),
    ],
)
def test_a_refusal_is_one_json_document(words: str, command: Command) -> None:
    ran = command(*shlex.split(words))
    document = json.loads(ran.out)
    assert ran.status == 2 and document.keys() == {"schema", "error"}
    assert document["error"].keys() == {
        *("status", "failure", "message", "path", "offset", "tensor"),
    }
    assert document["error"]["message"].split(": ")[-1] in ran.err


def test_names_that_say_nothing(command: Command) -> None:
    """They are prefixes, and the command names the files."""
    for name in ("x.ckpt", "x.bin", "x.unknown"):
        files = f"{name}.index, {name}.data-00000-of-00001"
        assert files in command("convert", "model", name).out
        assert sorted(ckptfmt.load(name)) == ["layer/a", "layer/b", "step"]
