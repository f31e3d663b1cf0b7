# SPDX-License-Identifier: Apache-2.0
"""The package where there is no /proc, and no function of os that is Linux's alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfmt.files import temporary

PROGRAM = """
import sys
from support import plain_posix
from pathlib import Path
import numpy as np
import ckptfmt
from ckptfmt import cli
from ckptfmt._base.threads import thread_count
from ckptfmt.recipe import values

to = Path(sys.argv[1])
tensors = {"w": np.arange(9.0), "b": np.ones(3, "f4")}


def check(prefix):
    assert ckptfmt.verify(prefix).ok
    assert all((ckptfmt.load(prefix)[name] == value).all() for name, value in tensors.items())


assert 1 <= thread_count(4) <= 4
assert not values.mapped_array("x", (3 << 17,), np.dtype("f8"), None).any()
ckptfmt.save_async(to / "a", tensors).result()
check(to / "a")
ckptfmt.convert(to / "a", to / "b", compression="zstd")
check(to / "b")
ckptfmt.convert(to / "a", to / "c.h5")
ckptfmt.convert(to / "c.h5", to / "c")
check(to / "c")
ckptfmt.convert(to / "a", to / "d.safetensors")
(to / f"a_temp_{'a' * 16}").mkdir()
(to / f"a_temp_{'a' * 16}" / "writer.lock").touch()
assert cli.main(["clean", str(to)]) == 0 and not list(to.glob("*_temp_*"))
manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=tensors["b"]), to / "m", 1)
manager.save()
path = manager.save()
assert ckptfmt.latest_checkpoint(to / "m") == path
assert {name.split("/")[2] for name in plain_posix.refused} == {"meminfo", "self"}
"""


def test_without_proc(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )


def test_darwin_writes_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(temporary.sys, "platform", "darwin")
    monkeypatch.setattr(temporary.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(temporary.fcntl, "fcntl", lambda fd, what: calls.append((fd, what)))
    with temporary.open_directory(str(tmp_path)) as fd:
        temporary.sync_descriptor(fd)
    assert calls == [(fd, 51)]
