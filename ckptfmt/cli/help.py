# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt help`: print the help of a command."""

from __future__ import annotations

import argparse

from ckptfmt import InvalidError
from ckptfmt.cli.output import Output
from ckptfmt.cli.parser import command_parser, unknown_word

EPILOG = """
`ckptfmt help` lists the commands; `ckptfmt COMMAND --help` is the same as `ckptfmt help COMMAND`.

examples:
  ckptfmt help
  ckptfmt help verify

exit status:
  0  printed
  2  wrong usage, or no such command
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="the command")


def run(options: argparse.Namespace) -> int:
    """Print the help, and return the exit status.

    Raises:
        InvalidError: there is no such command.
    """
    name = options.command
    if unknown := unknown_word(name, []):
        raise InvalidError(unknown)
    parser, commands = command_parser([name] if name else [])
    Output().write((commands[name] if name else parser).format_help())
    return 0
