# SPDX-License-Identifier: Apache-2.0
"""Slices as text: SaveSliceInfo as TensorFlow's, and the texts that SaveV2 takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support import index
from support.strategies import boxes, counted, property_test, shapes, text_of

import ckptfmt
from ckptfmt import InvalidError, SaveSliceInfo
from ckptfmt.tf import parse_spec

INT64_MAX = 2**63 - 1

# ---- SaveSliceInfo -------------------------------------------------------------------------------

# Full shape, offset, shape of the part; the text.
SLICES = [
    ([4, 3, 5], [0, 1, 3], [4, 1, 2], "4 3 5 0,4:1,1:3,2"),
    ([10], [3], [4], "10 3,4"),
    # A part that is the whole is written out: never "-", never "".
    ([3, 4], [0, 0], [3, 4], "3 4 0,3:0,4"),
    ([0, 4], [0, 0], [0, 4], "0 4 0,0:0,4"),
    ([2**40], [2**39], [1], "1099511627776 549755813888,1"),
]


@pytest.mark.parametrize(("full", "offset", "shape", "text"), SLICES)
@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_spec(full: list[int], offset: list[int], shape: list[int], text: str, form: Any) -> None:
    info = SaveSliceInfo("w", form(full), form(offset), form(shape))
    assert info.spec == text
    assert info.stripped_spec == text


@pytest.mark.parametrize(("full", "offset", "shape", "text"), SLICES)
def test_from_spec(full: list[int], offset: list[int], shape: list[int], text: str) -> None:
    assert SaveSliceInfo.from_spec(text) == SaveSliceInfo(None, full, offset, shape)
    assert SaveSliceInfo.from_spec(text).spec == text


def test_scalars_are_a_single_space() -> None:
    info = SaveSliceInfo("w", [], [], [])
    assert info.spec == " "
    assert info.stripped_spec == ""


def test_the_empty_text_is_an_empty_object() -> None:
    info = SaveSliceInfo.from_spec("")
    assert info == SaveSliceInfo()
    assert (info.full_name, info.full_shape, info.var_offset, info.var_shape) == (None,) * 4
    for use in ("spec", "stripped_spec"):
        with pytest.raises(ckptfmt.InvalidError, match=r"^this SaveSliceInfo has no slice: "):
            getattr(info, use)


PAIRS = "Spec string must contain comma-separated pairs of offsets and shapes."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4", "Spec string must contain space-separated full_shape info."),
        ("0,4", "Spec string must contain space-separated full_shape info."),
        (" ", PAIRS),  # of a scalar: as in TensorFlow, it does not come back
        ("4 -", PAIRS),
        ("4 6 0,2:-", PAIRS),
        ("4 6 0,2:", PAIRS),
        ("4 6 0,2::0,1", PAIRS),
        ("4 0,1,2", PAIRS),
        ("4 0,,2", PAIRS),
        ("4 ", PAIRS),
        (
            "4 x 0,2:0,1",
            "Spec string full_shape must be a sequence of integers. "
            "Found 'x', which is not an integer.",
        ),
        ("4 a,2", "Spec string var_offset must be an integer. Found 'a', which is not an integer."),
        ("4 0,", "Spec string var_shape must be an integer. Found '', which is not an integer."),
        (
            "4 0,1.5",
            "Spec string var_shape must be an integer. Found '1.5', which is not an integer.",
        ),
    ],
)
def test_from_spec_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        SaveSliceInfo.from_spec(text)
    assert type(caught.value) is ckptfmt.InvalidError
    assert str(caught.value) == message


def test_from_spec_takes_what_python_takes() -> None:
    """As TensorFlow's, which splits at any white space and does not look at the ranks."""
    assert SaveSliceInfo.from_spec("4  6 0,2") == SaveSliceInfo(None, [4, 6], [0], [2])
    assert SaveSliceInfo.from_spec(" 0,2") == SaveSliceInfo(None, [], [0], [2])


@property_test(100, 10_000, st.data(), shapes(9, 50, 1).filter(len))
def test_slices_agree(data: st.DataObject, full: tuple[int, ...]) -> None:
    """A spec means the same to SaveSliceInfo and to the parser of SaveV2, which also takes `-`."""
    box = data.draw(boxes(full))
    offset, shape = [start for start, _ in box], [size for _, size in box]
    text = SaveSliceInfo("w", full, offset, shape).spec
    assert text == text_of(full, box)
    assert parse_spec(text) == (full, tuple(offset), tuple(shape), tuple(shape))
    assert SaveSliceInfo.from_spec(text) == SaveSliceInfo(None, list(full), offset, shape)
    axis = data.draw(st.integers(0, len(full) - 1))
    dims, extents = text.rsplit(" ", 1)
    parts = extents.split(":")
    parts[axis], offset[axis], shape[axis] = "-", 0, full[axis]
    lengths = (*shape[:axis], -1, *shape[axis + 1 :])
    assert parse_spec(f"{dims} {':'.join(parts)}") == (full, tuple(offset), tuple(shape), lengths)


CHARACTERS = "0123456789 ,:-+"


@st.composite
def edited_texts(draw: st.DrawFn) -> str:
    """A slice text with one character changed or added."""
    full = draw(shapes(3, 12, 1).filter(len))
    text = text_of(full, draw(boxes(full)))
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from(CHARACTERS)) + text[at + draw(st.integers(0, 1)) :]


@property_test(150, 20_000, st.text(CHARACTERS, max_size=16) | edited_texts())
def test_any_text_is_a_slice_or_refused(text: str) -> None:
    try:
        parsed = parse_spec(text)
    except InvalidError:
        counted("slice texts", refused=1)
        return
    counted("slice texts", accepted=1)
    if parsed is None:
        assert text == ""
        return
    for size, start, length in zip(parsed.full_shape, parsed.start, parsed.shape, strict=True):
        assert start >= 0 and length >= 0 and start + length <= size
    extents = zip(parsed.start, parsed.lengths, strict=True)
    written = ":".join("-" if length < 0 else f"{start},{length}" for start, length in extents)
    assert parse_spec(f"{' '.join(map(str, parsed.full_shape))} {written}") == parsed


# ---- parse_spec ----------------------------------------------------------------------------------


def test_the_empty_text_is_the_whole_tensor() -> None:
    assert parse_spec("") is None
    assert parse_spec(b"") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4 6 0,2:-", ((4, 6), (0, 0), (2, 6), (2, -1))),
        ("4 6 1,2:3,3", ((4, 6), (1, 3), (2, 3), (2, 3))),
        ("4 6 -:-", ((4, 6), (0, 0), (4, 6), (-1, -1))),
        # What TensorFlow tells apart in the index: "-" and the full length.
        ("4 0,4", ((4,), (0,), (4,), (4,))),
        ("4 -", ((4,), (0,), (4,), (-1,))),
        ("0 6 -:-", ((0, 6), (0, 0), (0, 6), (-1, -1))),
        ("0 -", ((0,), (0,), (0,), (-1,))),
        # Empty pieces do not count.
        ("4 6 0,2::-", ((4, 6), (0, 0), (2, 6), (2, -1))),
        ("4 6 :0,2:-", ((4, 6), (0, 0), (2, 6), (2, -1))),
        ("4 6 0,2:-:", ((4, 6), (0, 0), (2, 6), (2, -1))),
        ("4 6 0,,2:-", ((4, 6), (0, 0), (2, 6), (2, -1))),
        ("4 ,0,2,", ((4,), (0,), (2,), (2,))),
        ("4 +1,+2", ((4,), (1,), (2,), (2,))),
        ("+4 1,2", ((4,), (1,), (2,), (2,))),
        ("004 01,02", ((4,), (1,), (2,), (2,))),
        ("4 -0,2", ((4,), (0,), (2,), (2,))),
        (f"{INT64_MAX} {INT64_MAX - 1},1", ((INT64_MAX,), (INT64_MAX - 1,), (1,), (1,))),
    ],
)
@pytest.mark.parametrize("encode", [False, True])
def test_parse_spec(text: str, expected: Any, encode: bool) -> None:
    parsed = parse_spec(text.encode() if encode else text)
    assert isinstance(parsed, ckptfmt.types.SliceSpec)
    assert (parsed.full_shape, parsed.start, parsed.shape, parsed.lengths) == expected


# ---- through a checkpoint ------------------------------------------------------------------------


def test_parts_saved_by_their_slice_info(tmp_path: Path) -> None:
    """A text that covers the whole becomes a plain entry; parts become slices with their keys."""
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    infos = [SaveSliceInfo("w", [4, 6], [0, at], [4, 2]) for at in (0, 2, 4)]
    whole = SaveSliceInfo("v", [4, 6], [0, 0], [4, 6])
    scalar = SaveSliceInfo("s", [], [], [])
    parts = [values[:, at : at + 2] for at in (0, 2, 4)]
    ckptfmt.save_v2(
        tmp_path / "ck",
        ["w", "w", "w", "v", "s"],
        [*(info.spec for info in infos), whole.spec, scalar.stripped_spec],
        [*parts, values, np.int32(7)],
    )
    content = (tmp_path / "ck.index").read_bytes()
    offset, size = index.regions(content).data_blocks[0]
    keys = [key for _, key, _, _ in index.block_rows(content[offset : offset + size])]
    slices = [index.slice_key(b"w", [(0, -1), (at, 2)]) for at in (0, 2, 4)]
    explicit = [index.slice_key(b"w", [(0, 4), (at, 2)]) for at in (0, 2, 4)]
    assert keys == [b"", *sorted(explicit), b"s", b"v", b"w"]
    assert not set(slices) & set(keys)
    loaded = ckptfmt.load(tmp_path / "ck")
    assert loaded["w"].tolist() == loaded["v"].tolist() == values.tolist()
    assert loaded["s"] == 7
    restored = ckptfmt.restore_v2(tmp_path / "ck", ["w", "v"], [infos[1].spec, infos[2].spec])
    assert [part.tolist() for part in restored] == [parts[1].tolist(), parts[2].tolist()]


def test_overlapping_slices_are_never_committed(tmp_path: Path) -> None:
    """What no reader could stitch is refused before the checkpoint becomes visible."""
    ckptfmt.save(tmp_path / "ck", {"old": [1]})
    writer = ckptfmt.Writer(tmp_path / "ck")
    writer.add_slice("s", np.zeros(2), (4,), (0,))
    writer.add_slice("s", np.ones(3), (4,), (1,))
    with pytest.raises(InvalidError, match="slices 0 and 1 of the tensor overlap") as caught:
        writer.commit()
    assert caught.value.tensor == "s"
    assert list(ckptfmt.load(tmp_path / "ck")) == ["old"]
    assert len(list(tmp_path.iterdir())) == 2


def test_parse_spec_refuses() -> None:
    """Each text by its rule: tests/c/test_slice_text.c, and the vectors."""
    with pytest.raises(ckptfmt.InvalidError) as caught:
        parse_spec("4 0,5\n")
    assert caught.value.message.startswith("TXT-6: a slice past the end of its dimension")
    assert caught.value.message.endswith('in the slice spec "4 0,5\\x0a"')
    assert (caught.value.status, caught.value.failure) == ("INVALID", "ARGUMENT")
