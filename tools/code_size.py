# SPDX-License-Identifier: Apache-2.0
"""Count lines of code by folder: comments, docstrings and blank lines are left out.

    python tools/code_size.py [ROOT]

Generated tables (csrc/crc32c/tables.h) are not counted.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

FOLDERS = ("csrc", "ckptfmt", "tests", "fuzz", "bench", "spec", "tools", "examples")
GENERATED = {"csrc/crc32c/tables.h", "csrc/base/crc32c_tables.h"}

# Files with more lines than this are listed: they may hold more than one idea.
LONG = 1000


def c_lines(text: str) -> int:
    """Lines of C that hold more than comments."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found[0] in "\"'" else "\n" * found.count("\n")

    return sum(1 for line in re.sub(pattern, blank, text, flags=re.S).splitlines() if line.strip())


def python_lines(text: str) -> int:
    """Lines of Python that hold a token, docstrings left out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (*layout, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(held - docstrings)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    counts: Counter[str] = Counter()
    long: list[tuple[int, str]] = []
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*")):
            name = path.relative_to(root).as_posix()
            if name in GENERATED or path.suffix not in (".c", ".h", ".py"):
                continue
            text = path.read_text(encoding="utf-8")
            lines = python_lines(text) if path.suffix == ".py" else c_lines(text)
            counts[top] += lines
            if text.count("\n") > LONG:
                long.append((text.count("\n"), name))
            if top in ("csrc", "ckptfmt", "tests") and len(Path(name).parts) > 2:
                counts["/".join(Path(name).parts[:2])] += lines
    for folder in sorted(counts):
        print(f"{counts[folder]:7,}  {'  ' if '/' in folder else ''}{folder}")
    for count, name in sorted(long, reverse=True):
        print(f"{count:7,}  lines with comments: {name}")


if __name__ == "__main__":
    main()
