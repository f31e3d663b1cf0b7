# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of readers and handles."""

from __future__ import annotations

from pathlib import Path
from xml.dom import minidom

import numpy as np

import ckptfmt


def cells(html: str) -> list[str]:
    """The text of the cells; the whole must be well-formed."""
    found = minidom.parseString(html).getElementsByTagName("td")
    return ["".join(node.data for node in cell.childNodes) for cell in found]


def test_a_reader(tmp_path: Path) -> None:
    names = {"<b>&": np.ones((2, 3)), b"\xff": np.ones(1)}
    ckptfmt.save(tmp_path / "m", names)
    with ckptfmt.open(tmp_path / "m") as reader:
        html = reader._repr_html_()
    assert cells(html) == ["<b>&", "float64", "[2, 3]", "48", "\\udcff", "float64", "[1]", "8"]
    assert "2 tensors<" in html
    assert cells(reader._repr_html_()) == [] and "closed" in reader._repr_html_()


def test_a_large_reader(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "m", {f"{n:03}": np.ones(1) for n in range(200)})
    with ckptfmt.open(tmp_path / "m") as reader:
        html = reader._repr_html_()
    assert "200 tensors (the first 50)" in html and len(cells(html)) == 4 * 50


def test_a_handle(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "m") as writer:
        writer.add("<i>", np.ones((2, 3)))
        for part in range(2):
            writer.add_slice("t", np.ones(1), shape=(2,), offset=(part,))
    with ckptfmt.open(tmp_path / "m") as reader:
        html = reader["<i>"]._repr_html_()
        assert cells(html) == ["float64", "[2, 3]", "48", "data file 0"]
        assert "<caption>&lt;i&gt;</caption>" in html
        assert cells(reader["t"]._repr_html_())[-1] == "several data files"
