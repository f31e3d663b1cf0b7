# SPDX-License-Identifier: Apache-2.0
"""The text of a state file: the lines that are read, the offset of those that are refused, and
TensorFlow's bytes. The comparison with TensorFlow is in `tests/interop`."""

from __future__ import annotations

import contextlib
import math
import random
import sys

import pytest

import ckptfmt
from ckptfmt.files import state_file
from ckptfmt.files.state_file import CheckpointState, format_state, parse_state

NAME = 'model_checkpoint_path: "k" '


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
        "ckpt-4", ("ckpt-3", "ckpt-4"), (1795212156.6255136, 1795212156.6292567), 1795212155.613958
    )
    assert parse_state(content) == state
    assert format_state(state) == content


@pytest.mark.parametrize("content", ["", " \n", "# only a remark", "\r\n\t#\n# x"])
def test_nothing(content: str) -> None:
    assert parse_state(content.encode()) == CheckpointState("", (), (), None)


@pytest.mark.parametrize(
    "content",
    [
        'model_checkpoint_path: "k"',
        "model_checkpoint_path:'k'",
        '\r\n\tmodel_checkpoint_path : "k" # a remark "x"\r\n\r\n',
        '# model_checkpoint_path: "x"\n#\n##\nmodel_checkpoint_path:\t"k"#',
        "last_preserved_timestamp: 1\nmodel_checkpoint_path: \"x\"\nmodel_checkpoint_path: 'k'\n"
        "last_preserved_timestamp: 2",
    ],
)
def test_edited_lines(content: str) -> None:
    assert parse_state(content.encode()).model_checkpoint_path == "k"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r'"a\"\'\\\n\t\r\a\b\f\v"', "a\"'\\\n\t\r\a\b\f\v"),
        ("'\"' \t", '"'),
        (r"'\1x\0011\101\71'", "\x01x\x011A9"),
        (r'"\303\244\xc3\xA4ä\\303"', "äää\\303"),
        ("'größe#'", "größe#"),
        ('"ä\\377\\xfe"', "ä\udcff\udcfe"),
        (r'"a\000b"', "a\0b"),
    ],
)
def test_strings(text: str, path: str) -> None:
    assert parse_state(f"model_checkpoint_path: {text}".encode()).model_checkpoint_path == path


@pytest.mark.parametrize(
    "text",
    ["1795212155.613958", "1", "-1.5e+3", "5E-1", "0", "-0.0", "0.5", "1e999", "-inf", "nan"],
)
def test_numbers(text: str) -> None:
    assert repr(number_of(text)) == repr(float(text))


@pytest.mark.parametrize(
    "line",
    [
        *("unknown: 1", "größe: 1", "\0", "\ufeff" + NAME, '{"model_checkpoint_path": "k"}'),
        *("1: 'k'", "Model_checkpoint_path: 'k'", "model_checkpoint_paths: 'k'", ", " + NAME),
        *("model_checkpoint_path", 'model_checkpoint_path "k"', "model_checkpoint_path:"),
        *("model_checkpoint_path: k", "model_checkpoint_path: 5", "model_checkpoint_path: {}"),
        *(
            'model_checkpoint_path: "k',
            "model_checkpoint_path: \"k'",
            r'model_checkpoint_path: "k\"',
        ),
        *("\x0bmodel_checkpoint_path: 'k'", "model_checkpoint_path:\u2003'k'", NAME + "\x85"),
        *('last_preserved_timestamp: "1"', "all_model_checkpoint_paths: 1"),
        # protobuf accepts these.
        *(NAME + ",", NAME + ";", NAME + '"l"', NAME + NAME, NAME + "unknown", '"k"'),
        *('model_checkpoint_path: \n"k"', 'all_model_checkpoint_paths: ["k"]'),
        *("all_model_checkpoint_timestamps: [1, 2]", 'model_checkpoint_path: "a\nb"'),
        # Escapes that are cut short, of other languages, or too large.
        *(rf'model_checkpoint_path: "\{escape}"' for escape in ("q", "x", "x4", "xg", "8", "?")),
        *(rf'model_checkpoint_path: "\{escape}"' for escape in ("477", "777", "u0041", "\n", "")),
        # Spellings of numbers that TensorFlow does not write.
        *(f"last_preserved_timestamp: {number}" for number in ("+1", "- 1", "1.", ".5", "010")),
        *(
            f"last_preserved_timestamp: {number}"
            for number in ("-00.5", "1f", "1_0", "0x10", "1 1")
        ),
        *(f"last_preserved_timestamp: {number}" for number in ("Inf", "infinity", "true", "1.2.3")),
        *(f"last_preserved_timestamp: {number}" for number in ("1e", "\uff15", "nanf", "")),
    ],
)
def test_what_is_refused(line: str) -> None:
    begin = f"# größe\n{NAME}\n "
    with pytest.raises(ckptfmt.CorruptError) as caught:
        parse_state(f"{begin}{line}\n".encode(), "/d/checkpoint")
    error = caught.value
    assert (error.failure, error.path) == ("BAD_PROTO", "/d/checkpoint")
    assert error.offset == len(begin.encode())
    shown = line.split("\n", maxsplit=1)[0].encode()[:40].decode(errors="ignore")
    expected = "expected a line 'field: value' of a CheckpointState, found "
    assert error.message == expected + repr(shown)


# ---- hostile sizes -------------------------------------------------------------------------------


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
        ("", 'all_model_checkpoint_paths: "\\n"\n'),
        ("", "all_model_checkpoint_timestamps: 1.5\n"),
        ('model_checkpoint_path: "', "\\n"),
        ("model_checkpoint_path: ", "\"a'"),
        ("", "# remark\n"),
        ("", " "),
    ],
)
def test_work_grows_with_the_size(begin: str, unit: str) -> None:
    few, many = counted_calls(begin + unit * 100), counted_calls(begin + unit * 1000)
    assert many <= 10 * few + 100


@pytest.mark.parametrize("end", ["", "x", "\n"])
@pytest.mark.parametrize(
    ("begin", "unit"),
    [
        *(("", unit) for unit in (" ", "\n", "#\n", 'all_model_checkpoint_paths: "a"\n')),
        *((NAME, " "), ("model_checkpoint_path", " "), ("model_checkpoint_path:", " ")),
        *(("model_checkpoint_path: '", unit) for unit in ("a", "\\n", '"')),
        *(("last_preserved_timestamp: 1", unit) for unit in ("5", ".", "e5")),
    ],
)
def test_a_megabyte(begin: str, unit: str, end: str) -> None:
    """A search that goes back over what it matched would not end."""
    with contextlib.suppress(ckptfmt.CorruptError):
        parse_state((begin + unit * (10**6 // len(unit)) + end).encode())


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
