# SPDX-License-Identifier: Apache-2.0
"""`tools/layout.py` prints every region of the files of a checkpoint."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip

import ckptfmt
from cli.commands import MADE, Ran, data_file, index_file, many, plus

TOOL = Path(__file__).parents[2] / "tools" / "layout.py"
Run = Callable[..., Ran]


@pytest.fixture
def layout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the tool in this process."""
    main = runpy.run_path(str(TOOL))["main"]

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", [str(TOOL), *map(str, arguments)])
        status = main()
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return run


def files_in(ran: Ran) -> list[dict[str, Any]]:
    """The files of the document; every byte of each is in exactly one region."""
    files: list[dict[str, Any]] = json.loads(ran.out)
    for file in files:
        end = 0
        for region in file["regions"]:
            assert region["offset"] == end, region
            end += region["size"]
        assert end == file["size"] == Path(file["path"]).stat().st_size
    return files


@pytest.mark.parametrize("made", MADE)
def test_every_byte_is_in_a_region(made: str, layout: Run, tmp_path: Path) -> None:
    prefix = MADE[made](tmp_path)
    files = files_in(layout("--json", prefix))
    with ckptfmt.open(prefix) as reader:
        assert len(files) == 1 + reader.header.num_shards
    listed = layout(prefix)
    assert (listed.status, listed.err) == (0, "")
    rows = re.findall(r"^(0x[0-9a-f]{8,}) +(\d+) +(\d+)  ", listed.out, re.M)
    expected = [region for file in files for region in file["regions"]]
    assert [(int(a, 16), int(b), int(c)) for a, b, c in rows] == [
        (region["offset"], region["offset"], region["size"]) for region in expected
    ]


def test_padding_and_gaps(layout: Run, tmp_path: Path) -> None:
    prefix = tmp_path / "padded"
    ckptfmt.save(prefix, {"a": np.full(48, 1, np.int8), "b": np.full(5, 2, np.int8)})

    def places(kind: str) -> list[tuple[int, int]]:
        (_, data) = files_in(layout("--json", prefix))
        found = [region for region in data["regions"] if region["kind"] == kind]
        return [(region["offset"], region["size"]) for region in found]

    assert (places("padding"), places("gap")) == ([(48, 16), (69, 59)], [])
    flip(data_file(prefix), 60)
    assert (places("padding"), places("gap")) == ([(69, 59)], [(48, 16)])


def test_damage(layout: Run, tmp_path: Path) -> None:
    prefix = many(tmp_path)
    with ckptfmt.open(prefix) as reader:
        second = int(reader.regions()["offset"][1])
    flip(index_file(prefix), second + 100)
    ran = layout(prefix)
    assert ran.status == 1
    assert len(re.findall(r" data block .*good$", ran.out, re.M)) == 1
    assert re.search(rf"^0x{second:08x} +{second} .* data block .*BAD$", ran.out, re.M)
    assert f"problem: CHECKSUM in {prefix}.index at offset {second}" in ran.err
    prefix = plus(tmp_path)
    data_file(prefix, 0, 2).unlink()
    os.truncate(data_file(prefix, 1, 2), 66)
    ran = layout(prefix)
    assert ran.status == 1
    assert f"{data_file(prefix, 0, 2)}: missing\n" in ran.out
    assert "  3 BYTES BEYOND THE END OF THE FILE\n" in ran.out
