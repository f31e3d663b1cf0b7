# SPDX-License-Identifier: Apache-2.0
"""What the `ckptfmt` command shows and finds, and its exit status; test_cli_streams.py has pipes
and terminals.

Golden outputs stand in tests/cli/. A wanted change of them is written there with

    CKPTFMT_REFRESH=1 python -m pytest tests/cli/test_cli.py -k golden
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip

import ckptfmt
import ckptfmt.cli
from ckptfmt.cli import text
from ckptfmt.cli.parser import COMMANDS, command_parser
from cli.commands import (
    MADE,
    ODD_NAMES,
    Command,
    Ran,
    data_file,
    index_file,
    many,
    odd,
    plus,
    script,
    small,
)

GOLDEN_TEXTS = Path(__file__).parent
TF_WRITTEN = sorted(
    path.parent / "ckpt" for path in Path(__file__).parents[1].glob("golden/*/*.index")
)
REFRESH = os.environ.get("CKPTFMT_REFRESH")


def stable(printed: str, directory: Path) -> str:
    """Without what differs from run to run."""
    printed = printed.replace(str(directory), "DIR")
    printed = re.sub(r'"seconds": [0-9.e-]+', '"seconds": SECONDS', printed)
    return re.sub(r"in \d+\.\d\d s \([^)]*\)", "in SECONDS (RATE)", printed)


# ---- golden outputs

CASES = {
    "inspect-small": ("small", ["inspect"]),
    "inspect-small-slices": ("small", ["inspect", "--slices"]),
    "inspect-small-tree": ("small", ["inspect", "--tree"]),
    "inspect-small-json": ("small", ["inspect", "--json"]),
    "inspect-small-filter": ("small", ["inspect", "--filter", "model/*", "--sort", "size"]),
    "inspect-small-color": ("small", ["inspect", "--color", "always"]),
    "inspect-plus": ("plus", ["inspect"]),
    "inspect-plus-all-slices": ("plus", ["inspect", "--all", "--slices"]),
    "inspect-plus-tree": ("plus", ["inspect", "--tree", "--sort", "size"]),
    "inspect-odd": ("odd", ["inspect"]),
    "inspect-odd-tree": ("odd", ["inspect", "--tree"]),
    "inspect-odd-json": ("odd", ["inspect", "--json"]),
    "verify-small": ("small", ["verify", "--strict"]),
    "verify-plus": ("plus", ["verify"]),
    "verify-small-json": ("small", ["verify", "--json"]),
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, command: Command, tmp_path: Path) -> None:
    made, arguments = CASES[case]
    ran = command(*arguments, MADE[made](tmp_path))
    assert (ran.status, ran.err) == (0, "")
    printed = stable(ran.out, tmp_path)
    path = GOLDEN_TEXTS / f"{case}.txt"
    if REFRESH:
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")


def test_no_golden_output_is_left_over() -> None:
    assert {path.stem for path in GOLDEN_TEXTS.glob("*.txt")} == set(CASES)


# ---- choosing and ordering


def names_in(ran: Ran) -> list[str]:
    assert ran.status == 0
    return [tensor["name"] for tensor in json.loads(ran.out)["tensors"]]


KERNEL, NONE, WORDS = "model/dense/kernel", "model/none", "model/words"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [KERNEL, NONE, WORDS, "scale", "step"]),
        (["--filter", "model/*"], [KERNEL, NONE, WORDS]),
        (["--filter", "s*"], ["scale", "step"]),
        (["--filter", "/e(p|l)$/"], [KERNEL, "step"]),
        (["--filter", "step", "--filter", "/WORDS|none/"], [NONE, "step"]),
        (["--filter", "[sS]tep"], ["step"]),
        (["--sort", "size"], [KERNEL, WORDS, "step", "scale", NONE]),
        (["--sort", "dtype"], ["scale", NONE, KERNEL, "step", WORDS]),
        (["--sort", "shard"], [KERNEL, "scale", WORDS, NONE, "step"]),
        (["--limit", "2"], [KERNEL, NONE]),
        (["--limit", "0"], []),
        (["--sort", "size", "--limit", "1", "--filter", "s*"], ["step"]),
    ],
)
def test_choice(options: list[str], expected: list[str], command: Command, tmp_path: Path) -> None:
    assert names_in(command("inspect", "--json", *options, small(tmp_path))) == expected


def test_limit_says_what_is_left_out(command: Command, tmp_path: Path) -> None:
    prefix = small(tmp_path)
    for form in ([], ["--tree"], ["--slices"]):
        ran = command("inspect", "--limit", "2", *form, prefix)
        assert "... and 3 tensors more\n" in ran.out
        assert "5 tensors, 28 elements" in ran.out, "totals are of all"


def test_a_filter_says_of_how_many(command: Command, tmp_path: Path) -> None:
    """Of those that could have been chosen."""
    prefix = plus(tmp_path)
    ran = command("inspect", "--filter", "layer*", prefix)
    assert "\n2 tensors (of 3 tensors), 10 elements, 10 B\n" in ran.out
    ran = command("inspect", "--filter", "layer*", "--all", prefix)
    assert "\n2 tensors (of 4 tensors), 10 elements, 10 B\n" in ran.out


# ---- JSON


def check_types(value: dict[str, Any], **names: str) -> None:
    """The keys are these, by the name of the type of their values."""
    wanted = {name: kind for kind, some in names.items() for name in some.split()}
    assert {key: type(one).__name__ for key, one in value.items()} == wanted


@pytest.mark.parametrize("made", MADE)
def test_json_document(made: str, command: Command, tmp_path: Path) -> None:
    prefix = MADE[made](tmp_path)
    ran = command("inspect", "--json", "--all", prefix)
    assert ran.out.isascii()
    document = json.loads(ran.out)
    strings, dicts = "path prefix format level", "header metadata totals"
    check_types(document, int="schema", str=strings, dict=dicts, list="tensors problems")
    assert document["schema"] == 2
    assert document["problems"] == []
    with ckptfmt.open(prefix) as reader:
        table = reader.table(reserved=True)
        assert document["level"] == reader.level
        assert document["metadata"] == reader.metadata
        for field in fields(reader.header):
            assert document["header"][field.name] == getattr(reader.header, field.name)
        assert len(document["tensors"]) == len(table)
        for tensor, row in zip(document["tensors"], table, strict=True):
            handle = reader[row["name"]]
            sizes, place = "nbytes stored_nbytes", "shard offset crc32c"
            ints = (
                {"int": sizes, "NoneType": place} if handle.slices else {"int": f"{sizes} {place}"}
            )
            check_types(tensor, str="name display dtype", list="shape slices", **ints)
            for key in ("name", "nbytes", "stored_nbytes", "shard", "offset", "crc32c"):
                assert tensor[key] == getattr(handle, key)
            assert tuple(tensor["shape"]) == handle.shape
            for given, part in zip(tensor["slices"], handle.slices, strict=True):
                for key in ("nbytes", "raw_nbytes", "shard", "offset", "crc32c", "missing"):
                    assert given[key] == getattr(part, key)
                assert (given["start"], given["shape"]) == ([*part.start], [*part.shape])
    totals = document["totals"]
    assert totals["nbytes"] == sum(tensor["nbytes"] for tensor in document["tensors"])
    assert totals["tensors"] == sum(one["tensors"] for one in totals["by_dtype"].values())
    assert totals["index_bytes"] == index_file(prefix).stat().st_size
    assert [file["size"] for file in totals["files"]] == [
        Path(file["path"]).stat().st_size for file in totals["files"]
    ]


def test_verify_json(command: Command, tmp_path: Path) -> None:
    prefix = small(tmp_path)
    with ckptfmt.open(prefix) as reader:
        place = reader["step"].offset
    flip(data_file(prefix), place)
    ran = command("verify", "--json", prefix)
    assert ran.status == 1
    document = json.loads(ran.out)
    flags = "ok verified strict"
    strings = "path prefix format"
    check_types(document, int="schema", str=strings, bool=flags, list="findings", dict="checked")
    check_types(document["checked"], int="blocks tensors bytes", float="seconds")
    (finding,) = document["findings"]
    assert finding["message"].startswith("DAT-6: ")
    assert {**finding, "message": ""} == {
        "severity": "problem",
        "status": "CORRUPT",
        "failure": "CHECKSUM",
        "message": "",
        "path": str(data_file(prefix)),
        "offset": place,
        "tensor": "step",
        "rule": "DAT-6",
        "count": 1,
    }


def test_many_partitioned_tensors(command: Command, tmp_path: Path) -> None:
    """More than are looked up one by one."""
    prefix = tmp_path / "parts"
    count = 70
    names = [f"tensor_{number // 2}" for number in range(2 * count)]
    specs = [f"2 3 {number % 2},1:-" for number in range(2 * count)]
    ckptfmt.save_v2(prefix, names, specs, [np.zeros((1, 3), np.int8)] * len(names))
    tensors = json.loads(command("inspect", "--json", prefix).out)["tensors"]
    assert len(tensors) == count
    for tensor in tensors:
        number = int(tensor["name"].removeprefix("tensor_"))
        places = [(part["start"], part["shape"], part["offset"]) for part in tensor["slices"]]
        assert places == [([0, 0], [1, 3], 6 * number), ([1, 0], [1, 3], 6 * number + 3)]


def test_names_of_slashes_only(command: Command, tmp_path: Path) -> None:
    prefix = tmp_path / "deep"
    names = ["/" * 5000, "/" * 4999 + "x", "/", "a/b", "a", "a//b"]
    ckptfmt.save_v2(prefix, names, [""] * len(names), [np.int8(1)] * len(names))
    ran = command("inspect", "--tree", prefix)
    assert ran.status == 0
    assert re.search(r"^6 tensors, 6 elements, 6 B$", ran.out, re.M)
    assert len(re.findall(r"─ \S+ +1 +1 B  int8   \[\]$", ran.out, re.M)) == 4
    both = re.findall(r"─ (\S+) +3 +3 +3 B  int8   \[\]$", ran.out, re.M)
    assert both == ["//", "a/"], "a tensor and a branch"


# ---- names that could drive a terminal


@pytest.mark.parametrize("options", [[], ["--slices"], ["--tree"], ["--json"]])
def test_no_raw_control_characters(options: list[str], command: Command, tmp_path: Path) -> None:
    directory = tmp_path / "dir\x1b[2J\u202e"
    directory.mkdir()
    ran = command("inspect", *options, odd(directory))
    assert ran.status == 0
    assert all(line.isprintable() for line in ran.out.split("\n"))
    if "--json" not in options:
        assert r"\x1b[31mred" in ran.out
        assert r"not utf-8 \xff\xc3" in ran.out
        assert r"back\\slash\\x1b" in ran.out
        assert r"\u202ereversed\u0085" in ran.out


def test_findings_and_errors_are_escaped(command: Command, tmp_path: Path) -> None:
    directory = tmp_path / "dir\x1b[2J"
    directory.mkdir()
    prefix = odd(directory)
    path = data_file(prefix)
    path.write_bytes(bytes(path.stat().st_size))  # all values wrong
    ran = command("verify", "--max-findings", "0", prefix)
    assert ran.status == 1
    assert len(ran.out.splitlines()) == len(ODD_NAMES) + 1
    assert all(line.isprintable() for line in ran.out.split("\n"))
    path.unlink()
    for arguments in (["inspect", prefix], ["inspect", f"{prefix}\x1b"], ["inspect", "--\x1b"]):
        ran = command(*arguments)
        assert ran.status != 0
        assert ran.err
        assert all(line.isprintable() for line in ran.err.split("\n"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("é検", "é検"),
        ("a\\b", r"a\\b"),
        ("\n\r\t\0\x1b\x7f", r"\n\r\t\x00\x1b\x7f"),
        ("\udc80\udcff", r"\x80\xff"),
        ("\x80\x9b\u2028\ud800", r"\u0080\u009b\u2028\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_escape(given: str, expected: str) -> None:
    assert text.printable(given) == expected
    assert text.printable_all([given, "x"]) == [expected, "x"]


# ---- exit status and damage


@pytest.mark.parametrize("columns", [75, 80])
def test_help(columns: int, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a man page, which has margins. Examples stay on their lines."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("parser", *COMMANDS):
        ran = command("help", *([] if name == "parser" else [name]))
        assert (ran.status, ran.err) == (0, "")
        assert "\nexamples:\n" in ran.out and "\nexit status:\n" in ran.out
        lines = ran.out.splitlines()
        assert [line for line in lines if len(line) > columns - 2] == []
        written = import_module(f"ckptfmt.cli.{name}").EPILOG.splitlines()
        assert {line for line in written if line.startswith("  ckptfmt")} <= {*lines}


def test_commands_are_the_modules_with_a_run_function() -> None:
    modules = [module.name for module in pkgutil.iter_modules(ckptfmt.cli.__path__)]
    found = [name for name in modules if hasattr(import_module(f"ckptfmt.cli.{name}"), "run")]
    assert sorted(COMMANDS) == found


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("latest nowhere", {"latest"}),
        ("help latest", {"help", "latest"}),
        *((words, set()) for words in ("--version", "--help", "", "lates nowhere")),
    ],
)
def test_only_what_is_needed_is_imported(words: str, chosen: set[str]) -> None:
    code = "import atexit; atexit.register(lambda: print(*sys.modules))"
    imported = script(code, *words.split()).stdout.decode().split()
    assert {name for name in COMMANDS if f"ckptfmt.cli.{name}" in imported} == chosen
    assert "argparse" in imported and ("numpy" in imported) == ("latest" in chosen)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_argument_is_empty(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of a shell that is not set does not stand for the current directory."""
    monkeypatch.chdir(tmp_path)
    small(tmp_path / "model")
    before = sorted(tmp_path.iterdir())
    positional = [a for a in command_parser()[1][name]._actions if not a.option_strings]
    needed = {"prune": ["--keep", 1], "report": ["-o", "page.html"]}.get(name, [])
    for empty in positional:
        given = ["" if one is empty else "model" for one in positional]
        ran = command(name, *needed, *given)
        assert ran.status == 2 and ran.err.startswith("usage: ckptfmt"), given
    assert positional and sorted(tmp_path.iterdir()) == before


def test_no_checkpoint(command: Command, tmp_path: Path) -> None:
    there = small(tmp_path / "there")
    (tmp_path / "page").write_text("<!DOCTYPE html><html>")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "page", "nul\0byte"):
        for arguments in (
            *(["inspect", path], ["verify", path], ["show", path, "step"]),
            *(["diff", path, there], ["diff", there, path]),
            ["merge", there, path, tmp_path / "new"],
        ):
            ran = command(*arguments)
            assert (ran.status, ran.out) == (2, "")
            assert re.fullmatch(r"ckptfmt: [^\n]+\n", ran.err)
    assert command("merge", there, "nul\0byte").status == 2


def test_index_that_cannot_be_opened(command: Command, tmp_path: Path) -> None:
    prefix = small(tmp_path)
    size = index_file(prefix).stat().st_size
    with ckptfmt.open(prefix) as reader:
        regions = {int(r["kind"]): int(r["offset"]) for r in reader.regions()[::-1]}
    content = index_file(prefix).read_bytes()
    for offset, failure, rule in (
        (size - 1, "BAD_MAGIC", "FTR-"),
        (regions[3], "CHECKSUM", "BLK-2: "),  # the index block
        (regions[1], "CHECKSUM", "BLK-2: "),  # the first block
    ):
        flip(index_file(prefix), offset)
        ran = command("inspect", prefix)
        assert ran.status == 1
        assert ran.out.startswith(
            f"{prefix}\n  format    unknown, the index cannot be opened\n"
            f"  index     {size} B\n  data      {data_file(prefix).stat().st_size} B in 1 file\n\n"
        )
        assert re.search(rf"^{re.escape(str(data_file(prefix)))} +\d+ B$", ran.out, re.M)
        assert ran.out.endswith("\n`ckptfmt verify` lists all problems.\n")
        problem = rf"problem: {failure} in [^\n]+ at offset \d+: {rule}[^\n]+\n"
        assert re.fullmatch(problem, ran.err)
        ran = command("inspect", "--json", f"{prefix}.index")
        assert (ran.status, bool(re.fullmatch(problem, ran.err))) == (1, True)
        document = json.loads(ran.out)
        assert (document["schema"], document["path"]) == (2, f"{prefix}.index")
        assert document["prefix"] == str(prefix)
        assert [document[key] for key in ("level", "header", "metadata", "tensors")] == [
            None,
            None,
            {},
            None,
        ]
        assert document["totals"]["index_bytes"] == size
        assert [file["size"] for file in document["totals"]["files"]] == [
            data_file(prefix).stat().st_size
        ]
        (found,) = document["problems"]
        assert (found["failure"], found["path"]) == (failure, f"{prefix}.index")
        index_file(prefix).write_bytes(content)
    assert command("inspect", prefix).status == 0
    index_file(prefix).write_bytes(content[:-9])
    ran = command("verify", prefix)
    assert ran.status == 1
    assert ran.out.startswith("problem: BAD_MAGIC in ")


def test_data_files_of_an_index_that_cannot_be_opened(command: Command, tmp_path: Path) -> None:
    """Those of its own prefix, in order, and names escaped."""
    prefix = tmp_path / "a\x1b"
    index_file(prefix).write_bytes(b"nothing of the kind" * 9)
    for name, size in (("b", 1), ("a\x1b.x", 2)):
        data_file(tmp_path / name).write_bytes(bytes(size))
    for shard, count in ((1, 2), (0, 2), (0, 1)):
        data_file(prefix, shard, count).write_bytes(bytes(10 * count + shard))
    ran = command("inspect", prefix)
    assert ran.status == 1
    assert "\x1b" not in ran.out + ran.err
    assert "  data      51 B in 3 files\n" in ran.out
    assert [line.split()[-2] for line in ran.out.splitlines() if ".data-" in line] == [
        "10",
        "20",
        "21",
    ]
    files = json.loads(command("inspect", "--json", prefix).out)["totals"]["files"]
    assert [(file["shard"], file["size"]) for file in files] == [(0, 10), (0, 20), (1, 21)]


def test_damaged_block(command: Command, tmp_path: Path) -> None:
    prefix = many(tmp_path)
    with ckptfmt.open(prefix) as reader:
        second = int(reader.regions()["offset"][1])
    flip(index_file(prefix), second + 100)
    for options in ([], ["--tree"]):
        ran = command("inspect", *options, prefix)
        assert ran.status == 1
        assert "level unknown" in ran.out
        assert "\nthe tensors cannot be listed: the index is damaged\n" in ran.out
        assert str(data_file(prefix)) in ran.out
        assert ran.err.splitlines() == sorted(set(ran.err.splitlines()), key=ran.err.index)
        assert ran.err.startswith(f"problem: CHECKSUM in {prefix}.index at offset {second}")
    document = json.loads(command("inspect", "--json", prefix).out)
    assert (document["tensors"], document["level"], document["totals"]["nbytes"]) == (None,) * 3
    assert {problem["offset"] for problem in document["problems"]} == {second}


def test_missing_and_short_data_files(command: Command, tmp_path: Path) -> None:
    prefix = plus(tmp_path)
    missing, short = data_file(prefix, 0, 2), data_file(prefix, 1, 2)
    missing.unlink()
    os.truncate(short, 66)
    ran = command("inspect", prefix)
    assert ran.status == 1
    assert "1 missing" in ran.out
    lines = ran.err.splitlines()
    assert lines[0].startswith(f"problem: SHARD_MISSING in {missing}: ")
    assert lines[1].startswith(f"problem: TRUNCATED in {short} at offset 64, tensor 'layer_1/bias'")
    assert len(lines) == 2


def test_damaged_data(command: Command, tmp_path: Path) -> None:
    prefix = small(tmp_path)
    with ckptfmt.open(prefix) as reader:
        part = reader["model/dense/kernel"].slices[1]
    flip(data_file(prefix), part.offset + 3)
    assert command("inspect", prefix).status == 0, "which reads no tensor"
    for options in ([], ["--quiet"], ["--strict"]):
        ran = command("verify", *options, prefix)
        assert (ran.status, ran.err) == (1, "")
        first, *rest = ran.out.splitlines()
        assert first.startswith(
            f"problem: CHECKSUM in {data_file(prefix)} at offset {part.offset}, "
            "tensor 'model/dense/kernel': DAT-6: "
        )
        assert len(rest) == (0 if options == ["--quiet"] else 1)
        assert all(line.startswith("not sound: 1 problem; checked ") for line in rest)


def test_strict_counts_notes(command: Command) -> None:
    (prefix,) = [prefix for prefix in TF_WRITTEN if prefix.parent.name == "snappy_literals"]
    ran = command("verify", prefix)
    assert ran.status == 0
    assert re.search(r"^sound: \d+ notes?; checked ", ran.out, re.M)
    assert ran.out.startswith("sound: "), "notes are counted, and printed with --strict"
    assert command("verify", "--quiet", prefix).out == ""
    ran = command("verify", "--strict", "--quiet", prefix)
    assert ran.status == 1
    assert ran.out.startswith("note: ")


def test_help_has_the_schema_of_json() -> None:
    _, commands = command_parser()
    with_json = {name: one.format_help() for name, one in commands.items()}
    with_json = {name: told for name, told in with_json.items() if "--json " in told}
    assert {"inspect", "show", "verify", "diff", "edit"} <= with_json.keys()
    for name, told in with_json.items():
        assert '--json prints {"schema": 2, ' in told, name
