# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over our storage, in one process."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import ckptfmt
import ckptfmt.torch
from ckptfmt import CorruptError, InvalidError
from ckptfmt.files.places import names_in
from ckptfmt.torch.dcp import StorageReader, StorageWriter

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]


def save(state: dict[str, Any], prefix: Path, **options: Any) -> Any:
    return dcp.save(state, checkpoint_id=prefix, storage_writer=StorageWriter(**options))


def load(state: dict[str, Any], path: Path, **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=StorageReader(path), **options)
    return state


def read_all(path: Path, keys: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = _load_state_dict_from_keys(keys, storage_reader=StorageReader(path))
    return found


class Net(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
        self.register_buffer("count", torch.tensor(3))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


class Odd:
    pass


# ---- one process ---------------------------------------------------------------------------------


def test_five_lines_of_a_newcomer(tmp_path: Path) -> None:
    net = Net()
    dcp.save(net.state_dict(), checkpoint_id=tmp_path / "net", storage_writer=StorageWriter())
    again = Net()
    state = again.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "net", storage_reader=StorageReader())
    again.load_state_dict(state)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    # A flat state dict of tensors: one data file, no metadata, the names of the state dict.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "net.data-00000-of-00001",
        "net.index",
    ]
    with ckptfmt.open(tmp_path / "net") as reader:
        assert set(reader) == set(state)
        assert reader.metadata == {}
        assert ckptfmt.verify(tmp_path / "net").ok


def test_a_training_state(tmp_path: Path) -> None:
    """Nested dicts and lists, an optimizer with integer keys, values: as DCP's own storage does."""
    state = training_state()
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    dcp.save(state, checkpoint_id=theirs)
    save(state, ours)
    wanted = _load_state_dict_from_keys(storage_reader=dcp.FileSystemReader(theirs))
    assert same(read_all(ours), wanted)
    empty = cleared(state)
    assert not same(empty, wanted)
    assert same(load(empty, ours), wanted | {"optim": state["optim"]})


def training_state() -> dict[str, Any]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    net(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    schedule.step()
    return {
        "model": net.state_dict(),
        "optim": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "step": 7,
        "numpy": np.random.RandomState(1).get_state(),
        "mixed": [1, torch.ones(2), {"a": None, "b": [torch.zeros(1), "x"]}],
        "numbers": [np.float32(3), np.arange(2), [np.ones(1)]],
        "pair": (torch.full((2,), 4.0), 5),
        "extra": io.BytesIO(b"opaque"),
        "a.b": {"c": 1},
    }


def cleared(value: Any) -> Any:
    """A copy with zeros and None in the place of everything."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: cleared(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(cleared, value))
    return None


def same(one: Any, other: Any) -> bool:
    if isinstance(other, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and bool((one == other).all())
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, io.BytesIO):
        return bool(one.getvalue() == other.getvalue())
    return type(one) is type(other) and bool(one == other)


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.uint16, torch.uint32),
    *(
        torch.float8_e8m0fnu,
        torch.complex32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    ),
]


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(24).remainder(5).reshape(4, 6).to(torch.float32).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return (
        tensor.clone(memory_format=torch.contiguous_format)
        .reshape(-1)
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )


def test_every_dtype_and_form(tmp_path: Path) -> None:
    state: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        tensor = sample(dtype)
        state |= {
            f"{dtype}": tensor,
            f"{dtype} scalar": tensor[1, 1],
            f"{dtype} empty": tensor[:0],
            f"{dtype} transposed": tensor.t(),
            f"{dtype} strided": tensor[::2, 1::3],
        }
    state["parameter"] = torch.nn.Parameter(torch.ones(3))
    state["conjugate"] = torch.tensor([1 + 2j, 3 - 1j]).conj()
    state["negative"] = torch.tensor([1 + 2j]).conj().imag
    state["expanded"] = torch.ones(1).expand(4)
    save(state, tmp_path / "all")
    found = read_all(tmp_path / "all")
    # In place, and into memory that is not contiguous.
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    targets |= {f"{dtype} strided": torch.zeros(4, 4).to(dtype).t()[::2, ::2] for dtype in DTYPES}
    held = dict(targets)
    load(targets, tmp_path / "all")
    for name, tensor in state.items():
        for mine in (found[name], targets[name]):
            assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape), name
            assert bits(mine) == bits(tensor.detach().resolve_conj().resolve_neg()), name
        assert targets[name] is held[name]


def test_loading_converts_the_dtype(tmp_path: Path) -> None:
    """As DCP does: the state dict decides."""
    save(Net(torch.bfloat16).state_dict(), tmp_path / "net")
    state = Net().state_dict()
    load(state, tmp_path / "net")
    with ckptfmt.open(tmp_path / "net") as reader:
        for name, tensor in state.items():
            assert tensor.dtype == (torch.int64 if name == "count" else torch.float32)
            np.testing.assert_array_equal(tensor.numpy(), reader[name].read().astype(np.float32))
    # Unlike DCP, not where a part of the numbers would be lost.
    save({"x": torch.tensor([1 + 2j])}, tmp_path / "complex")
    real = {"x": torch.zeros(1)}
    with pytest.raises(CheckpointException) as caught:
        load(real, tmp_path / "complex")
    assert any(isinstance(one[0], InvalidError) for one in caught.value.failures.values())
    assert real["x"].tolist() == [0]


def test_names(tmp_path: Path) -> None:
    given = ["a/b", "a b", "\u00fc", "a\nb", "...", "x" * 300, ".index", "%s", "-", "\x00"]
    state = {name: torch.full((2,), float(at)) for at, name in enumerate(given)}
    save({**state, "deep": {name: at for at, name in enumerate(given)}}, tmp_path / "names")
    found = read_all(tmp_path / "names")
    assert found.pop("deep") == {name: at for at, name in enumerate(given)}
    assert same(found, state)


@pytest.mark.parametrize(
    ("state", "tensor", "message"),
    [
        ({"": torch.ones(1)}, "", "name"),
        ({"_CKPTFMT_X": torch.ones(1)}, "_CKPTFMT_X", "reserved"),
        ({"a": {"odd": Odd()}}, "", "a.odd: type "),
        ({"a": [torch.Generator()]}, "", "a.0: DCP cannot load a torch.Generator"),
        ({"m": torch.ones(2, device="meta")}, "m", "the tensor has no data"),
        ({"s": torch.ones(2).to_sparse()}, "s", "tensors cannot be stored"),
    ],
)
def test_refused_by_name(tmp_path: Path, state: Any, tensor: str, message: str) -> None:
    save({"old": torch.ones(1)}, tmp_path / "x")
    with pytest.raises(CheckpointException) as caught:
        save({"fine": torch.ones(3), **state}, tmp_path / "x")
    error = caught.value.failures[0][0]
    assert isinstance(error, InvalidError), error
    assert message in error.message
    assert (error.tensor or "") == tensor
    # Nothing is left of it, and the checkpoint before is as it was.
    assert list(ckptfmt.load(tmp_path / "x")) == ["old"]
    assert len(list(tmp_path.iterdir())) == 2


def test_overwriting_keeps_the_old_until_the_commit(tmp_path: Path) -> None:
    class Watching(StorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            assert ckptfmt.load(tmp_path / "x")["a"].tolist() == [1.0]
            super().finish(metadata, results)

    save({"a": torch.ones(1)}, tmp_path / "x")
    with ckptfmt.open(tmp_path / "x") as reader:
        dcp.save({"a": torch.zeros(2)}, storage_writer=Watching(tmp_path / "x"))
        assert reader["a"].read().tolist() == [1.0]
    assert ckptfmt.load(tmp_path / "x")["a"].tolist() == [0.0, 0.0]
    assert not list(tmp_path.glob("*temp*"))


def test_options_and_metadata(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metadata": {"run": 5}, "compression": "zstd", "alignment": 4096}
    save({"a": {"b": torch.zeros(1 << 16)}}, tmp_path / "x", durability="none", **options)
    with ckptfmt.open(tmp_path / "x") as reader:
        assert reader.level == "ckptfmt"
        assert reader["a.b"].offset == 0
        assert reader.metadata["run"] == 5
    assert same(read_all(tmp_path / "x"), {"a": {"b": torch.zeros(1 << 16)}})
    with pytest.raises(InvalidError, match="level"):
        StorageWriter(level="v3")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="'v2' cannot store metadata"):
        StorageWriter(metadata={"run": 5}, level="v2")


def test_checkpoint_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StorageWriter.validate_checkpoint_id("a/b")
    assert StorageWriter.validate_checkpoint_id(Path("a/b"))
    assert not StorageWriter.validate_checkpoint_id("a/b/")
    assert StorageReader.validate_checkpoint_id("a/b.index")
    assert not StorageReader.validate_checkpoint_id(5)  # type: ignore[arg-type]
    with pytest.raises(CheckpointException, match="give the prefix"):
        dcp.save({}, storage_writer=StorageWriter())
    with pytest.raises(CheckpointException, match="give the checkpoint"):
        dcp.load({}, storage_reader=StorageReader())
    with pytest.raises(InvalidError, match="'a/' ends with '/'"):
        StorageWriter("a/")
    # One writer makes many checkpoints; the id of a save is part of its metadata.
    writer = StorageWriter("first/step-1")
    metadata = [dcp.save({"a": torch.ones(1)}, storage_writer=writer)]
    for step in (2, 3):
        state = {"a": torch.full((1,), float(step))}
        metadata.append(dcp.save(state, checkpoint_id=f"first/step-{step}", storage_writer=writer))
    assert [Path(one.storage_meta.checkpoint_id).name for one in metadata] == [
        *("step-1", "step-2", "step-3")
    ]
    assert len({one.storage_meta.save_id for one in metadata}) >= 2
    assert writer.checkpoint_id == str(tmp_path / "first" / "step-3")
    reader = StorageReader()
    for step in (1, 2, 3, 2):
        state = {"a": torch.zeros(1)}
        dcp.load(state, checkpoint_id=f"first/step-{step}", storage_reader=reader)
        assert state["a"].item() == step
    assert not list((tmp_path / "first").glob("*temp*"))


def test_urls() -> None:
    url = "memory://dcp/run/x"
    for number in range(2):
        state = {"model": {"w": torch.full((3,), float(number))}, "n": number}
        dcp.save(state, checkpoint_id=url, storage_writer=StorageWriter())
        found: dict[str, Any] = {"model": {"w": torch.zeros(3)}, "n": None}
        dcp.load(found, checkpoint_id=url, storage_reader=StorageReader())
        assert same(found, state)
    assert not any("temp" in name for name in names_in("memory://dcp/run"))


def test_empty_state_dict(tmp_path: Path) -> None:
    save({}, tmp_path / "x")
    assert read_all(tmp_path / "x") == {}
    assert ckptfmt.load(tmp_path / "x") == {}
    save({"a": {}, "b": torch.ones(1)}, tmp_path / "x")
    assert same(read_all(tmp_path / "x"), {"b": torch.ones(1)})  # DCP drops empty dicts


# ---- loading -------------------------------------------------------------------------------------


def test_metadata_come_from_the_index(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(3, 2, dtype=torch.bfloat16)}, "step": 1}
    saved = save(state, tmp_path / "x")
    found = StorageReader(tmp_path / "x").read_metadata()
    assert (
        found.planner_data == saved.planner_data == {"model.w": ("model", "w"), "step": ("step",)}
    )
    assert isinstance(found.state_dict_metadata["step"], BytesStorageMetadata)
    tensor = found.state_dict_metadata["model.w"]
    assert isinstance(tensor, TensorStorageMetadata)
    assert (tensor.size, tensor.properties.dtype) == (torch.Size([3, 2]), torch.bfloat16)
    assert tensor.chunks == saved.state_dict_metadata["model.w"].chunks
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert b"torch.distributed" not in data and pickle.PROTO + b"\x04" not in data


def test_partial_loads(tmp_path: Path) -> None:
    save({"model": Net().state_dict(), "step": 3, "best": 0.5}, tmp_path / "x")
    # A part of the keys.
    state: dict[str, Any] = {"step": 0}
    assert load(state, tmp_path / "x") == {"step": 3}
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: new"):
        load({"step": 0, "new": 1}, tmp_path / "x")
    planner = DefaultLoadPlanner(allow_partial_load=True)
    state = {"step": 0, "new": 1, "other": torch.ones(2)}
    load(state, tmp_path / "x", planner=planner)
    assert state["step"] == 3 and state["new"] == 1 and state["other"].tolist() == [1, 1]
    with pytest.raises(CheckpointException, match="Size mismatch between saved"):
        load({"model": {"layers.0.bias": torch.ones(7)}}, tmp_path / "x")
    assert read_all(tmp_path / "x", "best") == {"best": 0.5}
    assert set(read_all(tmp_path / "x", {"model"})["model"]) == set(Net().state_dict())
    assert load({}, tmp_path / "x") == {}


def test_a_missing_or_damaged_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="Failed to find any matching files"):
        load({"a": torch.ones(1)}, tmp_path / "none")
    save({"a": torch.ones(1000)}, tmp_path / "x")
    (data,) = tmp_path.glob("x.data*")
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointException) as caught:
        load({"a": torch.ones(1000)}, tmp_path / "x")
    assert isinstance(caught.value.failures[0][0], CorruptError)
    state = {"a": torch.zeros(1000)}
    dcp.load(state, storage_reader=StorageReader(tmp_path / "x", verify="off"))
    assert not torch.equal(state["a"], torch.ones(1000))


def test_checkpoints_of_others(tmp_path: Path) -> None:
    """Every tensor of any checkpoint can be loaded; strings come as NumPy arrays of bytes."""
    tensors = {"w": np.arange(6.0).reshape(2, 3), "text": b"5", "q": np.ones(2, ml_dtypes.int4)}
    ckptfmt.save(tmp_path / "x", tensors)
    state = {"w": torch.zeros(2, 3, dtype=torch.float64)}
    load(state, tmp_path / "x")
    np.testing.assert_array_equal(state["w"].numpy(), tensors["w"])
    assert load({"text": None}, tmp_path / "x")["text"].item() == b"5"


def test_the_same_checkpoints_as_torch_save(tmp_path: Path) -> None:
    """What DCP saves, `ckptfmt.torch.load` loads, and the reverse."""
    state = training_state()
    save(state, tmp_path / "dcp")
    found = ckptfmt.torch.load(tmp_path / "dcp")
    assert same(found, read_all(tmp_path / "dcp"))
    assert list(found) == list(state)
    ckptfmt.torch.save(state, tmp_path / "torch")
    assert same(load(cleared(state), tmp_path / "torch"), state)
    net = Net()
    ckptfmt.torch.save({"model": net, "n": 5}, tmp_path / "net")
    found = load({"model": Net().state_dict(), "n": 0}, tmp_path / "net")
    assert same(found, {"model": net.state_dict(), "n": 5})
    state = {"$a": 1, "b": [{"$tuple": 2}, torch.ones(1)], "whole": {"c": [1, {"d": (2,)}]}}
    planner = DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "whole"), planner=planner)
    found = load(dict.fromkeys(state), tmp_path / "whole", planner=DefaultLoadPlanner(False, False))
    assert same(found, state)
    save(state, tmp_path / "flat")
    for name in ("flat", "whole"):
        assert same(ckptfmt.torch.load(tmp_path / name), state)


def test_stateful(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count, self.tensor = 0, torch.zeros(2)

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count, "tensor": self.tensor}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count, self.tensor = state["count"], state["tensor"]

    counter, net = Counter(), Net()
    counter.count, counter.tensor = 3, torch.ones(2)
    save({"counter": counter, "net": net, "plain": torch.ones(1)}, tmp_path / "x")
    again, other = Counter(), Net()
    state = {"net": other, "plain": torch.zeros(1), "counter": again}  # another order
    load(state, tmp_path / "x")
    assert again.count == 3 and again.tensor.tolist() == [1, 1] and state["counter"] is again
    assert same(dict(other.state_dict()), dict(net.state_dict()))


# ---- planners ------------------------------------------------------------------------------------


class Halved(DefaultSavePlanner):  # type: ignore[misc]
    """As in torch's documentation: floating tensors are stored in half precision."""

    def resolve_data(self, item: Any) -> Any:
        data = super().resolve_data(item)
        return data.half() if isinstance(data, torch.Tensor) else data


class Renamed(DefaultSavePlanner):  # type: ignore[misc]
    def set_up_planner(self, state_dict: Any, storage_meta: Any, is_coordinator: bool) -> None:
        renamed = {f"old_{k}": v for k, v in state_dict.items()}
        super().set_up_planner(renamed, storage_meta, is_coordinator)


class Added(DefaultLoadPlanner):  # type: ignore[misc]
    """Looks another name up, and works on what was read, in memory of its own."""

    def set_up_planner(self, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        self.given, self.places = state_dict, {}
        super().set_up_planner({f"old_{k}": v for k, v in state_dict.items()}, *args, **kwargs)

    def resolve_tensor(self, read_item: Any) -> Any:
        tensor = super().resolve_tensor(read_item)
        self.places[read_item.dest_index] = tensor
        return torch.empty_like(tensor)

    def commit_tensor(self, read_item: Any, tensor: Any) -> None:
        self.places[read_item.dest_index].copy_(tensor + 1)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        self.given[read_item.dest_index.fqn.removeprefix("old_")] = torch.load(value) + 1


def test_planners(tmp_path: Path) -> None:
    state = {"w": torch.full((3, 2), 1.5), "n": 4}
    planner = Halved(flatten_state_dict=False)
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "half"), planner=planner)
    with ckptfmt.open(tmp_path / "half") as reader:
        assert reader["w"].dtype == np.float16
    found = cleared(state)
    load(found, tmp_path / "half", planner=DefaultLoadPlanner(False, False))
    assert same(found, state)
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "old"), planner=Renamed())
    assert set(ckptfmt.load(tmp_path / "old")) == {"old_w"}
    found = {"w": torch.zeros(3, 2), "n": 0}
    given = found["w"]
    planner = Added()
    load(found, tmp_path / "old", planner=planner)
    assert given.tolist() == [[2.5, 2.5]] * 3 and planner.given["n"] == 5


def test_a_planner_that_only_pickles(tmp_path: Path) -> None:
    class Hiding(DefaultSavePlanner):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name == "lookup_object":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(CheckpointException, match="Hiding gives this value only pickled"):
        dcp.save({"n": 4}, storage_writer=StorageWriter(tmp_path / "x"), planner=Hiding())

    class Noted(DefaultSavePlanner):  # type: ignore[misc]
        def create_global_plan(self, plans: Any) -> Any:
            plans, metadata = super().create_global_plan(plans)
            metadata.planner_data = {"n": Odd()}
            return plans, metadata

    with pytest.raises(CheckpointException, match="planner_data other than the paths"):
        dcp.save({"n": 4}, storage_writer=StorageWriter(tmp_path / "x"), planner=Noted())
    assert not list(tmp_path.iterdir())


def test_cached_plans(tmp_path: Path) -> None:
    """DCP does not send plans that stay the same; the files are new all the same."""
    for step in range(3):
        state = {"a": torch.full((2,), float(step)), "n": {"step": step}}
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = StorageWriter(tmp_path / f"step-{step}")
        dcp.save(state, storage_writer=writer, planner=planner)
    for step in range(3):
        found = read_all(tmp_path / f"step-{step}")
        assert same(found, {"a": torch.full((2,), float(step)), "n": {"step": step}})
    assert len(list(tmp_path.iterdir())) == 9
