# SPDX-License-Identifier: Apache-2.0
"""Random object graphs, with shared objects, cycles and slots, are saved and restored.

tests/interop/test_checkpoint.py does the same with TensorFlow at the other end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from support.graphs import Builder, blank
from support.strategies import count_graph, object_graphs, property_test

import ckptfmt

OPTIONS = ckptfmt.tf.CheckpointOptions(durability="none")


@property_test(50, 20_000, object_graphs())
def test_object_graphs_are_restored(tmp_path: Path, case: dict[str, Any]) -> None:
    count_graph(case)
    first, second = Builder(), Builder()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        one, other = Path(folder) / "one" / "ck", Path(folder) / "other" / "ck"
        first.checkpoint(case).write(one, OPTIONS)
        empty = second.checkpoint(blank(case))
        status = empty.read(one)
        status.assert_consumed().assert_existing_objects_matched()
        assert second.values() == first.values()
        empty.write(other, OPTIONS)
        files = [sorted(prefix.parent.iterdir()) for prefix in (one, other)]
        for saved, again in zip(*files, strict=True):
            assert saved.name == again.name
            assert saved.read_bytes() == again.read_bytes()
