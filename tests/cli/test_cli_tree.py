# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt inspect --tree` of models: folded layers, levels, dots; tables cut to a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import property_test

import ckptfmt
from ckptfmt.cli import inspect_tree, text
from ckptfmt.cli.inspect_tree import Line, lines
from cli.commands import Command, Ran, on_terminal


def saved(prefix: Path, names: Iterable[str], shape: tuple[int, ...] = (4, 2)) -> Path:
    ckptfmt.save(prefix, {name: np.zeros(shape, np.float32) for name in names})
    return prefix


def tree(ran: Ran) -> list[str]:
    assert ran.status == 0, ran.err
    printed = ran.out.split("\n\n")[1].splitlines()[1:]
    return [re.sub(r"(?<=[^ │]) {2,}", "  ", line) for line in printed]


def layers(numbers: Iterable[int], separator: str = "/") -> list[str]:
    parts = ("attention/kernel", "attention/bias", "mlp/wi_0")
    return [
        f"encoder/layer_{number}/{part}".replace("/", separator)
        for number in numbers
        for part in parts
    ]


def test_layers_that_are_alike_are_one(command: Command, tmp_path: Path) -> None:
    prefix = saved(tmp_path / "m", [*layers(range(12)), "step"])
    assert tree(command("inspect", "--tree", prefix)) == [
        "├─ encoder/  36  288  1.1 KiB",
        "│  └─ layer_{0..11}/  36  288  1.1 KiB",
        "│     ├─ attention/  2  16  64 B",
        "│     │  ├─ bias  8  32 B  float32  [4, 2]",
        "│     │  └─ kernel  8  32 B  float32  [4, 2]",
        "│     └─ mlp/wi_0  8  32 B  float32  [4, 2]",
        "└─ step  8  32 B  float32  [4, 2]",
    ]
    assert "more" not in command("inspect", "--tree", prefix).out
    assert len(tree(command("inspect", "--tree", "--full", prefix))) == 1 + 12 * 5 + 1


def test_only_what_is_alike_is_folded(command: Command, tmp_path: Path) -> None:
    names = [*layers([0, 1, 2, 3, 5, 9]), *(f"d{n}" for n in range(2))]
    prefix = saved(tmp_path / "m", names)
    found = tree(command("inspect", "--tree", "--depth", 2, prefix))
    assert found == [
        "├─ d0  8  32 B  float32  [4, 2]",
        "├─ d1  8  32 B  float32  [4, 2]",
        "└─ encoder/  18  144  576 B",
        "   └─ layer_{0..3,5,9}/ ...  18  144  576 B",
    ]
    ckptfmt.save(tmp_path / "n", {f"layer_{n}/w": np.zeros(9 if n == 3 else 4) for n in range(5)})
    found = tree(command("inspect", "--tree", tmp_path / "n"))
    assert [line.split("  ")[0] for line in found] == ["├─ layer_{0..2,4}/w", "└─ layer_3/w"]


def test_names_with_dots(command: Command, tmp_path: Path) -> None:
    prefix = saved(tmp_path / "m", layers(range(4), "."))
    found = tree(command("inspect", "--tree", prefix))
    assert found[0].startswith("└─ encoder.  ") and found[1].startswith("   └─ layer_{0..3}.  ")


def test_a_million_tensors_of_one_kind_are_one_line(command: Command, tmp_path: Path) -> None:
    prefix = saved(tmp_path / "m", [f"table/{n:04}" for n in range(3000)], ())
    assert tree(command("inspect", "--tree", prefix)) == [
        "└─ table/  3,000  3,000  11.7 KiB",
        "   └─ {0000..2999}  3,000  3,000  11.7 KiB  float32  []",
    ]


def test_a_tree_in_parts(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts differ from the whole in the widths of columns only, which do not shrink."""
    prefix = saved(tmp_path / "m", [*layers(range(9)), "step", "a" * 30, "x\ny\\"])
    arguments = ["inspect", "--tree", "--full", prefix]
    whole = command(*arguments)
    for count in (1, 4, len(whole.out.splitlines())):
        monkeypatch.setattr(inspect_tree, "LINES_AT_ONCE", count)
        ran = command(*arguments)
        assert tree(ran) == tree(whole)
        places = [line.find("[4, 2]") for line in ran.out.splitlines() if "[4, 2]" in line]
        assert places == sorted(places)
        limited = command(*arguments, "--limit", 5).out
        assert limited.count("[4, 2]") == 5 and "\n... and 25 tensors more\n" in limited


@pytest.mark.parametrize("options", [[], ["--tree", "--full"]])
@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit_a_terminal(
    options: list[str], columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "model/" + "/".join(f"a_rather_long_scope_{n}" for n in range(5)) + "/kernel"
    prefix = saved(tmp_path / "m", [long, f"{long}/検査点/Adam", "step"])
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    status, printed = on_terminal("stdout", "inspect", *options, "--", prefix)
    assert status == 0
    table = printed.decode().replace("\r\n", "\n").split("\n\n")[1].splitlines()
    assert len(table) >= 4
    # A name for which there is no room is whole, on a line of its own.
    values = [line for line in table[1:] if "[4, 2]" in line]
    assert len(values) == 3 and max(map(text.cells_of, values)) <= columns
    assert (len(table) > 4) == (columns == 80)
    assert all(line in values or "/" in line for line in table[1:])
    if not options:
        for name in (long, f"{long}/検査点/Adam", "step"):
            assert any(line.startswith(name) for line in table)
    assert table[-1].rstrip().endswith("[4, 2]" if options else "0"), "columns are whole"


@given(
    st.lists(st.text(st.sampled_from("ab/検é"), min_size=1, max_size=60), max_size=9),
    st.none() | st.integers(1, 120),
)
def test_a_table_holds_every_name(names: list[str], width: int | None) -> None:
    sizes = [str(number * 7) for number in range(len(names))]
    columns = [text.Column("name", names), text.Column("bytes", sizes, right=True)]
    title, *lines = "".join(text.table(columns, width)).splitlines()
    end = text.cells_of(title)
    rest = iter(lines)
    for name, size in zip(names, sizes, strict=True):
        line = next(rest)
        assert line.startswith(name)
        if line == name:
            line = next(rest)
            assert line.strip() == size
        assert line.endswith(size) and text.cells_of(line) == end, "aligned"
    assert not list(rest) and end <= max(width or end, text.NAME_MIN + 7)


class Listed:
    """What the tree asks of the tensors of a checkpoint."""

    def __init__(self, names: set[str]) -> None:
        self.names = sorted(names, key=str.encode)
        self.elements = list(range(len(names)))
        self.nbytes = [4 * count for count in self.elements]
        self.dtypes, self.shapes = ["float32"] * len(names), [(count,) for count in self.elements]

    def __len__(self) -> int:
        return len(self.names)


NAMES = st.text("ab/-.", max_size=50) | st.from_regex("[ab](/[ab-])*/{0,60}x?", fullmatch=True)


@property_test(60, 2000, st.sets(NAMES))
def test_every_name_is_in_the_tree(names: set[str]) -> None:
    tensors = Listed(names)
    mark = "/" if any("/" in name for name in names) else "."
    found: dict[str, int] = {}

    def follow(line: Line, before: str) -> tuple[int, int]:
        """Returns how many tensors there are, and their elements."""
        text = before + line.label
        own = (0, 0)
        if line.row is not None:
            found[text[: -len(mark)] if line.inside else text] = line.row
            own = (1, tensors.elements[line.row])
        sums = [follow(one, text) for one in line.inside()] if line.inside else []
        count, elements = (sum(column) for column in zip(own, *sums, strict=True))
        assert line.elements == elements and line.nbytes == 4 * elements
        assert line.count == (count if line.inside else None)
        return count, elements

    for line in lines(tensors):  # type: ignore[arg-type]
        follow(line, "")
    assert found == {name: row for row, name in enumerate(tensors.names)}
