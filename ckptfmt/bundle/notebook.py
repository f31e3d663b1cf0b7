# SPDX-License-Identifier: Apache-2.0
"""How readers and handles show themselves in notebooks: small tables of HTML, all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. Unpaired surrogates, of names that are not UTF-8, are replaced."""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _text(value: object) -> str:
    return html.escape(str(value).encode("utf-8", "backslashreplace").decode())
