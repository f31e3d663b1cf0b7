# SPDX-License-Identifier: Apache-2.0
"""Compressed checkpoints and TensorFlow: it refuses them, naming the version, and reads what they
are converted to, byte for byte what it would have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt

from .oracle import Oracle, OracleError
from .test_ours_in_tf import arrays, assert_tensorflow_reads, some_tensors
from .values import Value
from .workers import ask

FLOAT = 1
REFUSAL = "Checkpoint min consumer version 2 above current version 1 for TensorFlow "


def tensors(seed: int) -> dict[bytes, Value]:
    """Tensors of all kinds, and one that gets smaller."""
    found = some_tensors(seed)
    weights = np.random.default_rng(seed).normal(0, 0.02, (600, 500)).astype("<f4")
    found[b"weights"] = Value(FLOAT, (600, 500), weights.tobytes())
    return found


def files(prefix: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(prefix.parent.glob(f"{prefix.name}.*"))]


def test_tensorflow_refuses(oracle: Oracle, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", arrays(tensors(1)), compression="zstd")
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader["weights"].compressed
    for call in (
        lambda: oracle.restore_v2(tmp_path / "a", [b"small"], [b""], [FLOAT]),
        lambda: oracle.list_variables(tmp_path / "a"),
        lambda: oracle.get_tensor(tmp_path / "a", b"small"),
    ):
        with pytest.raises(OracleError, match=REFUSAL):
            call()


def test_every_way_into_tensorflow_refuses(tmp_path: Path) -> None:
    weights = np.random.default_rng(5).normal(0, 0.02, (600, 500)).astype("f4")
    # All of them can read the same where it is not compressed.
    ckptfmt.save(tmp_path / "plain", {"weights": weights})
    ckptfmt.save(tmp_path / "a", {"weights": weights}, compression="zstd")
    assert set(ask("tf_refusals.py", str(tmp_path / "plain")).values()) == {None}
    outcomes = ask("tf_refusals.py", str(tmp_path / "a"))
    kinds = {way: outcome[0] for way, outcome in outcomes.items()}
    assert kinds == {
        "Checkpoint.restore": "ValueError",
        "Checkpoint.read": "ValueError",
        "load_checkpoint": "ValueError",
        "list_variables": "ValueError",
        "load_variable": "ValueError",
        "NewCheckpointReader": "ValueError",
        "Saver.restore": "InvalidArgumentError",
        "init_from_checkpoint": "ValueError",
        "RestoreV2": "InvalidArgumentError",
    }
    assert all(REFUSAL in message for _, message in outcomes.values())


def test_tensorflow_merges_them_unseen_and_refuses_the_result(
    oracle: Oracle, tmp_path: Path
) -> None:
    weights = np.random.default_rng(6).normal(0, 0.02, (600, 500)).astype("f4")
    for name in ("a", "b"):
        ckptfmt.save(tmp_path / name, {name: weights}, compression="zstd")
    ckptfmt.save(tmp_path / "plain", {"c": weights}, level="v2")
    with pytest.raises(OracleError, match="different format versions"):
        oracle.merge_v2_checkpoints([tmp_path / "a", tmp_path / "plain"], tmp_path / "both")
    oracle.merge_v2_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    with pytest.raises(OracleError, match=REFUSAL):
        oracle.list_variables(tmp_path / "c")
    with ckptfmt.open(tmp_path / "c") as reader:
        assert reader.header.min_consumer == 2
        for name in ("a", "b"):
            assert reader[name].compressed
            assert reader[name].read().tobytes() == weights.tobytes()
    assert ckptfmt.verify(tmp_path / "c").ok


def test_tensorflow_reads_what_gained_nothing(oracle: Oracle, tmp_path: Path) -> None:
    plain = some_tensors(2)
    ckptfmt.save(tmp_path / "a", arrays(plain), level="ckptfmt")
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader.header.min_consumer == 0
    assert_tensorflow_reads(oracle, tmp_path / "a", plain)


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_tensorflow_reads_what_was_converted(oracle: Oracle, tmp_path: Path, level: str) -> None:
    found = tensors(3)
    ckptfmt.save(tmp_path / "a", arrays(found), compression="zstd")
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", level=level)
    assert_tensorflow_reads(oracle, tmp_path / "b", found)
    if level == "v2":
        names = sorted(found)
        values = [found[name] for name in names]
        oracle.save_v2(tmp_path / "c", names, [b""] * len(names), values)
        ours = [arrays(found)[name] for name in names]
        ckptfmt.save_v2(tmp_path / "d", names, [""] * len(names), ours)
        assert files(tmp_path / "b") == files(tmp_path / "c") == files(tmp_path / "d")


def test_what_tensorflow_wrote_is_compressed_and_comes_back(oracle: Oracle, tmp_path: Path) -> None:
    found = tensors(4)
    names = sorted(found)
    oracle.save_v2(tmp_path / "a", names, [b""] * len(names), [found[name] for name in names])
    ckptfmt.convert(tmp_path / "a", tmp_path / "b", compression="zstd")
    ckptfmt.convert(tmp_path / "b", tmp_path / "c", level="v2")
    assert files(tmp_path / "c") == files(tmp_path / "a")
