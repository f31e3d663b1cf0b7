# SPDX-License-Identifier: Apache-2.0
"""Directories of torch.distributed.checkpoint, read without torch, and what they may not do."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckptfmt

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]

WORKER = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
rank, store, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(35, dtype=torch.float32).reshape(7, 5)
dcp.save({"rows": distribute_tensor(whole, mesh, [Shard(0)]),
          "columns": distribute_tensor(whole, mesh, [Shard(1)]),
          "all": distribute_tensor(whole, mesh, [Replicate()])}, checkpoint_id=path)
dist.barrier()
dist.destroy_process_group()
"""


def save(state: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(state, checkpoint_id=path, no_dist=True)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_dtype(tmp_path: Path) -> None:
    raw = torch.arange(48, dtype=torch.uint8) % 2
    state = {name: raw.clone().view(getattr(torch, name)).reshape(3, -1) for name in DTYPES}
    state |= {
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "part": torch.arange(100.0)[10:20:3],
    }
    save(state, tmp_path / "dcp")
    done = ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    assert (done.tensors, done.dropped) == (len(state), ())
    loaded = ckptfmt.load(tmp_path / "ck")
    for name, tensor in state.items():
        assert loaded[name].shape == tuple(tensor.shape)
        assert loaded[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        assert loaded[name].tobytes() == bytes_of(tensor)


def test_training_state(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": "half way"}
    save(state, tmp_path / "dcp")
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    loaded = ckptfmt.load(tmp_path / "ck")
    assert np.array_equal(loaded["model.weight"], model.weight.detach().numpy())
    assert loaded["optimizer.state.0.exp_avg"].shape == (2, 3)
    assert loaded["note"][()] == b"half way"
    groups = [name for name in loaded if name.startswith("optimizer.param_groups")]
    assert any(b"0.5" in str(loaded[name][()]).encode() for name in groups)


def test_several_processes(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-c", WORKER, str(rank)),
                *(str(tmp_path / "store"), str(tmp_path / "dcp")),
            ]
        )
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "x.safetensors")
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    whole = np.arange(35, dtype=np.float32).reshape(7, 5)
    assert {name: one.tolist() for name, one in ckptfmt.load(tmp_path / "ck").items()} == {
        name: whole.tolist() for name in ("all", "columns", "rows")
    }


def test_without_torch(tmp_path: Path) -> None:
    save({"w": torch.arange(3)}, tmp_path / "dcp")
    code = (
        "import sys; sys.modules['torch'] = None; import ckptfmt; "
        f"ckptfmt.convert({str(tmp_path / 'dcp')!r}, {str(tmp_path / 'ck')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert ckptfmt.load(tmp_path / "ck")["w"].tolist() == [0, 1, 2]


def test_a_value_that_cannot_be_read_can_be_left_out(tmp_path: Path) -> None:
    save({"model": {"w": torch.arange(3)}, "extra": b"abc", "odd": {1, 2}}, tmp_path / "dcp")
    with pytest.raises(ckptfmt.UnsupportedError) as found:
        ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    assert found.value.tensor in ("extra", "odd")
    ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck", rename=[("^extra$|^odd$", None)])
    assert list(ckptfmt.load(tmp_path / "ck")) == ["model.w"]


class Evil:
    """A pickle of this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_code_is_not_run(tmp_path: Path) -> None:
    save({"w": torch.arange(3)}, tmp_path / "dcp")
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(ckptfmt.UnsupportedError, match="mkdir"):
        ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck")
    save({"value": Evil(tmp_path / "made")}, tmp_path / "other")
    with pytest.raises(ckptfmt.UnsupportedError, match="mkdir") as found:
        ckptfmt.convert(tmp_path / "other", tmp_path / "ck")
    assert found.value.tensor == "value"
    assert not (tmp_path / "made").exists()


def test_damage(tmp_path: Path, seed: int) -> None:
    """Changed bytes and cut files: the same values, or a typed error. Never anything else."""
    chance = random.Random(seed)
    state = {"w": torch.arange(40.0).reshape(8, 5), "step": 3}
    save(state, tmp_path / "dcp")
    data = tmp_path / "dcp" / "__0_0.distcp"
    refused = 0
    for path in [data] * 150 + [tmp_path / "dcp" / ".metadata"] * 150:
        before = path.read_bytes()
        after = bytearray(before)
        if chance.random() < 0.2:
            del after[chance.randrange(len(after)) :]
        else:
            after[chance.randrange(len(after))] ^= 1 << chance.randrange(8)
        path.write_bytes(after)
        try:
            quick: dict[str, Any] = {"durability": "none", "check_result": False}
            ckptfmt.convert(tmp_path / "dcp", tmp_path / "ck", **quick)
            loaded = ckptfmt.load(tmp_path / "ck")
            if path == data and "w" in loaded:
                assert np.array_equal(loaded["w"], state["w"].numpy())
        except ckptfmt.CkptfmtError:
            refused += 1
        path.write_bytes(before)
    assert refused > 100
