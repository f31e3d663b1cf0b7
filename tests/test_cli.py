# SPDX-License-Identifier: Apache-2.0
"""The `ckptfmt` command as people use it: in pipes, on terminals, on damaged files.

Golden outputs stand in tests/cli/. A wanted change of them is written there with

    CKPTFMT_REFRESH=1 python -m pytest tests/test_cli.py -k golden
"""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli import main, text

GOLDEN_TEXTS = Path(__file__).parent / "cli"
TF_WRITTEN = sorted(path.parent / "ckpt" for path in Path(__file__).parent.glob("golden/*/*.index"))
REFRESH = os.environ.get("CKPTFMT_REFRESH")
ODD_NAMES = [
    b"\x1b[31mred\x1b[0m",
    b"line\nbreak\r",
    b"not utf-8 \xff\xc3",
    "\N{RIGHT-TO-LEFT OVERRIDE}reversed\N{NEXT LINE}".encode(),
    "検査点/é".encode(),
    rb"back\slash\x1b",
    b"nul\0nul",
    bytes(range(1, 256)),
]


# ---- checkpoints


def small(directory: Path) -> Path:
    """One data file: whole, partitioned, string, empty and scalar tensors."""
    prefix = directory / "small"
    rows = np.arange(24, dtype=np.int32).reshape(6, 4)
    ckptfmt.save_v2(
        prefix,
        ["scale", "model/dense/kernel", "model/dense/kernel", "model/words", "model/none", "step"],
        ["", "6 4 0,4:-", "6 4 4,2:-", "", "", ""],
        [
            np.float32(0.5),
            rows[:4],
            rows[4:],
            np.array(["one", "three"]),
            np.empty((3, 0)),
            np.int64(7),
        ],
    )
    return prefix


def plus(directory: Path) -> Path:
    """Two data files, with padding and metadata; one tensor lies in both."""
    parts = [directory / "parts" / str(number) for number in range(2)]
    for number, part in enumerate(parts):
        with ckptfmt.Writer(part, metadata={"step": 12, "by": "\x1bé"}) as writer:
            writer.add_slice(
                "table", np.full((2, 3), number, np.float64), shape=(4, 3), offset=(2 * number, 0)
            )
            writer.add(f"layer_{number}/bias", np.full(5, number, np.int8))
    ckptfmt.merge(parts, directory / "plus")
    return directory / "plus"


def odd(directory: Path) -> Path:
    prefix = directory / "odd"
    ckptfmt.save_v2(prefix, ODD_NAMES, [""] * len(ODD_NAMES), [np.int8(1) for _ in ODD_NAMES])
    return prefix


def many(directory: Path) -> Path:
    """An index of several blocks, whose listing fills more than a pipe."""
    prefix = directory / "many"
    names = [f"{number:05d}/{'x' * 150}" for number in range(3000)]
    ckptfmt.save_v2(prefix, names, [""] * len(names), [np.int8(1)] * len(names))
    with ckptfmt.open(prefix) as reader:
        assert reader.header.block_count > 1
    return prefix


MADE: dict[str, Callable[[Path], Path]] = {"small": small, "plus": plus, "odd": odd}


def data_file(prefix: Path, shard: int = 0, count: int = 1) -> Path:
    return Path(ckptfmt.sharded_filename(f"{prefix}.data", shard, count))


def index_file(prefix: Path) -> Path:
    return Path(f"{prefix}.index")


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


# ---- running it


class Ran:
    """What a run printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs the command in this process."""

    def run(*arguments: object) -> Ran:
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return run


def environment(**more: str) -> dict[str, str]:
    """For a child that imports the package that is tested here."""
    root = Path(ckptfmt.__file__).parent.parent
    inherited = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{inherited}" if inherited else str(root)
    dropped = ("NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": path, "PYTHONUTF8": "1", "TERM": "xterm", **more}


def child(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": environment(),
        **options,
    }
    words = [sys.executable, "-m", "ckptfmt", *map(str, arguments)]
    return subprocess.Popen(words, **options)


def script(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a few lines and then the command, in a process of its own."""
    code = f"import sys\n{code}\nfrom ckptfmt.cli import main\nsys.exit(main())"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    options = {"capture_output": True, "env": environment(), **options}
    return subprocess.run(words, check=False, **options)


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
    "inspect-small-layout": ("small", ["inspect", "--layout"]),
    "inspect-small-json": ("small", ["inspect", "--json"]),
    "inspect-small-filter": ("small", ["inspect", "--filter", "model/*", "--sort", "size"]),
    "inspect-small-color": ("small", ["inspect", "--color", "always"]),
    "inspect-plus": ("plus", ["inspect"]),
    "inspect-plus-all-slices": ("plus", ["inspect", "--all", "--slices"]),
    "inspect-plus-tree": ("plus", ["inspect", "--tree", "--sort", "size"]),
    "inspect-plus-layout": ("plus", ["inspect", "--layout"]),
    "inspect-plus-layout-json": ("plus", ["inspect", "--layout", "--json"]),
    "inspect-odd": ("odd", ["inspect"]),
    "inspect-odd-tree": ("odd", ["inspect", "--tree"]),
    "inspect-odd-layout": ("odd", ["inspect", "--layout"]),
    "inspect-odd-json": ("odd", ["inspect", "--json"]),
    "verify-small": ("small", ["verify", "--strict"]),
    "verify-plus": ("plus", ["verify"]),
    "verify-small-json": ("small", ["verify", "--json"]),
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, command: Callable[..., Ran], tmp_path: Path) -> None:
    made, arguments = CASES[case]
    ran = command(*arguments, MADE[made](tmp_path))
    assert (ran.status, ran.err) == (0, "")
    printed = stable(ran.out, tmp_path)
    path = GOLDEN_TEXTS / f"{case}.txt"
    if REFRESH:
        path.parent.mkdir(exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")


def test_no_golden_output_is_left_over() -> None:
    assert {path.stem for path in GOLDEN_TEXTS.iterdir()} == set(CASES)


# ---- choosing and ordering


def names_in(ran: Ran) -> list[str]:
    assert ran.status == 0
    return [tensor["name"] for tensor in json.loads(ran.out)["tensors"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["model/dense/kernel", "model/none", "model/words", "scale", "step"]),
        (["--filter", "model/*"], ["model/dense/kernel", "model/none", "model/words"]),
        (["--filter", "s*"], ["scale", "step"]),
        (["--filter", "/e(p|l)$/"], ["model/dense/kernel", "step"]),
        (["--filter", "step", "--filter", "/WORDS|none/"], ["model/none", "step"]),
        (["--filter", "/"], []),
        (["--filter", "[sS]tep"], ["step"]),
        (
            ["--sort", "size"],
            ["model/dense/kernel", "model/words", "step", "scale", "model/none"],
        ),
        (
            ["--sort", "dtype"],
            ["model/none", "scale", "model/dense/kernel", "step", "model/words"],
        ),
        (
            ["--sort", "shard"],
            ["model/dense/kernel", "scale", "model/words", "model/none", "step"],
        ),
        (["--limit", "2"], ["model/dense/kernel", "model/none"]),
        (["--limit", "0"], []),
        (["--sort", "size", "--limit", "1", "--filter", "s*"], ["step"]),
    ],
)
def test_choice(
    options: list[str], expected: list[str], command: Callable[..., Ran], tmp_path: Path
) -> None:
    assert names_in(command("inspect", "--json", *options, small(tmp_path))) == expected


def test_limit_says_what_is_left_out(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = small(tmp_path)
    for form in ([], ["--tree"], ["--slices"]):
        ran = command("inspect", "--limit", "2", *form, prefix)
        assert "... and 3 tensors more\n" in ran.out
        assert "5 tensors, 28 elements" in ran.out, "totals are of all"


def test_reserved_names_are_left_out(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = plus(tmp_path)
    assert "_CKPTFMT_METADATA" not in names_in(command("inspect", "--json", prefix))
    assert "_CKPTFMT_METADATA" in names_in(command("inspect", "--json", "--all", prefix))


# ---- JSON


def check_types(value: dict[str, Any], **types: Any) -> None:
    assert {key: type(value[key]) for key in value} == types


WHOLE_TENSOR = {"shard": int, "offset": int, "crc32c": int}
NONE = type(None)


@pytest.mark.parametrize("made", MADE)
def test_json_document(made: str, command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = MADE[made](tmp_path)
    ran = command("inspect", "--json", "--all", prefix)
    assert ran.out.isascii()
    document = json.loads(ran.out)
    check_types(
        document,
        schema=int,
        path=str,
        prefix=str,
        level=str,
        header=dict,
        metadata=dict,
        tensors=list,
        totals=dict,
        problems=list,
    )
    assert document["schema"] == 1
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
            place = dict.fromkeys(WHOLE_TENSOR, NONE) if handle.slices else WHOLE_TENSOR
            check_types(tensor, name=str, dtype=str, shape=list, nbytes=int, **place, slices=list)
            for key in ("name", "nbytes", "shard", "offset", "crc32c"):
                assert tensor[key] == getattr(handle, key)
            assert tuple(tensor["shape"]) == handle.shape
            for given, part in zip(tensor["slices"], handle.slices, strict=True):
                for key in ("nbytes", "shard", "offset", "crc32c", "missing"):
                    assert given[key] == getattr(part, key)
                assert (given["start"], given["shape"]) == ([*part.start], [*part.shape])
    totals = document["totals"]
    assert totals["nbytes"] == sum(tensor["nbytes"] for tensor in document["tensors"])
    assert totals["tensors"] == sum(one["tensors"] for one in totals["by_dtype"].values())
    assert totals["index_bytes"] == index_file(prefix).stat().st_size
    assert [file["size"] for file in totals["files"]] == [
        Path(file["path"]).stat().st_size for file in totals["files"]
    ]


def test_json_names_are_the_names(command: Callable[..., Ran], tmp_path: Path) -> None:
    found = names_in(command("inspect", "--json", odd(tmp_path)))
    assert [name.encode("utf-8", "surrogateescape") for name in found] == sorted(ODD_NAMES)


def test_verify_json(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = small(tmp_path)
    with ckptfmt.open(prefix) as reader:
        place = reader["step"].offset
    flip(data_file(prefix), place)
    ran = command("verify", "--json", prefix)
    assert ran.status == 1
    document = json.loads(ran.out)
    check_types(
        document,
        schema=int,
        path=str,
        prefix=str,
        ok=bool,
        strict=bool,
        findings=list,
        checked=dict,
    )
    check_types(document["checked"], blocks=int, tensors=int, bytes=int, seconds=float)
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
    }


def test_many_partitioned_tensors(command: Callable[..., Ran], tmp_path: Path) -> None:
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


def test_names_of_slashes_only(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = tmp_path / "deep"
    names = ["/" * 5000, "/" * 4999 + "x", "/", "a/b", "a", "a//b"]
    ckptfmt.save_v2(prefix, names, [""] * len(names), [np.int8(1)] * len(names))
    ran = command("inspect", "--tree", prefix)
    assert ran.status == 0
    assert re.search(r"^6 tensors, 6 elements, 6 B$", ran.out, re.M)
    assert len(re.findall(r"─ \S+ +1 B  int8   \[\]$", ran.out, re.M)) == 4
    both = re.findall(r"─ (\S+) +3 +3 B  int8   \[\]$", ran.out, re.M)
    assert both == ["//", "a/"], "a tensor and a branch"


# ---- layout


def covered(regions: list[dict[str, Any]], size: int) -> None:
    """Every byte in exactly one region."""
    end = 0
    for region in regions:
        assert region["offset"] == end, region
        end += region["size"]
    assert end == size


def layout(ran: Ran) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = json.loads(ran.out)["layout"]
    for file in files:
        assert file["size"] == Path(file["path"]).stat().st_size
        covered(file["regions"], file["size"])
    return files


@pytest.mark.parametrize("made", MADE)
def test_layout_covers_every_byte(made: str, command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = MADE[made](tmp_path)
    files = layout(command("inspect", "--json", "--layout", prefix))
    with ckptfmt.open(prefix) as reader:
        assert len(files) == 1 + reader.header.num_shards
    listed = command("inspect", "--layout", prefix).out
    rows = re.findall(r"^(0x[0-9a-f]{8,}) +(\d+) +(\d+)  ", listed, re.M)
    expected = [region for file in files for region in file["regions"]]
    assert [(int(a, 16), int(b), int(c)) for a, b, c in rows] == [
        (region["offset"], region["offset"], region["size"]) for region in expected
    ]


@pytest.mark.parametrize("prefix", TF_WRITTEN, ids=lambda prefix: prefix.parent.name)
def test_layout_of_tensorflow(prefix: Path, command: Callable[..., Ran]) -> None:
    ran = command("inspect", "--json", "--layout", prefix)
    assert (ran.status, ran.err) == (0, "")
    for region in layout(ran)[0]["regions"]:
        assert region.get("crc_good", True), region


def test_layout_of_blocks_of_a_large_index(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = many(tmp_path)
    (index, _) = layout(command("inspect", "--json", "--layout", prefix))
    blocks = [region for region in index["regions"] if region["kind"] == "data block"]
    assert len(blocks) > 1
    assert sum(block["entries"] for block in blocks) == 3001
    kinds = [region["kind"] for region in index["regions"][len(blocks) :]]
    assert kinds == ["metaindex block", "index block", "footer"]


def test_layout_tells_padding_from_gaps(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = tmp_path / "padded"
    ckptfmt.save(prefix, {"a": np.full(48, 1, np.int8), "b": np.full(5, 2, np.int8)})
    path = data_file(prefix)

    def places(kind: str) -> list[tuple[int, int]]:
        (_, data) = layout(command("inspect", "--json", "--layout", prefix))
        return [
            (region["offset"], region["size"])
            for region in data["regions"]
            if region["kind"] == kind
        ]

    assert (places("padding"), places("gap")) == ([(48, 16), (69, 59)], [])
    flip(path, 60)
    assert (places("padding"), places("gap")) == ([(69, 59)], [(48, 16)])
    with open(path, "ab") as stream:
        stream.write(b"\0" * 7 + b"x")
    assert (places("padding"), places("gap")) == ([], [(48, 16), (69, 67)])


# ---- names that could drive a terminal


@pytest.mark.parametrize("options", [[], ["--slices"], ["--tree"], ["--layout"], ["--json"]])
def test_no_raw_control_characters(
    options: list[str], command: Callable[..., Ran], tmp_path: Path
) -> None:
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


def test_findings_and_errors_are_escaped(command: Callable[..., Ran], tmp_path: Path) -> None:
    directory = tmp_path / "dir\x1b[2J"
    directory.mkdir()
    prefix = odd(directory)
    path = data_file(prefix)
    path.write_bytes(bytes(path.stat().st_size))  # all values wrong
    ran = command("verify", prefix)
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


def test_wide_names_keep_the_columns(command: Callable[..., Ran], tmp_path: Path) -> None:
    lines = command("inspect", odd(tmp_path)).out.splitlines()
    title = next(line for line in lines if line.startswith("name"))
    row = next(line for line in lines if line.startswith("検査点"))
    assert text.cells_of(row[: row.index("int8")]) == title.index("dtype")


def test_other_encodings(tmp_path: Path) -> None:
    encoding = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    for options in ([], ["--tree"]):
        ran = child("inspect", *options, odd(tmp_path), env=encoding)
        out, err = ran.communicate()
        assert (ran.returncode, err) == (0, b"")
        assert out.isascii()
        assert rb"\u691c" in out
        assert b"`- " in out or not options


# ---- exit status and damage


def test_version_and_help(command: Callable[..., Ran]) -> None:
    assert command("--version").out == f"ckptfmt {ckptfmt.__version__}\n"
    for arguments in (["--help"], ["inspect", "--help"], ["verify", "--help"]):
        ran = command(*arguments)
        assert (ran.status, ran.err) == (0, "")
        assert "examples:" in ran.out
        assert "exit status:" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["inspect"],
        ["look", "small"],
        ["inspect", "--frobnicate", "small"],
        ["inspect", "--sort", "color", "small"],
        ["inspect", "--limit", "-1", "small"],
        ["inspect", "--limit", "many", "small"],
        ["inspect", "--filter", "/(/", "small"],
        ["inspect", "--tree", "--layout", "small"],
        ["verify"],
        ["verify", "small", "large"],
    ],
)
def test_wrong_usage(arguments: list[str], command: Callable[..., Ran]) -> None:
    ran = command(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("usage: ckptfmt")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["inspect", "verify"])
def test_no_checkpoint(name: str, command: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<!DOCTYPE html><html>")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "page", "nul\0byte"):
        ran = command(name, path)
        assert (ran.status, ran.out) == (2, "")
        assert re.fullmatch(r"ckptfmt: [^\n]+\n", ran.err)


def test_index_that_cannot_be_opened(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = small(tmp_path)
    index_file(prefix).write_bytes(index_file(prefix).read_bytes()[:-9])
    ran = command("inspect", prefix)
    assert (ran.status, ran.out) == (1, "")
    assert re.fullmatch(r"ckptfmt: BAD_MAGIC in [^\n]+ at offset \d+: FTR-\d+: [^\n]+\n", ran.err)
    ran = command("verify", prefix)
    assert ran.status == 1
    assert ran.out.startswith("problem: BAD_MAGIC in ")


def test_damaged_block(command: Callable[..., Ran], tmp_path: Path) -> None:
    """What cannot be listed is shown block by block."""
    prefix = many(tmp_path)
    with ckptfmt.open(prefix) as reader:
        second = int(reader.regions()["offset"][1])
    flip(index_file(prefix), second + 100)
    for options in ([], ["--tree"], ["--layout"]):
        ran = command("inspect", *options, prefix)
        assert ran.status == 1
        assert "level unknown" in ran.out
        assert len(re.findall(r" data block .*good$", ran.out, re.M)) == 1
        assert re.search(rf"^0x{second:08x} +{second} .* data block .*BAD$", ran.out, re.M)
        assert ran.err.splitlines() == sorted(set(ran.err.splitlines()), key=ran.err.index)
        assert ran.err.startswith(f"problem: CHECKSUM in {prefix}.index at offset {second}")
    document = json.loads(command("inspect", "--json", prefix).out)
    assert (document["tensors"], document["level"], document["totals"]["nbytes"]) == (None,) * 3
    assert {problem["offset"] for problem in document["problems"]} == {second}
    covered(document["layout"][0]["regions"], index_file(prefix).stat().st_size)


def test_missing_and_short_data_files(command: Callable[..., Ran], tmp_path: Path) -> None:
    prefix = plus(tmp_path)
    missing, short = data_file(prefix, 0, 2), data_file(prefix, 1, 2)
    missing.unlink()
    os.truncate(short, 50)
    ran = command("inspect", "--layout", prefix)
    assert ran.status == 1
    assert "1 not there" in ran.out
    assert f"{missing}: not there\n" in ran.out
    lines = ran.err.splitlines()
    assert lines[0].startswith(f"problem: SHARD_MISSING in {missing}: ")
    assert lines[1].startswith(f"problem: TRUNCATED in {short} at offset 64, tensor 'layer_1/bias'")
    assert len(lines) == 2
    cut = json.loads(command("inspect", "--layout", "--json", prefix).out)["layout"][2]
    assert cut["size"] == 50
    beyond = {region["tensor"]: region["beyond"] for region in cut["regions"] if "beyond" in region}
    assert beyond["layer_1/bias"] == 5
    assert "BYTES BEYOND THE END OF THE FILE" in ran.out


def test_damaged_data(command: Callable[..., Ran], tmp_path: Path) -> None:
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


def test_strict_counts_notes(command: Callable[..., Ran]) -> None:
    (prefix,) = [prefix for prefix in TF_WRITTEN if prefix.parent.name == "snappy_literals"]
    ran = command("verify", prefix)
    assert ran.status == 0
    assert re.search(r"^sound: \d+ notes?; checked ", ran.out, re.M)
    assert ran.out.startswith("note: ")
    assert command("verify", "--quiet", prefix).out == ""
    ran = command("verify", "--strict", "--quiet", prefix)
    assert ran.status == 1
    assert ran.out.startswith("note: ")


# ---- pipes and terminals


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["inspect", "--tree"],
        ["inspect", "--layout"],
        ["verify"],
    ],
)
def test_reader_of_a_pipe_goes_away(arguments: list[str], tmp_path: Path) -> None:
    prefix = many(tmp_path)
    expected = 0
    if arguments == ["verify"]:
        path = data_file(prefix)
        path.write_bytes(bytes(path.stat().st_size))
        expected = 1
    ran = child(*arguments, prefix)
    assert ran.stdout is not None
    assert ran.stderr is not None
    assert ran.stdout.readline()
    ran.stdout.close()
    assert ran.stderr.read() == b""
    assert ran.wait(60) == expected, "whoever listens"
    ran.stderr.close()


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"], ["--version"]])
def test_nobody_reads_the_help(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = child(*arguments, stdout=writing)
    os.close(writing)
    _, err = ran.communicate()
    assert (ran.returncode, err) == (0, b"")


def test_closed_streams(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    python = f"'{sys.executable}' -m ckptfmt"
    for words, expected in (
        (f"{python} inspect '{prefix}' >&-", 0),
        (f"{python} verify '{prefix}' >&-", 0),
        (f"{python} inspect '{prefix}x' 2>&-", 2),
        (f"{python} inspect '{prefix}x' >&- 2>&-", 2),
    ):
        ran = subprocess.run(
            ["sh", "-c", words], capture_output=True, env=environment(), check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (expected, b"", b""), words


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk(tmp_path: Path) -> None:
    for prefix in (small(tmp_path), many(tmp_path)):
        with open("/dev/full", "wb") as full:
            ran = child("inspect", prefix, stdout=full)
            _, err = ran.communicate()
        assert ran.returncode == 2
        reason = os.strerror(errno.ENOSPC)
        assert err.decode() == f"ckptfmt: the output cannot be written: {reason}\n"


def test_interrupted(tmp_path: Path) -> None:
    code = (
        "import ckptfmt, os, signal, time\n"
        "ckptfmt.verify = lambda *_, **__: (os.kill(os.getpid(), signal.SIGINT), time.sleep(9))\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    ran = script(code, "verify", small(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def on_terminal(code: str, *arguments: object) -> tuple[int, bytes, bytes]:
    """Runs the command with a terminal as standard error: status, output, and what was drawn."""
    ours, theirs = pty.openpty()
    try:
        ran = script(code, *arguments, capture_output=False, stdout=subprocess.PIPE, stderr=theirs)
    finally:
        os.close(theirs)
    drawn = b""
    try:
        while piece := os.read(ours, 4096):
            drawn += piece
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    return ran.returncode, ran.stdout, drawn


AT_ONCE = "import ckptfmt.cli.progress as p; p.DELAY_SECONDS = 0"
WITHOUT_RICH = f"{AT_ONCE}; sys.modules['rich'] = None"


def test_progress_without_rich(tmp_path: Path) -> None:
    status, out, drawn = on_terminal(WITHOUT_RICH, "verify", small(tmp_path))
    assert status == 0
    assert out.startswith(b"sound; checked ")
    assert re.search(rb"\rchecking \[#{30}\] 100% [\d.]+ K?i?B of ", drawn)
    assert drawn.endswith(b"\r\x1b[K"), "erased"


def test_progress_with_rich(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    status, out, drawn = on_terminal(AT_ONCE, "verify", small(tmp_path))
    assert status == 0
    assert out.startswith(b"sound; checked ")
    assert b"checking" in drawn
    assert b"\x1b[2K" in drawn, "erased"


def test_no_progress(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    assert on_terminal(WITHOUT_RICH, "verify", "--quiet", prefix) == (0, b"", b"")
    status, _, drawn = on_terminal("", "verify", prefix)
    assert (status, drawn) == (0, b""), "nobody waited"
    ran = script(WITHOUT_RICH, "verify", prefix)
    assert (ran.returncode, ran.stderr) == (0, b""), "no terminal"


def test_colors(tmp_path: Path) -> None:
    prefix = small(tmp_path)
    for options, variables, colored in (
        ([], {}, True),
        (["--color", "never"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        ([], {"TERM": "dumb"}, False),
    ):
        ours, theirs = pty.openpty()
        ran = child("inspect", *options, prefix, stdout=theirs, env=environment(**variables))
        os.close(theirs)
        shown = os.read(ours, 1 << 16)
        assert ran.wait(60) == 0
        assert (b"\x1b[" in shown) == colored, (options, variables)
        os.close(ours)
        assert ran.stderr is not None
        ran.stderr.close()
    ran = child("inspect", prefix)
    out, _ = ran.communicate()
    assert b"\x1b" not in out


def test_rich_is_not_needed(tmp_path: Path) -> None:
    """Nor imported, for anything that is not a progress bar."""
    code = "sys.modules['rich'] = None"
    for arguments in (["inspect"], ["inspect", "--tree"], ["inspect", "--json"], ["verify"]):
        ran = script(code, *arguments, small(tmp_path))
        assert (ran.returncode, ran.stderr) == (0, b"")


def test_signal_numbers_are_left_alone() -> None:
    """Importing the command changes nothing in a process that imports it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    assert main(["--version"]) == 0
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
