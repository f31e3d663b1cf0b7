# SPDX-License-Identifier: Apache-2.0
"""Bars against a limit, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LEFT, BAR, GAP = 760, 150, 14, 30
SCALE = WIDTH - LEFT - 110
COLOURS = ("#1a7f5a", "#d9822b", "#8a8f98")


@dataclass(frozen=True)
class Bar:
    """How much of the limit a side came to."""

    name: str
    share: float


@dataclass(frozen=True)
class Group:
    """The bars of a row."""

    title: str
    bars: list[Bar]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'


def svg(groups: list[Group]) -> str:
    """The picture; a bar longer than the limit is cut, its number is not."""
    parts, y = [], 30.0
    parts.append(
        _text(10, 18, "Share of what the machine can do in the same run; longer is better")
    )
    for group in groups:
        y += GAP - BAR
        parts.append(_text(10, y, group.title, 'font-weight="bold"'))
        y += 6
        for bar, colour in zip(group.bars, COLOURS, strict=False):
            length = min(bar.share, 1.0) * SCALE
            parts.append(_text(LEFT - 6, y + 11, bar.name, 'text-anchor="end"'))
            parts.append(
                f'<rect x="{LEFT}" y="{y:.0f}" width="{max(length, 1):.1f}" height="{BAR - 2}" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(LEFT + length + 5, y + 11, f"{bar.share:.0%}"))
            y += BAR
    height = y + 20
    limit = LEFT + SCALE
    parts.append(
        f'<line x1="{limit}" y1="30" x2="{limit}" y2="{height - 10:.0f}" stroke="#333" '
        'stroke-dasharray="4 3"/>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
