# SPDX-License-Identifier: Apache-2.0
"""State files of each side, read by the other; those that TensorFlow refuses are refused.

ckptfmt reads the lines that TensorFlow writes, also edited by hand, and refuses the other forms of
protobuf's text format. Two more differences are tested here: a path that is not UTF-8, written with
escapes, is read by ckptfmt and refused by TensorFlow; and a state file with bytes that are not
UTF-8 is a damaged one, where TensorFlow raises UnicodeDecodeError.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ckptfmt
from ckptfmt import tf
from ckptfmt.files.state_file import CheckpointState, format_state, parse_state

from .generate import seed_from_environment
from .workers import ask

STATES = int(os.environ.get("CKPTFMT_TEST_STATES", "500"))
EDITS, DAMAGES = 1000, 6000

Question = dict[str, Any]


def asked(questions: list[Question]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = ask("tf_state.py", question=questions)
    assert len(answers) == len(questions)
    return answers


def described(state: CheckpointState | None) -> Any:
    """As `described` in tf_state.py."""
    if state is None:
        return None
    preserved = state.last_preserved_timestamp
    return [
        os.fsencode(state.model_checkpoint_path).hex(),
        [os.fsencode(path).hex() for path in state.all_model_checkpoint_paths],
        [float(value).hex() for value in state.all_model_checkpoint_timestamps],
        (0.0 if preserved is None else preserved).hex(),
    ]


def ours(function: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
    """An answer as the worker gives one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            return {"value": function(*arguments, **more)}
    except ckptfmt.CkptfmtError as error:
        return {"error": type(error).__name__}


# ---- random states -------------------------------------------------------------------------------

PIECES = [
    *("a", "Z", "0", "7", " ", "-", ".", "_", "#", "*", "?", "[", "]", "{", "%", ":", ",", ";"),
    *('"', "'", "\\", "\\\\", "\\n", "\\x4", "\\u0041", "\\U0001f600", "\\101", "\\N{DASH}"),
    *("\n", "\r", "\t", "\a", "\b", "\f", "\v", "\0", "\x01", "\x1b", "\x1f", "\x7f", "\x80"),
    *("\x85", "\xa0", "\xad", "ä", "ß", "\u0301", "\u2028", "\ufeff", "\uffff", "日", "😀"),
]
NUMBERS = [
    *(0.0, -0.0, 1.0, -1.5, 1e16, 1e17, 1e22, 123456789012345678.0, 5e-324, 1.7976931348623157e308),
    *(1795212156.6255136, 0.1, 1e-5, 1e-4, 123456.7, math.inf, -math.inf, math.nan),
]


def random_path(rng: random.Random) -> str:
    path = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
    return "/" * (rng.random() < 0.3) + "s/" * (rng.random() < 0.3) + path


def random_number(rng: random.Random) -> float:
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.uniform(0, 2e9)


def random_update(rng: random.Random, root: Path, number: int) -> Question:
    """The arguments of one update_checkpoint_state, in a directory of its own."""
    name = f"d{number}"
    (root / name).mkdir()
    relative = rng.random() < 0.5
    # TensorFlow takes an absolute path for a relative one when it has just made it one.
    absolute_directory = relative or rng.random() < 0.5
    paths = [random_path(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    newest = paths[-1] if paths and rng.random() < 0.7 else random_path(rng)
    count = len(paths) + (not paths or paths[-1] != newest)
    if rng.random() < 0.1:
        count += 1
    return {
        "ask": "update",
        "cwd": str(root),
        "directory": str(root / name) if absolute_directory else name,
        "newest": newest,
        "all": paths,
        "relative": relative,
        "times": [random_number(rng) for _ in range(count)] if rng.random() < 0.6 else None,
        "preserved": random_number(rng) if rng.random() < 0.6 else None,
    }


def test_both_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each reads what the other wrote."""
    rng = random.Random(f"states {seed_from_environment()}")
    questions = [random_update(rng, tmp_path, number) for number in range(STATES)]
    readings: list[Question] = []
    answers = asked(questions)
    monkeypatch.chdir(tmp_path)
    refused = 0
    for question, answer in zip(questions, answers, strict=True):
        directory = Path(question["directory"])
        theirs = directory / "checkpoint"
        if "value" in answer:
            state = ckptfmt.tf.get_checkpoint_state(directory)
            readings.append({"ask": "get", "directory": str(tmp_path / directory)})
            readings[-1]["state"] = described(ckptfmt.tf.get_checkpoint_state(tmp_path / directory))
            assert state is not None
            assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1]
            assert format_state(parse_state(theirs.read_bytes())).hex() == answer["value"]
            theirs.unlink()
        found = ours(
            ckptfmt.tf.update_checkpoint_state,
            directory,
            question["newest"],
            question["all"],
            all_model_checkpoint_timestamps=question["times"],
            last_preserved_timestamp=question["preserved"],
            save_relative_paths=question["relative"],
            durability="rename",
        )
        if "\0" in question["newest"] + "".join(question["all"]):
            assert found == {"error": "InvalidError"}  # no file has such a name
            (directory / "checkpoint").write_bytes(bytes.fromhex(answer.get("value", "")))
        elif "error" in answer:
            assert (found, answer) == ({"error": "InvalidError"}, {"error": "ValueError"})
            refused += 1
        else:
            assert theirs.read_bytes().hex() == answer["value"]
    for question, answer in zip(readings, asked(readings), strict=True):
        assert answer == {"value": question["state"]}
    assert refused > STATES / 100
    assert len(readings) > STATES / 2


# ---- texts ---------------------------------------------------------------------------------------

ALL = b"all_model_checkpoint_paths"
# What damage inserts: with some of these, the text has another meaning.
INSERTED = [
    *(bytes([letter]) for letter in b"\"'\\#[],;:\n\r\t 0x7fFuUnN_-+.\0\x80\xc3\xff"),
    *(
        b"\\x41",
        b"\\777",
        b"\\400",
        b"\\u0041",
        b"\\303\\244",
        b'"b" ',
        b"1e5",
        b"\x0b",
        b"\xc2\x85",
    ),
    *(b"model_checkpoint_path", ALL, b"last_preserved_timestamp"),
    *(b": ", b': "a"\n', b": 1.5\n", b"unknown: 1\n", b"inf", b"nan", b"\\\\", b"\\'", b'\\"'),
]


def random_content(rng: random.Random) -> bytes:
    paths = [random_path(rng) for _ in range(rng.randint(0, 2))]
    numbers = [random_number(rng) for _ in paths]
    return format_state(
        CheckpointState(random_path(rng), tuple(paths), tuple(numbers), random_number(rng))
    )


def edited(rng: random.Random) -> bytes:
    """A state file as TensorFlow writes it, with its lines edited by hand."""
    lines = []
    for line in random_content(rng).decode().split("\n")[:-1] * rng.choice((1, 1, 2)):
        name, value = line.split(": ", 1)
        if value[0] == '"':
            quote, apostrophe = rng.choice((('"', "'"), ('"', "\\'"), ("'", "\\047"), ("'", "\\'")))
            value = quote + value[1:-1].replace("\\'", apostrophe) + quote
        gaps = [rng.choice(("", "", " ", "\t", "  ")) for _ in range(4)]
        comment = rng.choice(("", "", "", "#", "# größe \"'\\\r\v:"))
        lines.append(f"{gaps[0]}{name}{gaps[1]}:{gaps[2]}{value}{gaps[3]}{comment}")
    lines += rng.choices(("", " ", "# remark", "#" + lines[0]), k=rng.randint(0, 3))
    rng.shuffle(lines)
    return (rng.choice(("\n", "\n", "\r\n")).join(lines) + rng.choice(("", "\n"))).encode()


def damaged(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(20))
    if rng.random() < 0.2:
        return b"".join(rng.choices(INSERTED, k=rng.randint(1, 12)))
    changed = bytearray(rng.choice((random_content, edited))(rng))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at:at] = rng.choice(INSERTED)
        elif kind == 1:
            del changed[at : at + rng.choice((1, 1, 2, 20))]
        elif kind == 2 and at < len(changed):
            changed[at : at + 1] = rng.choice(INSERTED)
        elif kind == 3 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def both_parse(contents: list[bytes]) -> list[tuple[bytes, dict[str, Any], dict[str, Any]]]:
    """Each content with our answer and TensorFlow's."""
    answers = asked([{"ask": "parse", "content": content.hex()} for content in contents])
    found = [ours(lambda content=content: described(parse_state(content))) for content in contents]
    return list(zip(contents, found, answers, strict=True))


def test_edited_lines_are_read_the_same() -> None:
    rng = random.Random(f"edited {seed_from_environment()}")
    for content, found, answer in both_parse([edited(rng) for _ in range(EDITS)]):
        assert "value" in answer, content
        assert found == answer, content


def test_damage_has_no_other_meaning() -> None:
    """Ours is TensorFlow's answer, or a refusal."""
    rng = random.Random(f"damages {seed_from_environment()}")
    kinds: Counter[str] = Counter()
    contents = [damaged(rng) for _ in range(DAMAGES)]
    for content, found, answer in both_parse([rb'model_checkpoint_path: "\377"', *contents]):
        if "error" in found:
            assert found == {"error": "CorruptError"}, content
            kinds[answer.get("error", "only refused here")] += 1
        elif "error" in answer:  # the one difference: a path that is not UTF-8
            # A path that a later one replaces counts, too.
            state = parse_state(re.sub(rb"\b(all_)?model_checkpoint_paths?\b", ALL, content))
            texts = state.all_model_checkpoint_paths
            assert any("\udc80" <= letter <= "\udcff" for text in texts for letter in text)
            kinds["not UTF-8"] += 1
        else:
            assert found == answer, content
            kinds["same"] += 1
    assert kinds["same"] > DAMAGES / 20
    assert kinds["ParseError"] > DAMAGES / 5
    assert kinds["UnicodeDecodeError"] and kinds["not UTF-8"] and kinds["only refused here"]


READ = 'model_checkpoint_path: "k"\n'
ONLY_TENSORFLOW_READS = [
    *(READ + READ[:-1] + READ, READ[:-1] + ",", READ[:-1] + ";", READ[:-1] + ' "l"', READ + '"l"'),
    *('model_checkpoint_path:\n"k"', "\v" + READ, "\xa0" + READ, READ[:-1] + "\r" + READ),
    *('all_model_checkpoint_paths: ["k", "l"]', "all_model_checkpoint_timestamps: [1, 2]"),
    *(rf'model_checkpoint_path: "{text}"' for text in (r"\q", r"\?", r"\x4", r"\8", r"\u0041")),
    *(f"last_preserved_timestamp: {text}" for text in ("+1", "1.", ".5", "1f", "1_0", "1.5F")),
    *(f"last_preserved_timestamp: {text}" for text in ("Inf", "infinity", "inff", "NaN", "\uff15")),
]


def test_what_only_tensorflow_reads() -> None:
    for content, found, answer in both_parse([text.encode() for text in ONLY_TENSORFLOW_READS]):
        assert "value" in answer, content
        assert found == {"error": "CorruptError"}, content


# ---- the functions -------------------------------------------------------------------------------


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Directories with state files of many kinds, and checkpoints for some of them."""
    contents: list[bytes | None] = [
        *(None, b"", b"# x", b"unknown: 1", b'model_checkpoint_path: ""', b"\xff"),
        *(b'model_checkpoint_path: "ck-1"', b'model_checkpoint_path: "none"'),
        *(b'model_checkpoint_path: "../out"', b'model_checkpoint_path: "old"'),
        *(b'model_checkpoint_path: "./ck-1"', b'all_model_checkpoint_paths: "ck-1"'),
        f'model_checkpoint_path: "{tmp_path}/out"\nall_model_checkpoint_paths: "/a/b"'.encode(),
    ]
    (tmp_path / "out.index").touch()
    found = []
    for number, content in enumerate(contents):
        directory = tmp_path / f"d{number}"
        directory.mkdir()
        for name in ("ck-1.index", "ck-2.index", "old"):
            (directory / name).touch()
        if content is not None:
            (directory / "checkpoint").write_bytes(content)
        found.append(directory)
    (directory / "s").mkdir()
    (directory / "s" / "checkpoint").mkdir()
    return [*found, directory / "s", tmp_path / "none"]


@pytest.mark.parametrize("ask", ["get", "latest"])
def test_get_and_latest(directories: list[Path], ask: str) -> None:
    answers = asked([{"ask": ask, "directory": str(one)} for one in directories])
    for directory, answer in zip(directories, answers, strict=True):
        if ask == "get":
            found = ours(lambda one=directory: described(tf.get_checkpoint_state(one)))
        else:
            found = ours(tf.latest_checkpoint, directory)
        expected = {
            "ValueError": {"error": "InvalidError"},
            "UnicodeDecodeError": {"value": None},  # the other difference
        }.get(answer.get("error", ""), answer)
        assert found == expected


def test_exists_and_mtimes(tmp_path: Path) -> None:
    for number, name in enumerate(("ck-1.index", "old", "both", "both.index", "s")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(1, (1000 + number) * 10**9))
    names = ["ck-1", "old", "both", "ck", "ck-1.index", "none", "s"]
    prefixes = [f"{tmp_path}/{name}" for name in names]
    *existing, times = asked(
        [
            *({"ask": "exists", "prefix": prefix} for prefix in prefixes),
            {"ask": "mtimes", "prefixes": prefixes},
        ]
    )
    assert [{"value": tf.checkpoint_exists(prefix)} for prefix in prefixes] == existing
    assert {"value": tf.get_checkpoint_mtimes(prefixes)} == times


@pytest.mark.parametrize("more", [[], [2, "graph"]])
def test_remove(tmp_path: Path, more: list[Any]) -> None:
    for base in ("m", "m-00001-of-00002", "m-1"):
        folder = tmp_path / "theirs" / base
        folder.mkdir(parents=True)
        for stem in ("m", "m-00001-of-00002", "m-1", "mm"):
            for end in (
                "index",
                "data-00000-of-00002",
                "data-00001-of-00002",
                "meta",
                "graph",
                "x",
            ):
                (folder / f"{stem}.{end}").touch()
    shutil.copytree(tmp_path / "theirs", tmp_path / "ours")
    bases = sorted(os.listdir(tmp_path / "theirs"))
    answers = asked(
        [
            {"ask": "remove", "prefix": f"{tmp_path}/theirs/{base}/{base}", "more": more}
            for base in bases
        ]
    )
    for base, answer in zip(bases, answers, strict=True):
        tf.remove_checkpoint(tmp_path / "ours" / base / base, *more)
        assert sorted(os.listdir(tmp_path / "ours" / base)) == answer["value"]
