#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the man pages of the command and of its subcommands from their parsers.

python tools/man.py DIRECTORY
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import ckptfmt
from ckptfmt.cli.parser import COMMANDS, command_parser


def escaped(text: str) -> str:
    """Roff takes a dot or apostrophe at the beginning of a line for a request."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def page(name: str, parser: argparse.ArgumentParser, others: list[str]) -> str:
    title = name.replace(" ", "-")
    summary = (parser.description or "").splitlines()[0].rstrip(".")
    see = ",\n".join(f".BR {escaped(other)} (1)" for other in others)
    return "\n".join(
        [
            '.\\" Written by tools/man.py.',
            f'.TH {escaped(title.upper())} 1 "" "ckptfmt {ckptfmt.__version__}" "User commands"',
            ".SH NAME",
            f"{escaped(title)} \\- {escaped(summary)}",
            ".SH SYNOPSIS",
            ".nf",
            escaped(parser.format_usage().removeprefix("usage: ").strip()),
            ".fi",
            ".SH DESCRIPTION",
            ".nf",
            escaped(parser.format_help().partition("\n\n")[2].strip()),
            ".fi",
            ".SH SEE ALSO",
            see,
            "",
        ]
    )


def main() -> None:
    os.environ["COLUMNS"] = "75"  # of 80, without the margins of man
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    top, commands = command_parser()
    names = [f"ckptfmt-{name}" for name in COMMANDS]
    (directory / "ckptfmt.1").write_text(page("ckptfmt", top, names), encoding="utf-8")
    for name, parser in commands.items():
        text = page(f"ckptfmt {name}", parser, ["ckptfmt"])
        (directory / f"ckptfmt-{name}.1").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
