# SPDX-License-Identifier: Apache-2.0
"""The `ckptfmt` command: one module per command; this one runs it and reports its errors.

Exit status: 0 good, 1 problems or differences found, 2 wrong usage or no checkpoint, 130
interrupted.

The commands: average.py, clean.py, completion.py, convert.py, cp.py, diff.py, digest.py, edit.py,
inspect.py, latest.py, merge.py, mv.py, prune.py, report.py, rm.py, show.py, verify.py

options.py        options that commands share
renaming.py       the option --rename
files.py          what cp, mv and rm have in common
destination.py    the prefix or file that a command writes to
contents.py       the contents of a checkpoint, for inspect
inspect_text.py   inspect as text
inspect_tree.py   inspect --tree
inspect_graph.py  inspect --tree of an object graph
inspect_json.py   inspect --json
results.py        what edit, convert and average print
text.py           escaped names, sizes, tables
output.py         standard output
progress.py       the progress bar
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import ckptfmt
from ckptfmt import CkptfmtError, CkptfmtWarning, CorruptError
from ckptfmt.cli import completion, output
from ckptfmt.cli.output import Output, OutputError, silence
from ckptfmt.cli.text import printable
from ckptfmt.errors import GenerationGoneError, LimitError, MergeConflictError, ShardMissingError

GOOD, PROBLEMS, TROUBLE, INTERRUPTED = 0, 1, 2, 130

# Errors about a damaged checkpoint; after any other error there was no checkpoint to look at.
DAMAGE = (CorruptError, LimitError, ShardMissingError, GenerationGoneError, MergeConflictError)

# Names and summaries. Each command is a module of this package, imported when it is chosen, with
# EPILOG, add_options(parser) and run(options) -> exit status.
COMMANDS = {
    "inspect": "show tensors, totals and the header",
    "show": "show the values of a tensor, or of a slice of it, and their distribution",
    "verify": "check every block, entry and byte of checkpoints",
    "diff": "compare two checkpoints: names, dtypes, shapes, values, metadata",
    "merge": "merge checkpoints into one without moving tensor bytes",
    "convert": "write a checkpoint in another format, or at another level of ours",
    "edit": "rename, drop or cast tensors, or set metadata",
    "average": "write the mean of checkpoints with the same tensors",
    "cp": "copy a checkpoint under another name",
    "mv": "rename a checkpoint, or move it to another directory",
    "rm": "remove checkpoints",
    "latest": "print the newest complete checkpoint of a directory",
    "clean": "remove what killed writers left in a directory",
    "prune": "remove all but the newest sound checkpoints of a directory",
    "digest": "print a SHA-256 of the contents of checkpoints",
    "report": "write a report with pictures: one HTML file",
    "completion": "print the completion script of a shell",
}

LAYOUT: dict[str, Any] = {
    "formatter_class": argparse.RawDescriptionHelpFormatter,
    "allow_abbrev": False,
}

DESCRIPTION = (
    "Inspect, verify, compare, merge, convert, edit and clean up TensorFlow V2 checkpoints (an "
    ".index file and .data files)."
)

EPILOG = """
examples:
  ckptfmt inspect model.ckpt-1000            tensors, totals, header
  ckptfmt show model.ckpt-1000 'bias[:10]'   values of a tensor
  ckptfmt verify model.ckpt-1000             check every byte
  ckptfmt diff before after                  list the differences
  ckptfmt merge part-0 part-1 model          join checkpoints
  ckptfmt convert --level v2 model other     write it at another level
  ckptfmt edit --strip-optimizer model other rename, drop, cast tensors; set metadata
  ckptfmt average a b c mean                 the mean of the weights
  ckptfmt latest directory                   the newest complete checkpoint
  ckptfmt report model -o report.html        a page with pictures
  ckptfmt prune --keep 3 directory           remove all but the newest checkpoints
  ckptfmt clean --dry-run directory          list what killed writers left
  ckptfmt COMMAND --help                     more about a command

exit status:
  0  good
  1  problems found in the checkpoint, or differences
  2  wrong usage, or no checkpoint where one should be

Data goes to standard output, problems and progress to standard error. With --json a command prints
one JSON document, also on failure: {"schema": 1, "error": {...}}. NO_COLOR is honoured.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2; the message is escaped, because arguments may hold control codes."""
        super().error(printable(message))


def command_parser(
    chosen: Iterable[str] = COMMANDS,
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command, and those of its subcommands by name.

    Args:
        chosen: the subcommands that get their options; the modules of the others are not imported.
    """
    parser = _Parser(prog="ckptfmt", description=DESCRIPTION, epilog=EPILOG, **LAYOUT)
    parser.add_argument("--version", action="version", version=f"ckptfmt {ckptfmt.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    own_parsers: dict[str, argparse.ArgumentParser] = {}
    for name, summary in COMMANDS.items():
        description = summary[0].upper() + summary[1:] + "."
        own_parsers[name] = commands.add_parser(
            name, help=summary, description=description, **LAYOUT
        )
    for name in chosen:
        command, own = import_module(f"ckptfmt.cli.{name}"), own_parsers[name]
        own.epilog = command.EPILOG
        command.add_options(own)
        own.set_defaults(run=command.run, parser=own)
    return parser, own_parsers


def _chosen(arguments: Sequence[str]) -> list[str]:
    """Return the subcommand that the arguments choose, or none. No option before it has a value."""
    if "_ARGCOMPLETE" in os.environ:  # the words are those of the line that is completed
        return [name for name in COMMANDS if name in os.environ.get("COMP_LINE", "")]
    word = next((word for word in arguments if not word.startswith("-")), "")
    return [word] if word in COMMANDS else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; `arguments` defaults to those of the process."""
    try:
        status = _run(arguments)
        Output().flush()
    except OutputError as error:
        status = _complain(str(error), TROUBLE)
    except KeyboardInterrupt:
        silence(sys.stdout)
        status = INTERRUPTED
    output.complain()
    return status


def _run(arguments: Sequence[str] | None) -> int:
    options = None
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        parser, _ = command_parser(_chosen(arguments))
        completion.complete(parser)
        options, extra = parser.parse_known_args(arguments)
        if extra:
            options.parser.error(f"unrecognized arguments: {' '.join(extra)}")
        _refuse_empty(options)
        with warnings.catch_warnings():
            warnings.simplefilter("always", CkptfmtWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            status: int = options.run(options)
    except SystemExit as stop:  # of argparse: help, version, wrong usage
        return int(stop.code or GOOD)
    except CkptfmtError as error:
        if options is not None and getattr(options, "json", False):
            fields = error_fields(error)
            fields["message"] = _with_options(error.message, options.parser._actions)
            Output().document({"error": fields})
        return complain(error, options)
    except MemoryError:
        return _complain("out of memory", TROUBLE)
    return status


def _refuse_empty(options: argparse.Namespace) -> None:
    """Exit with status 2 if an argument is empty, as from a variable of a shell that is not set."""
    for action in options.parser._actions:
        if not action.option_strings:
            given = getattr(options, action.dest)
            if "" in (given if isinstance(given, list) else [given]):
                options.parser.error(f"argument {action.metavar or action.dest}: it is empty")


def _show_warning(
    show: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any
) -> None:
    """Print a warning of this library as errors are printed; have others shown as before."""
    if issubclass(category, CkptfmtWarning):
        _complain(str(message), GOOD)
    else:
        show(message, category, *where)


def error_fields(error: CkptfmtError) -> dict[str, object]:
    """Return the fields of an error in the JSON document of a command that failed."""
    names = ("status", "failure", "message", "path", "offset", "tensor")
    return {name: getattr(error, name) for name in names}


def complain(error: CkptfmtError, options: argparse.Namespace | None = None) -> int:
    """Print an error to standard error, after the option that was given and that it is about, and
    return the exit status that it causes."""
    status = PROBLEMS if isinstance(error, DAMAGE) else TROUBLE
    actions = [] if options is None else options.parser._actions
    message = _with_options(str(error), actions)
    for action in actions:
        if action.dest == error.argument:
            message = re.sub(rf"(^|: ){error.argument}: ", r"\1", message, count=1)
            if getattr(options, action.dest, action.default) != action.default:
                name = action.option_strings[-1] if action.option_strings else action.metavar
                message = message if message.startswith(f"{name} ") else f"{name}: {message}"
    return _complain(message, status)


def _with_options(message: str, actions: Iterable[argparse.Action]) -> str:
    """Return a message of the library with the command's options for the arguments that it
    names."""
    for action in actions:
        for option in action.option_strings[-1:]:
            argument = rf"\b{action.dest}="
            for value, words in (
                (r"True\b", ""),
                (r"\{'([^']*)': '?(\w+)'?\}", r" '\1=\2'"),
                (r"('[^']*')", r" \1"),
                ("(?=[ ,])", ""),
            ):
                message = re.sub(argument + value, option + words, message)
    return message


def _complain(message: str, status: int) -> int:
    output.complain(f"ckptfmt: {printable_line(message)}")
    return status


def printable_line(message: str) -> str:
    """Return the message on one line; the library has escaped its own messages."""
    return message if message.isprintable() else printable(message)
