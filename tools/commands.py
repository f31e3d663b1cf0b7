#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a page of the site, the reference of the command, from its parsers.

python tools/commands.py > docs/generated/commands.md
"""

from __future__ import annotations

import os

from ckptfmt.cli.parser import command_parser


def main() -> None:
    os.environ["COLUMNS"] = "100"
    top, commands = command_parser()
    print("# Commands\n\nWritten by `tools/commands.py` from the parsers.\n")
    print(f"```text\n{top.format_help().strip()}\n```")
    for name, parser in commands.items():
        print(f"\n## {name}\n\n```text\n{parser.format_help().strip()}\n```")


if __name__ == "__main__":
    main()
