# SPDX-License-Identifier: Apache-2.0
"""The `ckptfmt` command: one module per command; this one runs it and reports its errors.

Exit status: 0 good, 1 problems or differences found, 2 wrong usage or no checkpoint, 130
interrupted.

The commands: average.py, clean.py, completion.py, convert.py, cp.py, diff.py, digest.py, edit.py,
help.py, inspect.py, latest.py, merge.py, mv.py, prune.py, report.py, rescue.py, rm.py, show.py,
verify.py

parser.py         the table of commands, their parsers, and what a wrong word may mean
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
from typing import Any

from ckptfmt import CkptfmtError, CkptfmtWarning, CorruptError, InvalidError
from ckptfmt.cli import output
from ckptfmt.cli.output import Output, OutputError, silence
from ckptfmt.cli.parser import (
    UsageError,
    command_parser,
    completed_commands,
    unknown_word,
    with_command,
)
from ckptfmt.errors import LimitError, MergeConflictError, ShardMissingError, printable

GOOD, PROBLEMS, TROUBLE, INTERRUPTED = 0, 1, 2, 130

# Errors about a damaged checkpoint; any other error does not prove damage.
DAMAGE = (CorruptError, LimitError, ShardMissingError, MergeConflictError)


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
    arguments = sys.argv[1:] if arguments is None else arguments
    is_json = "--json" in arguments
    try:
        if "_ARGCOMPLETE" in os.environ:
            _complete()
        name, arguments = with_command(arguments)
        if unknown := unknown_word(name, arguments):
            _print_json(is_json, InvalidError(unknown))
            return _complain(unknown, TROUBLE)
        parser, own_parsers = command_parser([name] if name else [])
        if not arguments:
            output.complain(parser.format_help().rstrip())
            return TROUBLE
        if name is None or arguments[0] != name:
            parser.parse_args(arguments)
            raise AssertionError("it ends with help, version or an error")
        options = own_parsers[name].parse_intermixed_args(arguments[1:])
        _refuse_empty(options)
        with warnings.catch_warnings():
            warnings.simplefilter("always", CkptfmtWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            status: int = options.run(options)
    except SystemExit as stop:  # of argparse: help, version, wrong usage
        if isinstance(stop, UsageError):
            _print_json(is_json, InvalidError(stop.message))
        return int(stop.code or GOOD)
    except CkptfmtError as error:
        _print_json(is_json, error, options)
        return complain(error, options)
    except MemoryError:
        return _complain("out of memory", TROUBLE)
    return status


def _print_json(
    is_json: bool, error: CkptfmtError, options: argparse.Namespace | None = None
) -> None:
    """Print the document of an error, if JSON was asked for."""
    if is_json:
        fields = error_fields(error)
        actions = [] if options is None else options.parser._actions
        Output().document({"error": {**fields, "message": _with_options(error.message, actions)}})


def _complete() -> None:
    """Answer a shell that asks for completions, and exit."""
    from ckptfmt.cli.completion import complete  # noqa: PLC0415 (only asked for by a shell)

    complete(command_parser(completed_commands())[0])


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
    _complain(message, status)
    for note in getattr(error, "__notes__", ()):
        _complain(note, status)
    return status


def _with_options(message: str, actions: Iterable[argparse.Action]) -> str:
    """Return a message of the library with the command's options for the arguments that it
    names."""
    for action in actions:
        for option in action.option_strings[-1:]:
            if option == "--drop-metadata":
                message = message.replace("metadata={}", option)
            argument = rf"\b{action.dest}="
            for value, words in (
                (r"True\b", ""),
                (r"\{'([^']*)': '?(\w+)'?\}", r" '\1=\2'"),
                (r"('[^']*')", r" \1"),
                (r"\[\('([^']*)', '([^']*)'\)\]", r" '/\1/=\2'"),
                ("(?=[ ,])", ""),
            ):
                message = re.sub(argument + value, option + words, message)
            texts = r"\[('[^']*'(, '[^']*')*)\]"
            message = re.sub(argument + texts, partial(_repeated, option), message)
    return message


def _repeated(option: str, found: re.Match[str]) -> str:
    """Return an option once for each of the texts that its argument lists."""
    return " ".join(f"{option} {one}" for one in re.findall("'[^']*'", found[1]))


def _complain(message: str, status: int) -> int:
    output.complain(f"ckptfmt: {printable(message)}")
    return status
