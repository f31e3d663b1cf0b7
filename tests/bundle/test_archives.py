# SPDX-License-Identifier: Apache-2.0
"""Archives of checkpoints are refused, with the command that unpacks them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import mount

import ckptfmt
from ckptfmt.cli import main

KINDS = {"tar": "tar", "tar.gz": "gztar", "tgz": "gztar", "tar.xz": "xztar", "zip": "zip"}
DOORS: dict[str, Callable[[str, str], object]] = {
    "open": lambda path, _: ckptfmt.open(path),
    "load": lambda path, _: ckptfmt.load(path),
    "load_into": lambda path, _: ckptfmt.load_into(path, {"w": np.ones(2)}),
    "verify": lambda path, _: ckptfmt.verify(path),
    "merge": lambda path, out: ckptfmt.merge([path], out),
    "convert": ckptfmt.convert,
    "edit": lambda path, out: ckptfmt.editing.edit(path, out, rename={"w": "v"}),
    "base": lambda path, out: ckptfmt.save(out, {"w": np.ones(2)}, base=path),
}


@pytest.mark.parametrize("inside", ["", "!/model", "!/model.index", "!"])
@pytest.mark.parametrize("extension", KINDS)
@pytest.mark.parametrize("where", ["path", "url"])
def test_archives_are_refused(
    where: str,
    extension: str,
    inside: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ckptfmt.save(tmp_path / "saved" / "model", {"w": np.ones(2)})
    made = shutil.make_archive(str(tmp_path / "a"), KINDS[extension], tmp_path / "saved")
    archive = str(shutil.move(made, tmp_path / f"models.{extension}"))
    if where == "url":
        mount(monkeypatch).set(f"models.{extension}", Path(archive).read_bytes())
        archive = f"dict://bucket/models.{extension}"
    unpack = "unzip" if extension == "zip" else "tar -xf"
    for door, use in DOORS.items():
        with pytest.raises(ckptfmt.UnsupportedError) as caught:
            use(archive + inside, str(tmp_path / "out"))
        assert unpack in str(caught.value), door
    for words in (["inspect"], ["verify"], ["show", "w"], ["cp", str(tmp_path / "out")]):
        assert main([words[0], archive + inside, *words[1:]]) == 2
        assert unpack in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))
