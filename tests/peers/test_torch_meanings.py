# SPDX-License-Identifier: Apache-2.0
"""Dtypes of torch that the format lacks. What takes values out of a checkpoint gives the numbers
that torch has, or refuses: the bits are never numbers."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckptfmt
import ckptfmt.jax
import ckptfmt.sharded
import ckptfmt.torch as ct
from ckptfmt.bundle.comparing import compare
from ckptfmt.cli import main
from ckptfmt.editing import average, edit
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report.collect import checkpoint_data
from ckptfmt.report.comparison import comparison_data
from ckptfmt.report.layers import Layers
from ckptfmt.report.measuring import Budget
from ckptfmt.safetensors import load_file

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")

BYTES = torch.arange(48, dtype=torch.uint8).reshape(2, 3, 8)
WEIGHTS = torch.linspace(-9, 9, 48).reshape(2, 3, 8)
# By the four bits.
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def _channels(axis: int, dtype: torch.dtype, kind: torch.dtype = torch.float64) -> torch.Tensor:
    count = WEIGHTS.shape[axis]
    scales = torch.linspace(0.1, 0.37, count, dtype=kind)
    zeros = torch.arange(count) if kind is torch.float64 else torch.linspace(0.3, 2.6, count)
    return torch.quantize_per_channel(WEIGHTS, scales, zeros, axis, dtype)


def _unfit() -> dict[str, torch.Tensor]:
    """A tensor of each dtype of torch without numbers in NumPy."""
    found = {"quint4x2": _channels(0, torch.quint4x2, torch.float32)}
    kinds = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    for kind in sorted(kinds, key=str):
        name = str(kind).removeprefix("torch.")
        if name.startswith(("bits", "int", "uint")) and kind not in ct.tensors.PLAIN:
            found[name] = BYTES.view(kind)
    return found


warnings.simplefilter("ignore")  # of quantized and complex32 tensors, which torch is to drop
E8M0 = (BYTES + 110).view(torch.float8_e8m0fnu)
COMPLEX = torch.complex(WEIGHTS, WEIGHTS * 3).to(torch.complex32)
# With the numbers, of the dtype without a cast.
VALUES: dict[str, tuple[torch.Tensor, np.ndarray[Any, Any]]] = {
    "e8m0": (E8M0, E8M0.float().numpy().astype(ml_dtypes.float8_e8m0fnu)),
    "fp4": (
        BYTES.view(torch.float4_e2m1fn_x2),
        np.array([[FP4[b & 15], FP4[b >> 4]] for b in BYTES.flatten().tolist()])
        .reshape(2, 3, 16)
        .astype(ml_dtypes.float4_e2m1fn),
    ),
    "complex32": (COMPLEX, COMPLEX.to(torch.complex64).numpy()),
}
QUANTIZED: dict[str, torch.Tensor] = {}
for _dtype in (torch.qint8, torch.quint8, torch.qint32):
    _name = str(_dtype).removeprefix("torch.")
    QUANTIZED[_name] = torch.quantize_per_tensor(WEIGHTS, 0.1, 3, _dtype)
    QUANTIZED[f"{_name} rows"] = _channels(0, _dtype)
    QUANTIZED[f"{_name} columns"] = _channels(2, _dtype)
    if _dtype is not torch.qint32:  # which torch dies of
        QUANTIZED[f"{_name} float zeros"] = _channels(1, _dtype, torch.float32)
UNFIT = _unfit()
ALL = {name: one for name, (one, _) in VALUES.items()} | QUANTIZED | UNFIT


def numbers_of(kind: str) -> np.ndarray[Any, Any]:
    """The numbers of torch, as float32 or complex64."""
    if kind in QUANTIZED:
        return QUANTIZED[kind].dequantize().numpy()
    if kind in UNFIT:
        return np.zeros(UNFIT[kind].shape, np.float32)
    values = VALUES[kind][1]
    return values if values.dtype == np.complex64 else values.astype(np.float32)


def equal(found: Any, wanted: np.ndarray[Any, Any]) -> bool:
    array = np.asarray(found)
    is_alike = array.dtype == wanted.dtype and array.shape == wanted.shape
    return is_alike and array.tobytes() == wanted.tobytes()


# The first dimension backwards.
REVERSED = [("^s$", "s", lambda array: array[::-1])]


# ---- doors: each returns what it gives of the tensor "s" of a checkpoint, without a cast or with
# one to the dtype of `numbers_of`


def into(make: Callable[[np.ndarray[Any, Any]], Any], **options: Any) -> Callable[..., Any]:
    def door(path: Path, like: np.ndarray[Any, Any]) -> Any:
        target = {"s": make(like)}
        ckptfmt.load_into(path, target, names=["s"], **options)
        return target["s"]

    return door


def zeros(like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.zeros(like.shape, like.dtype)


def torch_zeros(like: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=getattr(torch, like.dtype.name))


def shown(index: Any) -> Callable[..., Any]:
    """`show` of a part, and the rest of the numbers as they should be."""

    def door(path: Path, like: np.ndarray[Any, Any]) -> Any:
        out = io.StringIO()
        text = "" if index is ... else "[1, ..., -2:3:-1]"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            if main(["show", "--json", str(path), f"s{text}"]):
                raise ckptfmt.UnsupportedError(out.getvalue())
        found = np.array(json.loads(out.getvalue())["values"], np.float64)
        found = found[..., 0] + 1j * found[..., 1] if like.dtype.kind == "c" else found
        whole = like.copy()
        whole[index] = found.astype(like.dtype)
        return whole

    return door


def reported(path: Path, like: np.ndarray[Any, Any]) -> Any:
    """The numbers if the statistics of `report` are theirs."""
    with ckptfmt.open(path) as reader:
        layers, meaning = Layers(TensorNames(reader)), reader["s"].meaning
        data = checkpoint_data(layers, Budget(None))
    [row] = [one for one in data["tensors"] if one["name"] == "s"]
    assert row["dtype"] == meaning and not data["health"]["findings"]
    if "stats" not in row:
        raise ckptfmt.UnsupportedError("no statistics")
    flat = like.astype(np.complex128 if like.dtype.kind == "c" else np.float64)
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat
    stats, known = row["stats"], flat[np.isfinite(flat)]
    assert row["shape"] == list(like.shape)
    wanted = [known.min(), known.max()]
    return like if np.allclose([float(stats["low"]), float(stats["high"])], wanted, 1e-6) else None


def converted(to: str, read: Callable[[Path], Any], *, casts: bool = False) -> Callable[..., Any]:
    def door(path: Path, like: np.ndarray[Any, Any]) -> Any:
        cast = {"cast": {"s": like.dtype}} if casts else {}
        result = path.with_name(f"result{to}")
        ckptfmt.convert(path, result, **cast)
        return read(result)

    return door


def read_npz(path: Path) -> Any:
    return np.load(path)["s"]


def read_h5(path: Path) -> Any:
    with h5py.File(path) as file:
        found = file["s"][...]
    return found.view(ml_dtypes.float4_e2m1fn) if found.dtype == "V1" else found


def read_back(path: Path) -> Any:
    ckptfmt.convert(path, path.with_name("back"))
    return ckptfmt.load(path.with_name("back"), ["s"])["s"]


CONVERTED = {
    "npz": (".npz", read_npz),
    "npz and back": (".npz", read_back),
    "hdf5": (".h5", read_h5),
    "hdf5 and back": (".h5", read_back),
    "safetensors": (".safetensors", lambda path: load_file(path)["s"]),
    "safetensors and back": (".safetensors", read_back),
}

PLAIN: dict[str, Callable[..., Any]] = {
    "load": lambda path, _: ckptfmt.load(path, ["s"])["s"],
    "load all": lambda path, _: ckptfmt.load(path)["s"],
    "load with a transform": lambda path, _: ckptfmt.load(path, ["s"], rename=REVERSED)["s"][::-1],
    "load_tree": lambda path, _: ckptfmt.load_tree(path)["s"],
    "load_into": into(zeros),
    "show": shown(...),
    "show a part": shown((1, ..., slice(-2, 3, -1))),
    "report": reported,
    **{f"convert to {name}": converted(*how) for name, how in CONVERTED.items()},
}
CAST: dict[str, Callable[..., Any]] = {
    "load": lambda path, like: ckptfmt.load(path, ["s"], cast={"s": like.dtype})["s"],
    "load_tree": lambda path, like: ckptfmt.load_tree(path, cast={"s": like.dtype})["s"],
    "load_into": into(zeros, cast=True),
    "load_into a view": into(lambda like: np.zeros(like.T.shape, like.dtype).T, cast=True),
    "load_into torch": into(torch_zeros, cast=True),
    "load_into by name": lambda path, like: into(zeros, cast={"s": like.dtype})(path, like),
    "load_into with a transform": lambda path, like: into(zeros, cast=True, rename=REVERSED)(
        path, like
    )[::-1],
    **{f"convert to {name}": converted(*how, casts=True) for name, how in CONVERTED.items()},
}
# Formats that lack a dtype; without a cast it is refused.
LACK = {"e8m0": ("npz", "hdf5"), "fp4": ("npz",)}


def cell(door: Callable[..., Any], path: Path, wanted: np.ndarray[Any, Any]) -> str:
    """What a door does: "right", "wrong", or the class of the refusal."""
    try:
        found = door(path, wanted)
    except ckptfmt.CkptfmtError as error:
        offers = any(word in str(error) for word in ("drop_metadata", "drop-metadata"))
        return type(error).__name__ + " that offers other values" * offers
    return "right" if equal(found, wanted) else "wrong"


def table(path: Path, kind: str) -> dict[str, str]:
    ct.save({"s": ALL[kind]}, path)
    numbers = numbers_of(kind)
    values = VALUES[kind][1] if kind in VALUES else numbers
    found = {name: cell(door, path, values) for name, door in PLAIN.items()}
    return found | {f"{name}, cast": cell(door, path, numbers) for name, door in CAST.items()}


@pytest.mark.parametrize("kind", ALL)
def test_doors(tmp_path: Path, kind: str) -> None:
    found = table(tmp_path / "ck", kind)
    refused = {
        name
        for name in found
        if kind in UNFIT
        or (kind in QUANTIZED and not name.endswith(", cast"))
        or (
            any(name.startswith(f"convert to {one}") for one in LACK.get(kind, ()))
            and not name.endswith(", cast")
        )
    }
    classes = {"UnsupportedError", "InvalidError"}
    assert {name for name, one in found.items() if one in classes} == refused
    assert {name for name, one in found.items() if one == "right"} == found.keys() - refused, found


@pytest.mark.parametrize("kind", ALL)
def test_doors_to_stored_elements(tmp_path: Path, kind: str) -> None:
    """They refuse bits, which would be numbers in variables of the stored dtype."""
    path = tmp_path / "ck"
    ct.save({"s": ALL[kind], "w": torch.ones(2)}, path)
    with ckptfmt.open(path) as reader:
        stored = reader["s"].read()
    like = {"s": np.zeros_like(stored), "w": np.zeros(2, "f4")}
    shapes = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in like.items()}
    for door in (
        lambda: ckptfmt.load_tree_into(path, like),
        lambda: ckptfmt.Checkpoint(**like).read(path),
        lambda: ckptfmt.jax.load(path, shapes),
        lambda: ckptfmt.sharded.restore(path, {"s": None}, ckptfmt.sharded.SingleProcess()),
    ):
        with pytest.raises(ckptfmt.UnsupportedError) as caught:
            door()
        assert caught.value.tensor == "s"
    assert not like["s"].any() and not like["w"].any()
    ckptfmt.load_tree_into(path, like, names=["w"])
    assert like["w"].all()
    if kind in QUANTIZED:  # a single dtype does not cast it
        with pytest.raises(ckptfmt.UnsupportedError, match=r"cast=\{'s': 'float32'\} reads"):
            ckptfmt.load(path, cast="float32")


@pytest.mark.parametrize("kind", ALL)
def test_edits_of_the_metadata_keep_the_notes(tmp_path: Path, kind: str) -> None:
    """Without them the bits would be numbers."""
    path, result = tmp_path / "ck", tmp_path / "to"
    ct.save({"s": ALL[kind], "w": torch.ones(2)}, path)
    with ckptfmt.open(path) as reader:
        metadata = dict(reader.metadata)
    for given in ({}, {"step": 1}, {"ckptfmt.torch": "{}"}):
        with pytest.raises(ckptfmt.InvalidError) as caught:
            edit(path, result, metadata=given)
        assert caught.value.argument == "metadata"
        assert "step" in given or caught.value.tensor == "s"
    assert main(["edit", "--set-metadata", "ckptfmt.torch=", str(path), str(result)]) == 2
    assert not list(tmp_path.glob("to*"))
    edit(path, result, metadata={}, keep=["w"], drop_weights=True)
    edit(path, result, metadata=metadata | {"step": 1})
    assert ct.load(result)["s"].dtype is ALL[kind].dtype
    with pytest.raises(ckptfmt.InvalidError) as refused:
        ct.save({"s": ALL[kind]}, path)
        ct.load(path, cast=torch.float32)
    assert "mapping" not in str(refused.value)


def flipped(one: torch.Tensor) -> torch.Tensor:
    """Other values with the same quantizer."""
    if not one.is_quantized or one.qscheme() is torch.per_tensor_affine:
        return one.flip(0)
    scales, zeros = one.q_per_channel_scales(), one.q_per_channel_zero_points()
    axis = one.q_per_channel_axis()
    return torch.quantize_per_channel(WEIGHTS.flip(0), scales, zeros, axis, one.dtype)


def differences(one: Path, other: Path, *options: str) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(["diff", "--json", *options, str(one), str(other)])
    found = json.loads(out.getvalue())
    assert status == (not found["equal"])
    return [(one["name"], one["kind"], one["max_abs_difference"]) for one in found["differences"]]


@pytest.mark.parametrize("kind", ALL)
def test_differences(tmp_path: Path, kind: str) -> None:
    """Values are compared where NumPy has them, bits where they mean the same."""
    one, other = tmp_path / "a", tmp_path / "b"
    ct.save({"s": ALL[kind]}, one)
    ct.save({"s": flipped(ALL[kind])}, other)
    assert differences(one, one) == differences(one, one, "--checksums") == []
    numbers = numbers_of(kind).astype(np.complex128)
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(numbers - numbers[::-1])))
    found = differences(one, other)
    assert [("s", "values", largest if kind in VALUES else None)] == found[:1], found
    ct.save({"s": torch.as_tensor(numbers_of(kind))}, other)
    found = differences(one, other, "--rtol=1e-6", "--filter=s")
    what = "shape" if kind == "quint4x2" else "dtype"
    assert found == [("s", what, 0.0 if kind in VALUES else None)], found


def test_equal_bits_that_mean_others(tmp_path: Path) -> None:
    ct.save({"s": E8M0}, tmp_path / "a")
    states = [E8M0.view(torch.uint8), BYTES.view(torch.bits8)]
    bits = torch.ones(3, dtype=torch.int8)
    make: Any = torch._make_per_tensor_quantized_tensor
    scaled = [make(bits, scale, 0) for scale in (0.5, 0.25)]
    for first, *others in ([E8M0, *states], scaled):
        ct.save({"s": first}, tmp_path / "a")
        for other in others:
            ct.save({"s": other}, tmp_path / "b")
            for options in ((), ("--checksums",)):
                [(name, found, _)] = differences(tmp_path / "a", tmp_path / "b", *options)
                assert (name, found) == ("s", "dtype")
            with ckptfmt.open(tmp_path / "a") as a, ckptfmt.open(tmp_path / "b") as b:
                layers = Layers(TensorNames(b))
                counts = comparison_data(a, layers, Budget(None))["counts"]
            assert counts == {"retyped": 1}


@pytest.mark.parametrize("cast", [None, {"s": "float32"}])
def test_a_state_through_safetensors(tmp_path: Path, cast: Any) -> None:
    """It says what the file has: the bits of a dtype that is in the header, else the values."""
    ct.save({"s": E8M0, "c": COMPLEX, "x": [torch.ones(1), 3]}, tmp_path / "ck")
    done = ckptfmt.convert(tmp_path / "ck", tmp_path / "x.safetensors", cast=cast)
    casts = {"c": ("complex32", "complex64")}
    assert done.casts == casts | ({"s": ("float8_e8m0fnu", "float32")} if cast else {})
    ckptfmt.convert(tmp_path / "x.safetensors", tmp_path / "back")
    found = ct.load(tmp_path / "back")
    assert found["x"] == [torch.ones(1), 3]
    assert torch.equal(found["c"], COMPLEX.to(torch.complex64))
    expected = E8M0.float() if cast else E8M0
    assert (found["s"].dtype, bytes_of(found["s"])) == (expected.dtype, bytes_of(expected))


def bytes_of(one: torch.Tensor) -> bytes:
    return one.contiguous().view(torch.uint8).numpy().tobytes()


def test_dropping_the_metadata_changes_no_values(tmp_path: Path) -> None:
    for tensor in ALL.values():
        ct.save({"s": tensor}, tmp_path / "ck")
        options: dict[str, Any]
        for options in ({"level": "v2"}, {"rename": {"s": "t"}}):
            with pytest.raises(ckptfmt.InvalidError):
                ckptfmt.convert(tmp_path / "ck", tmp_path / "to", drop_metadata=True, **options)


@pytest.mark.parametrize("kind", ALL)
def test_averages(tmp_path: Path, kind: str) -> None:
    """Of equal bits as they are, with their quantizer; other bits only where a mean has them."""
    one, other, mean = (tmp_path / name for name in ("a", "b", "mean"))
    ct.save({"s": ALL[kind], "x": torch.ones(1)}, one)
    average([one, one, one], mean)
    with ckptfmt.open(one) as before, ckptfmt.open(mean) as after:
        assert [*compare(before, after)] == [None] * len(before)
        assert before.metadata == after.metadata
    second = flipped(ALL[kind])
    ct.save({"s": second, "x": torch.zeros(1)}, other)
    if kind != "complex32":
        for dry_run in (True, False):
            with pytest.raises(ckptfmt.UnsupportedError):
                average([one, other], mean, dry_run=dry_run)
        return
    average([one, other], mean)
    wide = ALL[kind].to(torch.complex128) + second.to(torch.complex128)
    assert bytes_of(ct.load(mean)["s"]) == bytes_of((wide / 2).to(torch.complex32))
    ckptfmt.convert(other, tmp_path / "b.safetensors")
    average([one, tmp_path / "b.safetensors"], mean)
    assert bytes_of(ct.load(mean)["s"]) == bytes_of((wide / 2).to(torch.complex64))


def test_quantizers_are_not_averaged(tmp_path: Path) -> None:
    bits = torch.ones(2, 3, dtype=torch.int8)
    make: Any = torch._make_per_channel_quantized_tensor
    zeros, scales = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)
    each: Any = torch._make_per_tensor_quantized_tensor
    states = {
        "a": make(bits, scales, zeros, 0),
        "scales": make(bits, 2 * scales, zeros, 0),
        "zeros": make(bits, scales, zeros + 1, 0),
        "b": each(bits, 0.5, 0),
        "scale": each(bits, 0.25, 0),
        "zero": each(bits, 0.5, 1),
    }
    for name, state in states.items():
        ct.save({"q": state}, tmp_path / name)
    for one, others in (("a", ("scales", "zeros")), ("b", ("scale", "zero"))):
        for other in others:
            with pytest.raises((ckptfmt.UnsupportedError, ckptfmt.InvalidError)):
                average([tmp_path / one, tmp_path / other], tmp_path / "mean")


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_directory_of_dcp(tmp_path: Path) -> None:
    dcp.save({"s": E8M0, "x": torch.ones(2)}, checkpoint_id=tmp_path / "dcp")
    values = VALUES["e8m0"][1]
    assert equal(shown(...)(tmp_path / "dcp", values), values)
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    assert equal(ckptfmt.load(tmp_path / "ck")["s"], values)
    assert bytes_of(ct.load(tmp_path / "ck")["s"]) == bytes_of(E8M0)
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "x.npz", cast={"s": "float32"})
    assert equal(np.load(tmp_path / "x.npz")["s"], numbers_of("e8m0"))
