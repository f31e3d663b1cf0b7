# SPDX-License-Identifier: Apache-2.0
"""TensorFlow reads and restores what edits and averages make of its checkpoints and, where
CKPTFMT_CORPUS names them, of other people's."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drawn_edits import Drawn, drawn_edit, expected_of

import ckptfmt
from ckptfmt import TensorNotFoundError
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.files.locate import locate
from ckptfmt.naming.roles import model_roles

from .workers import ask

CORPUS = os.environ.get("CKPTFMT_CORPUS")
MADE = ("both", "model", "slots", "names")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints that TensorFlow made."""
    folder = tmp_path_factory.mktemp("made")
    assert ask("tf_edit.py", "make", folder) == []
    return folder


def sources(folder: Path) -> dict[str, str]:
    """Checkpoints to edit: those that TensorFlow made here, and those of the corpus."""
    found = {name: str(folder / name) for name in MADE}
    if CORPUS is None:
        print("corpus: not run, CKPTFMT_CORPUS is not set")
    else:
        places = sorted(path for path in Path(CORPUS).iterdir() if path.is_dir())
        found |= {f"corpus-{number}": locate(path) for number, path in enumerate(places)}
    return found


def digests(tensors: Mapping[str, Any]) -> dict[str, str]:
    """As tf_edit.py has them."""
    found = {}
    for name, array in tensors.items():
        if array.dtype == object:
            parts = array.reshape(-1).tolist()
            content = b"".join(len(one).to_bytes(8, "little") + one for one in parts)
        else:
            content = array.tobytes()
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def renamed(name: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first}{slash}{rest}" if first == "save_counter" else f"{first}_new{slash}{rest}"


Edited = tuple[str, dict[str, Any]]


def rename(source: str, prefix: str, tensors: dict[str, Any]) -> Edited:
    done = ckptfmt.editing.edit(source, prefix, rename=renamed)
    return prefix, {done.renamed.get(name, name): value for name, value in tensors.items()}


def strip(source: str, prefix: str, tensors: dict[str, Any]) -> Edited | None:
    with ckptfmt.open(source) as reader:
        state = {name for name, role in model_roles(reader).items() if role == "optimizer"}
    if not state:
        with pytest.raises(TensorNotFoundError, match="no tensor is known to be the state"):
            ckptfmt.editing.edit(source, prefix, strip_optimizer=True)
        return None
    done = ckptfmt.editing.edit(source, prefix, strip_optimizer=True)
    assert set(done.dropped) == state
    return prefix, {
        done.renamed.get(name, name): value for name, value in tensors.items() if name not in state
    }


def cast(source: str, prefix: str, tensors: dict[str, Any]) -> Edited | None:
    floats = {name for name, one in tensors.items() if one.dtype.kind == "f" and one.ndim}
    if not floats:
        return None
    done = ckptfmt.editing.edit(source, prefix, cast="float64")
    assert set(done.casts) == {name for name in floats if tensors[name].dtype != "f8"}
    return prefix, {
        name: value.astype("f8") if name in done.casts else value for name, value in tensors.items()
    }


def mean(source: str, prefix: str, tensors: dict[str, Any]) -> Edited:
    """With a second one of other values, the same as if all floating-point values were cast to
    float16 and back."""
    floats = {name: value for name, value in tensors.items() if value.dtype.kind == "f"}
    if not floats:
        ckptfmt.editing.average([source, source], prefix)
        return prefix, tensors
    stored = {name: str(value.dtype) for name, value in floats.items()}
    half = dict.fromkeys(floats, "float16")
    ckptfmt.editing.edit(source, f"{prefix}-half", cast=half, allow_loss=True)
    ckptfmt.editing.edit(f"{prefix}-half", f"{prefix}-second", cast=stored)
    ckptfmt.editing.average([source, f"{prefix}-second"], prefix)
    second = ckptfmt.load(f"{prefix}-second")
    means = {
        name: ((value.astype("f8") + second[name].astype("f8")) / 2).astype(value.dtype)
        for name, value in floats.items()
    }
    return prefix, {**tensors, **means}


EDITS: tuple[Callable[..., Edited | None], ...] = (rename, strip, cast, mean)


def test_partitioned_tensors_are_linked(made: Path) -> None:
    """TensorFlow finds the slices of partitioned variables under their new names."""
    with ckptfmt.open(made / "names") as reader:
        assert len(reader["table"].slices) == 3
    assert ckptfmt.editing.edit(made / "names", made / "b", rename=renamed).copied_nbytes == 0


def test_tensorflow_restores_edited_checkpoints(made: Path) -> None:
    expected = {}
    for name, source in sources(made).items():
        tensors = ckptfmt.load(source)
        tensors.pop(OBJECT_GRAPH_KEY, None)
        for edit in EDITS:
            outcome = edit(source, str(made / f"{edit.__name__}-{name}"), tensors)
            if outcome is not None:
                prefix, values = outcome
                assert not ckptfmt.verify(prefix).problems
                expected[prefix] = digests(values)
    for name in ("both", "model", "slots"):
        ckptfmt.editing.edit(made / name, made / f"{name}-strip", strip_optimizer=True)
        assert not [name for name in ckptfmt.load(made / f"{name}-strip") if "opt" in name]
    ckptfmt.editing.edit(made / "both", made / "both-rename", rename=[("^model/", "net/")])
    ckptfmt.editing.edit(made / "slots", made / "slots-rename", rename=[("^v/", "w/")])
    assert ask("tf_edit.py", "check", made, question=expected) == []
    print(f"{len(expected)} edited checkpoints restored")


def test_tensorflow_restores_drawn_edits(made: Path, seed: int) -> None:
    """Of objects that look like optimizers; tests/properties/test_edits.py says what they hold."""
    expected: dict[str, dict[str, str]] = {}
    for number in range(200):
        chance = random.Random(seed + number)
        drawn, prefix = Drawn(chance), made / f"drawn-{number}"
        drawn.save(prefix)
        given = drawn_edit(chance, drawn)
        if expected_of(drawn, given).refusals:
            continue
        # TensorFlow sees metadata as a tensor, and cannot restore an object that misses one.
        if drawn.metadata or "metadata" in given:
            continue
        if drawn.missing and not given.get("drop_missing"):
            continue
        done = ckptfmt.editing.edit(prefix, f"{prefix}-edited", **given)
        values = ckptfmt.load(done.path)
        values.pop(OBJECT_GRAPH_KEY, None)
        expected[done.path] = digests(values)
    assert len(expected) > 30
    assert ask("tf_edit.py", "restore", made, question=expected) == []
    print(f"{len(expected)} drawn edits restored")


def test_roles_of_what_tensorflow_writes(made: Path) -> None:
    slots = ("Adam", "Adam_1", "Momentum", "Ftrl", "Ftrl_1", "RMSProp", "RMSProp_1", "Adagrad")
    expected = {
        "both": {"optimizer/_iterations", "optimizer/_learning_rate"}
        | {f"optimizer/_variables/{number}" for number in range(2, 14)},
        "model": {"model/optimizer/_iterations", "model/optimizer/_learning_rate"}
        | {f"model/optimizer/_variables/{number}" for number in range(2, 14)},
        "slots": {"opt/beta1_power", "opt/beta2_power"}
        | {f"v/.OPTIMIZER_SLOT/opt/{name}" for name in "mv"},
        "names": {"beta1_power", "beta2_power"}
        | {
            f"{name}/{slot}"
            for name in ("layer/w", "layer/b", "table")
            for slot in (*slots, "Adadelta", "Adadelta_1")
        },
    }
    for name, state in expected.items():
        with ckptfmt.open(made / name) as reader:
            roles = model_roles(reader)
        found = {
            key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
            for key, role in roles.items()
            if role == "optimizer"
        }
        assert found == state
        assert np.count_nonzero([role == "weight" for role in roles.values()]) >= 1
