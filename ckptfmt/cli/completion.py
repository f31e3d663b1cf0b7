# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt completion`: print what makes a shell complete commands, checkpoints and tensor names.
argcomplete (extra `cli`) does the work."""

from __future__ import annotations

import argparse
import glob
import os
from typing import Any

from ckptfmt import CkptfmtError, UnsupportedError
from ckptfmt.cli.output import Output
from ckptfmt.cli.parser import COMMANDS

EPILOG = """
Needs argcomplete: pip install argcomplete.

examples:
  ckptfmt completion bash >> ~/.bashrc
  ckptfmt completion zsh >> ~/.zshrc
  ckptfmt completion fish > ~/.config/fish/completions/ckptfmt.fish

exit status:
  0  printed
  2  wrong usage, or argcomplete is missing
"""

# More tensor names are not offered.
NAMES_MAX = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def run(options: argparse.Namespace) -> int:
    """Print the script, and return the exit status.

    Raises:
        UnsupportedError: argcomplete is missing.
    """
    try:
        from argcomplete import shellcode  # noqa: PLC0415 (optional)
    except ImportError:
        raise UnsupportedError("completion needs argcomplete: pip install argcomplete") from None
    Output().line(shellcode(["ckptfmt"], shell=options.shell).strip())
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and exit."""
    from argcomplete import autocomplete  # noqa: PLC0415 (only asked for by a shell)

    autocomplete(parser, default_completer=_words)


def _words(prefix: str, action: argparse.Action, parsed_args: Any, **_: Any) -> list[str]:
    """Return commands, tensor names, or prefixes of checkpoints and directories."""
    if action.dest == "command":
        return list(COMMANDS)
    if action.dest == "name":
        from ckptfmt.cli.show import names_of  # noqa: PLC0415 (imports numpy)

        try:
            names = names_of(parsed_args.path)
            return [name for name in names if name.startswith(prefix)][:NAMES_MAX]
        except CkptfmtError:
            return []
    found = glob.glob(f"{glob.escape(prefix)}*")
    indexes = [path.removesuffix(".index") for path in found if path.endswith(".index")]
    return indexes + [f"{path}/" for path in found if os.path.isdir(path)]
