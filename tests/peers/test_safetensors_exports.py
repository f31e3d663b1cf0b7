# SPDX-License-Identifier: Apache-2.0
"""States of torch as safetensors files: who reads them, what goes along and what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
import transformers.modeling_utils
from accelerate.utils.modeling import load_state_dict as accelerate_load
from support.strategies import property_test

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt import editing
from ckptfmt.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight


def training(model: torch.nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters())
    sum(one.sum() for one in model.parameters()).backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "rng": ct.RandomState(), "step": 3}


WEIGHTS: dict[str, Any] = {"rename": [("^model[.]", "")], "keep": "model.*"}
# What is saved, of which model, and the options of `convert`.
EXPORTS: dict[str, tuple[Callable[[torch.nn.Module], Any], type, dict[str, Any]]] = {
    "a module": (lambda model: model, lambda: torch.nn.Linear(2, 2), {}),
    "tied names": (lambda model: model, Tied, {}),
    "a dict of tensors": (lambda model: dict(model.state_dict()), Tied, {}),
    "the weights of a training state": (training, Tied, WEIGHTS),
    "without metadata": (lambda model: model, Tied, {"drop_metadata": True}),
}
READERS: dict[str, Callable[[str], dict[str, torch.Tensor]]] = {
    "safetensors": safetensors.torch.load_file,
    "accelerate": accelerate_load,
    "transformers": transformers.modeling_utils.load_state_dict,
    "ckptfmt": lambda path: {
        name: torch.from_numpy(one) for name, one in ckptfmt.safetensors.load_file(path).items()
    },
}


def metadata_of(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata() or {}


@pytest.mark.parametrize("export", EXPORTS)
def test_readers(tmp_path: Path, export: str) -> None:
    """Loaders read what is exported, and a model with the tie loads it."""
    saved, make, options = EXPORTS[export]
    model, file = make(), tmp_path / "m.safetensors"
    ct.save(saved(model), tmp_path / "ck")
    done = ckptfmt.convert(tmp_path / "ck", file, **options)
    expected = {name: one.data for name, one in model.named_parameters()}
    for name, read in READERS.items():
        found = read(str(file))
        assert found.keys() == expected.keys(), name
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
    other = make()
    assert safetensors.torch.load_model(other, str(file)) == (set(), [])
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    ties = {"head.weight": "emb.weight"} if make is Tied else {}
    if options.get("drop_metadata"):
        assert metadata_of(file) == {}
        assert ("'head.weight'" in str(done.dropped)) == bool(ties)
        return
    assert done.dropped == ()
    safetensors.torch.save_model(model, str(tmp_path / "theirs.safetensors"), {"format": "pt"})
    assert metadata_of(tmp_path / "theirs.safetensors") == {"format": "pt", **ties}
    metadata = metadata_of(file)
    assert (metadata.pop("ckptfmt.torch", None) is None) == (export == "a dict of tensors")
    assert metadata == {"format": "pt", **ties}


def test_a_pretrained_model(tmp_path: Path) -> None:
    """transformers loads its tied model of what was saved with `ckptfmt.torch`."""
    config = transformers.GPT2Config(vocab_size=11, n_positions=4, n_embd=4, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    ct.save(model, tmp_path / "ck")
    config.save_pretrained(tmp_path)
    ckptfmt.convert(tmp_path / "ck", tmp_path / "model.safetensors")
    assert metadata_of(tmp_path / "model.safetensors")["lm_head.weight"] == "transformer.wte.weight"
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    state = loaded.state_dict()
    assert all(torch.equal(state[name], one) for name, one in model.state_dict().items())
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def ties_of(state: dict[str, torch.Tensor]) -> set[frozenset[str]]:
    by_memory: dict[int, set[str]] = {}
    for name, tensor in state.items():
        by_memory.setdefault(id(tensor), set()).add(name)
    return {frozenset(names) for names in by_memory.values()}


@property_test(40, 1000, st.data())
def test_ties(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """All names come back, tied as before, through files of ours and of the library."""
    path = tmp_path_factory.mktemp("ties")
    names = data.draw(st.lists(st.text("ab.", min_size=1), min_size=1, max_size=8, unique=True))
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)))
    tensors = [torch.full((2, 3), float(number)) for number in range(4)]
    state = {name: tensors[number] for name, number in zip(names, numbers, strict=True)}
    module = torch.nn.ParameterDict()
    ct.save(state, path / "ck")
    ckptfmt.convert(path / "ck", path / "ours.safetensors")
    stored = safetensors.torch.load_file(path / "ours.safetensors")
    aliases = metadata_of(path / "ours.safetensors")
    assert aliases.pop("format") == "pt" and "ckptfmt.torch" not in aliases
    assert {**stored, **{name: stored[of] for name, of in aliases.items()}}.keys() == state.keys()
    module.update({f"p{n}": torch.nn.Parameter(one) for n, one in enumerate(state.values())})
    for n, number in enumerate(numbers):
        module[f"p{n}"] = module[f"p{numbers.index(number)}"]
    safetensors.torch.save_model(module, str(path / "theirs.safetensors"))
    new_names = {f"p{n}": name for n, name in enumerate(names)}
    for file in ("ours", "theirs"):
        ckptfmt.convert(path / f"{file}.safetensors", path / "again.safetensors")
        given = metadata_of(path / f"{file}.safetensors")
        assert metadata_of(path / "again.safetensors") == (
            {"format": "pt", **given} if given else {}
        )
        ckptfmt.convert(path / "again.safetensors", path / "back")
        back = ct.load(path / "back")
        if file == "theirs":
            back = {new_names[name]: one for name, one in back.items()}
        assert ties_of(back) == ties_of(state)
        assert all(torch.equal(back[name], one) for name, one in state.items())
        with ckptfmt.open(path / "back") as reader:
            assert reader.metadata.keys() <= {"ckptfmt.torch", "format"}


@pytest.mark.parametrize("source", ["ckptfmt", "dcp"])
def test_weights_by_command(tmp_path: Path, source: str) -> None:
    """One command makes a file of the weights of a training state, which a model loads."""
    model, file = Tied(), str(tmp_path / "weights.safetensors")
    if source == "dcp":
        weights = {"model": model.state_dict(), "optim": {"step": 3}}
        dcp.save(weights, checkpoint_id=tmp_path / "run", no_dist=True)
    else:
        ct.save(training(model), tmp_path / "run")
    words = ["--keep", "model.*", "--rename", "model.*=*"]
    assert main(["convert", "-q", str(tmp_path / "run"), file, *words]) == 0
    other = Tied()
    other.load_state_dict(safetensors.torch.load_file(file), strict=source == "dcp")
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    if source == "ckptfmt":
        assert metadata_of(Path(file))["head.weight"] == "emb.weight"


@pytest.mark.parametrize("to", ["x.npz", "x.h5", "x.safetensors"])
def test_what_is_left_out(tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, where the format or an option leaves it out."""
    ct.save(training(Tied()), tmp_path / "ck")
    drops = to == "x.safetensors"
    options = ["--drop-metadata"] if drops else []
    assert main(["convert", "-q", str(tmp_path / "ck"), str(tmp_path / to), *options]) == 0
    message = capsys.readouterr().err
    assert "'model.head.weight'" in message and "torch state" in message
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / f"2{to}", drop_metadata=drops)
    assert all(what in message for what in done.dropped) and len(done.dropped) == 3


@pytest.mark.parametrize("tie", [{"head.weight": "gone"}, {"emb.weight": "emb.weight"}])
def test_texts_that_name_no_tie(tmp_path: Path, tie: dict[str, str]) -> None:
    file = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"emb.weight": torch.ones(2)}, file, {"format": "pt", **tie})
    ckptfmt.convert(file, tmp_path / "ck")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert reader.metadata == {"format": "pt", **tie}


@pytest.mark.parametrize("rename", [("^", "pre."), ("weight", "kernel"), ("$", ".x")])
@pytest.mark.parametrize("above", ["", "m."])
def test_renamed_ties(tmp_path: Path, above: str, rename: tuple[str, str]) -> None:
    """A rename is one of all names: in a flat state of its keys, too."""
    tied = torch.ones(2)
    state = {"emb.weight": tied, "head.weight": tied, "other": torch.zeros(2)}
    ct.save({"m": state} if above else state, tmp_path / "ck")
    emb, head, other = (re.sub(*rename, f"{above}{name}", count=1) for name in state)
    ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", rename=[rename])
    assert metadata_of(tmp_path / "x.safetensors").get(head) == emb
    for make in () if above else (ckptfmt.convert, editing.edit):
        make(tmp_path / "ck", tmp_path / "to", rename=[rename])
        assert ct.load(tmp_path / "to").keys() == {emb, head, other}


def test_edits_of_tied_names(tmp_path: Path) -> None:
    """A name that goes with a dropped tensor is said; two tensors never get one name."""
    tied = torch.ones(2)
    ct.save({"emb": tied, "head": tied, "other": torch.zeros(2)}, tmp_path / "ck")
    for to in ("x.safetensors", "to"):
        with pytest.warns(ckptfmt.CkptfmtWarning, match="'head'"):
            ckptfmt.convert(tmp_path / "ck", tmp_path / to, drop="emb", rename={"other": "o"})
        with pytest.raises(ckptfmt.InvalidError) as caught:
            ckptfmt.convert(tmp_path / "ck", tmp_path / to, rename={"other": "head"})
        assert caught.value.tensor == "other"
    with pytest.warns(ckptfmt.CkptfmtWarning, match="'head'"):
        editing.edit(tmp_path / "ck", tmp_path / "edited", drop="emb", drop_weights=True)


@pytest.mark.parametrize("state", [{"w": torch.ones(2)}, {"model": {"w": torch.ones(2)}, "n": 3}])
def test_texts_that_name_a_tensor(tmp_path: Path, state: dict[str, Any]) -> None:
    """Metadata of a user are no ties: they come back, and no tensor comes with them."""
    (name,) = ["w"] if "w" in state else ["model.w"]
    ct.save(state, tmp_path / "ck", metadata={"best": name})
    ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors")
    ckptfmt.convert(tmp_path / "x.safetensors", tmp_path / "back")
    assert ct.load(tmp_path / "back").keys() == state.keys()
    with ckptfmt.open(tmp_path / "back") as reader:
        assert reader.metadata["best"] == name and list(reader) == [name]
