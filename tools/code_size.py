# SPDX-License-Identifier: Apache-2.0
"""Count lines of code by folder: comments, docstrings and blank lines are left out.

    python tools/code_size.py [ROOT]
    python tools/code_size.py --check     compare them with tools/budget.txt
    python tools/code_size.py --record    write them there

A folder may not have more lines than its number in tools/budget.txt, nor so many fewer that the
number says nothing. Generated tables (csrc/crc32c/tables.h) are not counted.
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

BUDGET = Path(__file__).with_name("budget.txt")
# Lines below its number, in all and of a hundred, from which on a folder needs a new number.
SLACK, SLACK_PERCENT = 50, 2


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


def counted(root: Path) -> tuple[Counter[str], list[tuple[int, str]]]:
    """The lines by folder, and the long files."""
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
    return counts, long


def check(counts: Counter[str]) -> int:
    """Compare the lines with the budget; returns the exit status."""
    lines = [line.split() for line in BUDGET.read_text(encoding="utf-8").splitlines()]
    budget = {folder: int(number.replace(",", "")) for number, folder in lines}
    status = 0
    for folder in sorted(counts | budget):
        most, count = budget.get(folder, 0), counts[folder]
        if count > most:
            print(f"{folder}: {count:,} lines, {most:,} in tools/budget.txt")
        elif most - count > max(SLACK, most * SLACK_PERCENT // 100):
            print(f"{folder}: only {count:,} lines, {most:,} in tools/budget.txt")
        else:
            continue
        status = 1
    if status:
        print("`make code-size-record` writes the numbers; a commit that raises one says why.")
    return status


def main() -> int:
    arguments = sys.argv[1:]
    counts, long = counted(Path("." if not arguments or arguments[0][0] == "-" else arguments[0]))
    if arguments == ["--check"]:
        return check(counts)
    if arguments == ["--record"]:
        text = "".join(f"{counts[folder]:7,} {folder}\n" for folder in sorted(counts))
        BUDGET.write_text(text, encoding="utf-8")
        return 0
    for folder in sorted(counts):
        print(f"{counts[folder]:7,}  {'  ' if '/' in folder else ''}{folder}")
    for count, name in sorted(long, reverse=True):
        print(f"{count:7,}  lines with comments: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
