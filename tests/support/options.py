# SPDX-License-Identifier: Apache-2.0
"""The options that several calls have, as docs/options.md declares them: the same name is the same
option, with one default, type and meaning."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ckptfmt._base.save_options import SaveOptions

from .pages import ROOT

PAGE = "docs/options.md"
# Option: its default and its annotation.
SAVING = {"metadata": (None, "Mapping[str, Any] | None")}
SAVING |= {one.name: (one.default, str(one.type)) for one in fields(SaveOptions)}
LOADING = {
    "names": (None, "Names | None"),
    "filter": (None, "Filter | None"),
    "rename": (None, "Rename | None"),
    "cast": (None, "Cast | None"),
    "allow_loss": (False, "bool"),
    "strict": (True, "bool"),
}
BOTH = {
    "verify": ("auto", "Verify"),
    "limits": (None, "Mapping[str, int] | None"),
    "progress": (None, "Progress | None"),
}
EVERY = SAVING | LOADING | BOTH
# How the description of an option begins in the docstring of every call that has it.
TEXTS = {
    "metadata": "a mapping of str to texts, finite numbers, bools and lists of these, stored as "
    'JSON and read back as `Reader.metadata`. Level "v2" cannot store it.',
    "level": '"v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow '
    'skips; "ckptfmt": with compressed values, which TensorFlow refuses.',
    "alignment": 'bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.',
    "durability": '"full": synced; "rename": atomic, not synced; "none": also not read back.',
    "compression": '"zstd", or "zstd:1" to "zstd:22", compresses tensors where that '
    'helps, which makes the level "ckptfmt". None: none, at that level "zstd".',
    "names": "the tensors to load, str or bytes; None: all. A missing one is an error.",
    "filter": "which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/` "
    "or a compiled pattern found anywhere in the name, or a function of it; None: all.",
    "rename": "stored name to new name: a mapping, a function, or a list of pairs (regular "
    "expression, replacement) applied in order, as `re.sub` does. None from a function or a pair "
    "drops the tensor. A transform, a function of the array such as `numpy.transpose`, may follow "
    "the new name.",
    "cast": "a dtype for all tensors of its kind (floating-point, integer, complex) with at least "
    "one dimension, or a mapping of filters to dtypes: the first that matches counts, "
    "None changes nothing.",
    "allow_loss": "True allows casts that change values by more than rounding: overflow, lost "
    "fractions.",
    "strict": "True: anything that does not match is an error. False: load what matches.",
    "verify": '"auto": check whole reads, and parts where that is cheap; "full": all; "off": none.',
    "limits": "what a file may ask of this process: a mapping of names of `ckptfmt_limits` in "
    '`ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there.',
    "progress": "called as `progress(done, total)` with two ints",
    "path": "a prefix, an `.index` or data file, a directory, a SavedModel, or a URL of these.",
    "follow_symlinks": "False refuses an index or data file that is a symbolic link.",
}
# Where a call has another default or meaning, and the page says so.
OTHERS = {
    ("Checkpoint.read", "strict"),
    ("Checkpoint.restore", "strict"),
    ("Reader.read", "verify"),
    ("types.TensorHandle.read", "verify"),
    ("types.TensorHandle.read_into", "verify"),
    ("types.TensorHandle.map", "verify"),
    ("verify", "strict"),
    ("Reader.verify", "strict"),
    ("Reader.verify", "progress"),
    ("editing.edit", "level"),
    ("editing.edit", "metadata"),
    ("report.report", "progress"),  # parts of the page
    ("report.report_series", "progress"),  # the same
}
# Calls with an argument that has the name of an option.
OTHER_THINGS = ("tf.ShardableTensor", "safetensors.save_file")
CORE = ("", "sharded", "editing", "tf", "types", "report", "huggingface")
ADAPTERS = ("torch", "torch.dcp", "jax", "keras")


def calls(doors: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    """The public functions and methods, by the names that users call them by."""
    found: dict[str, Callable[..., Any]] = {}
    for door in doors:
        module = importlib.import_module(f"ckptfmt.{door}".rstrip("."))
        own = [one for one, value in vars(module).items() if _is_own(value, module.__name__)]
        for name in getattr(module, "__all__", own):
            value, where = getattr(module, name), f"{door}.{name}".lstrip(".")
            if not callable(value) or value in found.values() or _is_result(value):
                continue
            if not isinstance(value, type):
                found[where] = value
                continue
            found[where] = value
            foreign = [one for one in value.__mro__ if not one.__module__.startswith("ckptfmt")]
            for method, one in inspect.getmembers(value, inspect.isfunction):
                is_ours = not any(hasattr(base, method) for base in foreign)
                if is_ours and not method.startswith("_") and one not in found.values():
                    found[f"{where}.{method}"] = one
    return found


def _is_own(value: Any, module: str) -> bool:
    """Whether it is a public function or class of this module, which has no `__all__`."""
    is_public = not getattr(value, "__name__", "_").startswith("_")
    return is_public and getattr(value, "__module__", None) == module


def _is_result(value: Any) -> bool:
    """Whether it is a class of results or errors, which users do not make."""
    if not isinstance(value, type) or value.__name__ == "CheckpointOptions":
        return False
    return issubclass(value, BaseException) or hasattr(value, "__dataclass_fields__")


def options_of(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        given = inspect.signature(call).parameters
    except ValueError:
        return {}
    return {name: one for name, one in given.items() if name in EVERY}


def described() -> list[str]:
    """The options that the tables of the page explain."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)` \| (?!x | )", text, re.M)


def table() -> dict[str, set[str]]:
    """The tables of the page: call to the options that it has."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    columns: list[str] = []
    for line in re.findall(r"^\|.*\|$", text, re.M):
        cells = [cell.strip().strip("`") for cell in line[1:-1].split("|")]
        if cells[0] in ("Call", "Option"):
            columns = cells[1:] if cells[0] == "Call" else []
        elif columns and len(cells) == len(columns) + 1 and not cells[0].startswith("-"):
            marked = {name for name, cell in zip(columns, cells[1:], strict=True) if cell}
            found.setdefault(cells[0], set()).update(marked)
    return found


def check_calls(doors: tuple[str, ...]) -> None:
    """Compare the signatures and docstrings of all calls with the declaration and the page."""
    page = table()
    for name, call in calls(doors).items():
        options = options_of(call)
        if name in OTHER_THINGS:
            continue
        assert page.get(name, set()) == {*options}, f"{PAGE}: {name}"
        if "level" in options:  # what writes a level has all options of writing
            assert {one.name for one in fields(SaveOptions)} <= {*options}, name
        texts = entries(inspect.getdoc(call) or "")
        for option, parameter in options.items():
            if (name, option) in OTHERS:
                continue
            default, annotation = EVERY[option]
            assert parameter.kind == inspect.Parameter.KEYWORD_ONLY or option == "names", name
            assert parameter.default == default, f"{name}: {option}={parameter.default!r}"
            assert str(parameter.annotation) == annotation, f"{name}: {option}"
            assert texts[option].startswith(TEXTS[option]), f"{name}: {option}: {TEXTS[option]}"


def entries(doc: str, section: str = "Args|Attributes") -> dict[str, str]:
    """The entries of a section of a docstring: the text before the first colon to what follows."""
    found: dict[str, str] = {}
    for block in re.findall(rf"^(?:{section}):\n((?:    .*\n|\n)*)", doc + "\n", re.M):
        for entry in re.split(r"\n(?=    \S)", block):
            key, _, text = entry.partition(":")
            found[" ".join(key.split())] = " ".join(text.split())
    return found
