# SPDX-License-Identifier: Apache-2.0
"""The text of a state file: everything that protobuf reads, everything that it refuses, and
TensorFlow's bytes. The comparison with the real one is in `tests/interop`."""

from __future__ import annotations

import math
import random
import sys

import pytest

import ckptfmt
from ckptfmt.bundle import state_file
from ckptfmt.bundle.state_file import CheckpointState, format_state, parse_state

NAME = 'model_checkpoint_path: "k" '


def path_of(text: str) -> str:
    return parse_state(f"model_checkpoint_path: {text}".encode()).model_checkpoint_path


def number_of(text: str) -> float | None:
    return parse_state(f"last_preserved_timestamp: {text}".encode()).last_preserved_timestamp


# ---- reading -------------------------------------------------------------------------------------


def test_every_field() -> None:
    content = (
        b'model_checkpoint_path: "ckpt-4"\n'
        b'all_model_checkpoint_paths: "ckpt-3"\n'
        b'all_model_checkpoint_paths: "ckpt-4"\n'
        b"all_model_checkpoint_timestamps: 1795212156.6255136\n"
        b"all_model_checkpoint_timestamps: 1795212156.6292567\n"
        b"last_preserved_timestamp: 1795212155.613958\n"
    )
    state = CheckpointState(
        "ckpt-4",
        ("ckpt-3", "ckpt-4"),
        (1795212156.6255136, 1795212156.6292567),
        1795212155.613958,
    )
    assert parse_state(content) == state
    assert format_state(state) == content


@pytest.mark.parametrize("content", ["", " \n", "# only a remark", "all_model_checkpoint_paths:[]"])
def test_nothing(content: str) -> None:
    assert parse_state(content.encode()) == CheckpointState("", (), (), None)


@pytest.mark.parametrize(
    "content",
    [
        'model_checkpoint_path: "k"',
        "model_checkpoint_path:'k'",
        '\r\n\tmodel_checkpoint_path :\n"k" # a remark "x"',
        '\x0b\x0c\x1c\x85\xa0\u2028model_checkpoint_path: "k"\u3000',
        '# model_checkpoint_path: "x"\n#\n##\nmodel_checkpoint_path: # "x"\n"k"#',
        'model_checkpoint_path: "x" model_checkpoint_path: "k"',
        'model_checkpoint_path:"x"model_checkpoint_path:"k",',
        'model_checkpoint_path: "k";',
        'model_checkpoint_path: "" "k" \'\'',
    ],
)
def test_ways_to_write_a_path(content: str) -> None:
    assert parse_state(content.encode()) == CheckpointState("k")


def test_lists() -> None:
    state = parse_state(
        b'all_model_checkpoint_paths: ["a", \'b\' "c" # d\n , "",];'.replace(b",]", b"]")
        + b'all_model_checkpoint_paths: "d", all_model_checkpoint_paths: []'
        + b"all_model_checkpoint_timestamps: [1, -2.5 ,3e1]all_model_checkpoint_timestamps: 4"
    )
    assert state.all_model_checkpoint_paths == ("a", "bc", "", "d")
    assert state.all_model_checkpoint_timestamps == (1, -2.5, 30, 4)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r'"a\"\'\\\n\t\r\a\b\f\v"', "a\"'\\\n\t\r\a\b\f\v"),
        ("'\"' \"'\"", "\"'"),
        ('"a" "b"\n \'c\'', "abc"),
        (r'"\1x\0011\101"', "\x01x\x011A"),
        (r'"\303\244\xc3\xA4\x9q\x4a4"', "ää\x09qJ4"),
        (r'"\303" "\244"', "ä"),
        (r'"\u00e4\U0001f600"', "ä😀"),
        ("'größe'", "größe"),
        (r'"\377\xfe"', "\udcff\udcfe"),
        ('"ä\\377"', "ä\udcff"),
        (r'"a\000b"', "a\0b"),
        # What is no escape stays, and code points come before escapes.
        (r'"\?\q\X41\8"', "\\?\\q\\X41\\8"),
        (r'"\ä\日\😀"', "\\ä\\u65e5\\U0001f600"),
        (r'"\\日"', "\\日"),
        (r'"\u005cn\xf\u0041"', "\n\x0fA"),
        ('"#"', "#"),
        ('"tab\there"', "tab\there"),
    ],
)
def test_strings(text: str, path: str) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1795212155.613958", 1795212155.613958),
        ("1", 1),
        ("-1.5e+3", -1500),
        ("+.5E-1", 0.05),
        ("1.", 1),
        ("2f", 2),
        ("2.5F", 2.5),
        ("1_0", 10),
        ("0", 0),
        ("-0.0", -0.0),
        ("0.5", 0.5),
        ("1e999", math.inf),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("inff", math.inf),
        ("-INFINITYF", -math.inf),
        ("-inff", -math.inf),
        ("5" * 10000, math.inf),
        ("\uff15", 5),  # a digit, if no ASCII one
    ],
)
def test_numbers(text: str, number: float) -> None:
    assert repr(number_of(text)) == repr(float(number))


@pytest.mark.parametrize("text", ["nan", "-nan", "NaN", "nanf"])
def test_no_number(text: str) -> None:
    assert math.isnan(number_of(text) or 0.0)


NO_VALUE = "a field without a value"
NO_FIELD = "not a field of a CheckpointState"
NO_COLON = "a field without a colon"
NO_ESCAPE = "a string with an invalid escape"


@pytest.mark.parametrize(
    ("content", "offset", "message"),
    [
        (NAME + "unknown: 1", 27, NO_FIELD),
        (NAME + "größe: 1", 27, NO_FIELD),
        ('# größe\nmodel_checkpoint_path: "größe" unknown', 43, NO_FIELD),
        (NAME + "\udcff", 27, "not UTF-8"),
        ("# \udcff\n" + NAME, 2, "not UTF-8"),
        ('model_checkpoint_path: "\udcff"', 24, "not UTF-8"),
        ("\0", 0, NO_FIELD),
        ("\ufeff" + NAME, 0, NO_FIELD),
        ('{"model_checkpoint_path": "k"}', 0, NO_FIELD),
        ("[tensorflow.x]: 1", 0, NO_FIELD),
        ("1: 'k'", 0, NO_FIELD),
        ("Model_checkpoint_path: 'k'", 0, NO_FIELD),
        ("model_checkpoint_path-: 'k'", 0, NO_FIELD),
        (", " + NAME, 0, NO_FIELD),
        (NAME + ",;", 28, NO_FIELD),
        ('model_checkpoint_path "k"', 22, NO_COLON),
        ("model_checkpoint_path", 21, NO_COLON),
        ("model_checkpoint_path { }", 22, NO_COLON),
        ("model_checkpoint_path:", 22, NO_VALUE),
        ("model_checkpoint_path: k", 23, NO_VALUE),
        ("model_checkpoint_path: 5", 23, NO_VALUE),
        ('model_checkpoint_path: ["k"]', 23, NO_VALUE),
        ('model_checkpoint_path: "k', 23, NO_VALUE),
        ("model_checkpoint_path: \"k'", 23, NO_VALUE),
        ('model_checkpoint_path: "k\\"', 23, NO_VALUE),
        ('model_checkpoint_path: "k\n"', 23, NO_VALUE),
        ('model_checkpoint_path: "k\\\n"', 23, NO_VALUE),
        ('model_checkpoint_path: "k" "l', 27, NO_VALUE),
        (r'model_checkpoint_path: "\777"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\xg"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\u12"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\ud800"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\ud83d\ude00"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\U00110000"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "\u005c"', 23, NO_ESCAPE),
        (r'model_checkpoint_path: "k" "\N{BULLET}"', 27, NO_ESCAPE),
        ('last_preserved_timestamp: "1"', 26, NO_VALUE),
        ("last_preserved_timestamp: true", 26, NO_VALUE),
        ("last_preserved_timestamp: - 1", 26, NO_VALUE),
        ("last_preserved_timestamp: 0x10", 26, NO_VALUE),
        ("last_preserved_timestamp: 1.2.3", 26, NO_VALUE),
        ("last_preserved_timestamp: [1]", 26, NO_VALUE),
        ("last_preserved_timestamp: 010", 26, "a number that begins with 0"),
        ("last_preserved_timestamp: -00.5", 26, "a number that begins with 0"),
        ("last_preserved_timestamp: 1 1", 28, NO_FIELD),
        ('all_model_checkpoint_paths: ["a"', 32, "a list without an end"),
        ('all_model_checkpoint_paths: ["a"; "b"]', 32, "a list without an end"),
        ('all_model_checkpoint_paths: ["a",]', 33, NO_VALUE),
        ('all_model_checkpoint_paths: [["a"]]', 29, NO_VALUE),
        ("all_model_checkpoint_timestamps: [1 2]", 36, "a list without an end"),
        ("all_model_checkpoint_paths: " + "[" * 100000, 29, NO_VALUE),
    ],
)
def test_what_is_refused(content: str, offset: int, message: str) -> None:
    with pytest.raises(ckptfmt.CorruptError) as caught:
        parse_state(content.encode("utf-8", "surrogateescape"), "/d/checkpoint")
    error = caught.value
    assert (error.failure, error.path) == ("BAD_PROTO", "/d/checkpoint")
    assert (error.offset, error.message) == (offset, message)


# ---- hostile sizes -------------------------------------------------------------------------------


def test_too_many_bytes() -> None:
    with pytest.raises(ckptfmt.errors.LimitError, match=r"^LIMIT in c: more than 67108864 bytes$"):
        parse_state(bytes((64 << 20) + 1), "c")


@pytest.mark.parametrize(
    "unit", ['"",', '""', '"\\n\\n\\n\\n\\n\\n\\n",'], ids=["values", "pieces", "escapes"]
)
def test_too_many_values(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    monkeypatch.setattr(state_file, "PARTS_MAX", 9)
    begin = "all_model_checkpoint_paths: ["
    assert parse_state(f'{begin}{unit}""]'.encode())
    with pytest.raises(ckptfmt.errors.LimitError, match="more than 9 values and backslashes"):
        parse_state((begin + unit * 9 + '""]').encode())


def test_very_many_paths() -> None:
    paths = tuple(f"ckpt-{n}" for n in range(10**5))
    times = tuple(1.7e9 + n / 8 for n in range(10**4))
    content = format_state(CheckpointState("ckpt-99999", paths, times)).decode()
    assert parse_state(content.encode()) == CheckpointState("ckpt-99999", paths, times)
    assert counted_calls(content) < 100, "not a token at a time"


@pytest.mark.parametrize("end", ["", '"b"', ", ", "; ", "# b\n", "model_checkpoint_path: 'n'", "?"])
def test_what_follows_lines_of_one_field(end: str) -> None:
    """Many lines at once mean what they mean one by one."""
    lines = 'all_model_checkpoint_paths: "a"\n' * 3
    try:
        expected = parse_state((lines.replace('"', "'") + end).encode())
    except ckptfmt.CorruptError as error:
        with pytest.raises(ckptfmt.CorruptError) as caught:
            parse_state((lines + end).encode())
        assert str(caught.value) == str(error)
    else:
        assert parse_state((lines + end).encode()) == expected


def counted_calls(content: str) -> int:
    """Python function calls that reading takes, whether it ends well or not."""
    raw, count = content.encode(), 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        parse_state(raw)
    except ckptfmt.CkptfmtError:
        pass
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("begin", "unit"),
    [
        ("", 'all_model_checkpoint_paths: "a"\n'),
        ("all_model_checkpoint_timestamps: [", "0,"),
        ("model_checkpoint_path: ", '"a"'),
        ("model_checkpoint_path: ", "\"a'"),
        ('model_checkpoint_path: "', "\\n"),
        ("", "# remark\n"),
        ("", " "),
        ("all_model_checkpoint_paths: ", "["),
    ],
)
def test_work_grows_with_the_size(begin: str, unit: str) -> None:
    few, many = counted_calls(begin + unit * 100), counted_calls(begin + unit * 1000)
    assert many <= 10 * few + 100


# ---- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ckpt-1", "ckpt-1"),
        ("/a b/c_d.e", "/a b/c_d.e"),
        ("\"'\\", "\\\"\\'\\\\"),
        ("\n\t\r\a\b\f\v\0\x1b\x7f", "\\n\\t\\r\\007\\010\\014\\013\\000\\033\\177"),
        ("\x80größe\u2028日😀", "\x80größe\u2028日😀"),
        ("\udcff\udc80", "\\377\\200"),
        ("?*[]{}%$#~`", "?*[]{}%$#~`"),
    ],
)
def test_escapes_written(path: str, text: str) -> None:
    content = f'model_checkpoint_path: "{text}"\n'.encode()
    assert format_state(CheckpointState(path)) == content
    assert parse_state(content) == CheckpointState(path)


def test_numbers_written() -> None:
    numbers = (0.0, -0.0, 1, 1e22, 1e16, 123456789012345678, -1.5, 5e-324, math.inf, -math.inf)
    content = format_state(CheckpointState("k", (), (*numbers, math.nan), -0.0)).decode()
    assert [line.split(": ")[1] for line in content.splitlines()[1:]] == [
        *("0.0", "-0.0", "1.0", "1e+22", "1e+16", "1.2345678901234568e+17", "-1.5", "5e-324"),
        *("inf", "-inf", "nan", "-0.0"),
    ]


@pytest.mark.parametrize("preserved", [None, 0.0, 0])
def test_what_is_not_written(preserved: float | None) -> None:
    """Fields at their defaults, as protobuf has it; values of a list are."""
    assert format_state(CheckpointState("", (), (), preserved)) == b""
    assert format_state(CheckpointState("", ("",), ())) == b'all_model_checkpoint_paths: ""\n'


def test_half_of_a_surrogate_pair() -> None:
    for bad in ("a\ud800", "\udc7f"):
        with pytest.raises(ckptfmt.InvalidError, match="which is not a character") as caught:
            format_state(CheckpointState("k", (bad,)))
        assert caught.value.failure == "BAD_PATH"


def test_more_than_can_be_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    state = CheckpointState("k", ("j", "k"))
    size = len(format_state(state))
    monkeypatch.setattr(state_file, "STATE_BYTES_MAX", size)
    assert parse_state(format_state(state)) == state
    monkeypatch.setattr(state_file, "STATE_BYTES_MAX", size - 1)
    with pytest.raises(ckptfmt.errors.LimitError, match=f"more than {size - 1} bytes"):
        format_state(state)


def test_random_states_come_back(seed: int) -> None:
    rng = random.Random(seed)

    def text() -> str:
        raw = bytes(
            rng.choice(b"\\\\\"'nrtx0u41 \n\r\0\x7f\xc3\xa4\xff/a" + bytes([rng.randrange(256)]))
            for _ in range(rng.randint(0, 12))
        )
        return raw.decode("utf-8", "surrogateescape")

    for _ in range(2000):
        count = rng.randint(0, 4)
        state = CheckpointState(
            text(),
            tuple(text() for _ in range(count)),
            tuple(rng.uniform(-1, 2) * 10 ** rng.randint(-30, 30) for _ in range(count)),
            rng.choice((None, rng.random() + 0.1)),
        )
        assert parse_state(format_state(state)) == state
