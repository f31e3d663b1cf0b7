# SPDX-License-Identifier: Apache-2.0
"""The commands and their parsers. Imports little: a shell that completes a word, `--version` and a
wrong word need no more than this."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from ckptfmt.cli.output import Output
from ckptfmt.errors import masked, printable

# Names and summaries. Each command is a module of this package, imported when it is chosen, with
# EPILOG, add_options(parser) and run(options) -> exit status.
COMMANDS = {
    "inspect": "show tensors, totals and the header",
    "show": "show the values of a tensor, or of a slice of it, and their distribution",
    "verify": "check all blocks, entries and values of checkpoints",
    "diff": "compare two checkpoints: names, dtypes, shapes, values, metadata",
    "merge": "merge checkpoints into one by joining their indexes",
    "convert": "write a checkpoint in another format, or at another level of ours",
    "edit": "rename, drop or cast tensors, or set metadata",
    "average": "write the mean of checkpoints with the same tensors",
    "rescue": "write what is sound of a damaged checkpoint",
    "cp": "copy a checkpoint under another name",
    "mv": "rename a checkpoint, or move it to another directory",
    "rm": "remove checkpoints",
    "latest": "print the newest complete checkpoint of a directory",
    "clean": "remove what killed writers left in a directory",
    "prune": "remove all but the newest sound checkpoints of a directory",
    "digest": "print a SHA-256 of the contents of checkpoints",
    "report": "write a report with pictures: one HTML file",
    "completion": "print the completion script of a shell",
    "help": "print the help of a command",
}

# What users of other tools may type for a command.
GUESSES = {
    "inspect": "ls ll list info print view stat tree summary keys names inspect_checkpoint",
    "show": "cat get dump value values tensor read stats",
    "verify": "check fsck validate test scrub",
    "diff": "compare cmp",
    "merge": "join concat combine",
    "convert": "export import transform compress to",
    "edit": "cast set strip drop",
    "average": "avg mean ema soup",
    "rescue": "repair fix recover restore salvage",
    "cp": "copy",
    "mv": "move rename",
    "rm": "del delete remove unlink",
    "latest": "newest last",
    "clean": "gc cleanup tidy",
    "digest": "hash checksum sha256 sha256sum md5sum",
    "report": "html plot",
    "--version": "version",
}

# Help is not wider than this, on however wide a terminal.
WIDTH_MAX = 100

DESCRIPTION = (
    "Inspect, verify, compare, merge, convert, edit and clean up TensorFlow V2 checkpoints (an "
    ".index file and .data files)."
)

EPILOG = """
A path instead of a command is inspected.

examples:
  ckptfmt model.ckpt-1000                 tensors, totals, header
  ckptfmt show model.ckpt-1000 bias       values of a tensor
  ckptfmt verify model.ckpt-1000          check all values
  ckptfmt diff before after               list the differences
  ckptfmt merge part-0 part-1 model       join checkpoints
  ckptfmt convert --level v2 model other  write it at another level
  ckptfmt edit --cast float16 model new   cast, rename, drop tensors
  ckptfmt average a b c mean              the mean of the weights
  ckptfmt rescue broken new               what is sound of it
  ckptfmt latest directory                the newest complete one
  ckptfmt report model                    a page with pictures
  ckptfmt prune --keep 3 directory        remove all but the newest
  ckptfmt clean --dry-run directory       what killed writers left
  ckptfmt help COMMAND                    more about a command

exit status:
  0  good
  1  problems found in the checkpoint, or differences
  2  wrong usage, or no checkpoint where one should be

Data goes to standard output, problems and progress to standard error. With --json a command prints
one JSON document, also on failure: {"schema": 2, "error": {...}}. NO_COLOR is honoured.
"""


class _Help(argparse.HelpFormatter):
    """Fills the paragraphs of a text to the width of the terminal, and below their first column the
    items that begin with two blanks."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._width = min(self._width, WIDTH_MAX - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = [re.split(r"\n(?=  \S)", block) for block in text.strip().split("\n\n")]
        return "\n\n".join("\n".join(_filled(one, width) for one in block) for block in blocks)


def _filled(text: str, width: int) -> str:
    column = re.match(r"  \S+  +", text)
    return textwrap.fill(
        re.sub(r"\n *", " ", text),
        width,
        subsequent_indent=" " * len(column[0] if column else ""),
        break_long_words=False,
        break_on_hyphens=False,
    )


class UsageError(SystemExit):
    """Wrong usage, which was printed to standard error.

    Attributes:
        message: what is wrong.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(status)
        self.message = message


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2; the message is masked and escaped, because arguments may hold
        passwords of URLs and control codes."""
        message = masked(message)
        try:
            super().error(printable(message))
        except SystemExit as stop:
            raise UsageError(message, int(stop.code or 0)) from None


class _Version(argparse.Action):
    """Prints the version of the package, which the C library knows as well, without loading it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415 (takes longer than all the others)

        Output().line(f"ckptfmt {version('ckptfmt')}")
        parser.exit()


def command_parser(
    chosen: Iterable[str] = COMMANDS,
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command, and those of its subcommands by name.

    Args:
        chosen: the subcommands that get their options; the modules of the others are not imported.
    """
    layout: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False}
    parser = _Parser(prog="ckptfmt", description=DESCRIPTION, epilog=EPILOG, **layout)
    parser.add_argument(
        "-V", "--version", action=_Version, nargs=0, help="print the version and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    own_parsers: dict[str, argparse.ArgumentParser] = {}
    for name, summary in COMMANDS.items():
        description = summary[0].upper() + summary[1:] + "."
        own_parsers[name] = commands.add_parser(
            name, help=summary, description=description, **layout
        )
    for name in chosen:
        command, own = import_module(f"ckptfmt.cli.{name}"), own_parsers[name]
        own.epilog = command.EPILOG
        command.add_options(own)
        own.set_defaults(run=command.run, parser=own)
    return parser, own_parsers


def completed_commands() -> list[str]:
    """Return the command of the line that a shell completes, if it is there already."""
    words = os.environ.get("COMP_LINE", "").split()[1:]
    return [word for word in words if word in COMMANDS][:1]


# ---- the first word


def with_command(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the first word, which no option precedes that has a value, and the arguments. A path
    there means `inspect PATH`."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    if word is None or word in COMMANDS or not _is_path(word):
        return word, list(arguments)
    return "inspect", ["inspect", *arguments]


def _is_path(word: str) -> bool:
    """Return whether a first word that is not a command is a path: something is there, or it has
    other characters than the name of a command."""
    if "\0" in word or os.path.lexists(word) or os.path.lexists(f"{word}.index"):
        return True
    return _meant(word) is None and not re.fullmatch("[A-Za-z_-]*", word)


def _meant(word: str) -> tuple[str, bool] | None:
    """Return the command that a wrong word may mean, and whether it is only misspelt."""
    import difflib  # noqa: PLC0415 (for an unknown command only)

    guesses = {guess: name for name, words in GUESSES.items() for guess in words.split()}
    near = difflib.get_close_matches(word.lower(), [*COMMANDS, *guesses], 1)
    if not near:
        return None
    return guesses.get(near[0], near[0]), near[0] in COMMANDS


def unknown_word(word: str | None, arguments: Sequence[str]) -> str | None:
    """Return the message for a first word that is neither a command nor a path, with a command to
    run instead; None for another."""
    if word is None or word in COMMANDS:
        return None
    name, is_misspelt = _meant(word) or ("help", False)
    rest = [one for one in arguments if is_misspelt or not one.startswith("-")]
    if word in rest:
        rest.remove(word)
    if name.startswith("-") or (name == "help" and not is_misspelt):
        words = [name]
    else:
        words = [name, *rest] if rest else ["help", name]
    line = masked(shlex.join(["ckptfmt", *words]))
    return f"{word!r} is not a command, and there is no such path; try: {line}"
