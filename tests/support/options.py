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
# Option: its default, its annotation, and the call whose docstring describes it.
SAVING = {"metadata": (None, "Mapping[str, Any] | None", "Writer")}
SAVING |= {one.name: (one.default, str(one.type), "Writer") for one in fields(SaveOptions)}
LOADING = {
    "names": (None, "Names | None", "load_into"),
    "filter": (None, "Filter | None", "load_into"),
    "rename": (None, "Rename | None", "load_into"),
    "cast": (None, "Cast | None", "load_into"),
    "allow_loss": (False, "bool", "load_into"),
    "strict": (True, "bool", "load_into"),
}
BOTH = {
    "verify": ("auto", "Verify", "open"),
    "limits": (None, "Mapping[str, int] | None", "open"),
    "progress": (None, "Progress | None", "load"),
}
EVERY = SAVING | LOADING | BOTH
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
CORE = ("", "sharded", "editing", "tf", "types", "report", "huggingface")
ADAPTERS = ("torch", "jax", "keras")


def calls(doors: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    """The public functions and methods, by the names that users call them by."""
    found: dict[str, Callable[..., Any]] = {}
    for door in doors:
        module = importlib.import_module(f"ckptfmt.{door}".rstrip("."))
        for name in module.__all__:
            value, where = getattr(module, name), f"{door}.{name}".lstrip(".")
            if not callable(value) or value in found.values() or _is_result(value):
                continue
            if not isinstance(value, type):
                found[where] = value
                continue
            found[where] = value
            for method, one in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_") and one not in found.values():
                    found[f"{where}.{method}"] = one
    return found


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
        if name in ("tf.ShardableTensor", "safetensors.save_file"):  # other things
            continue
        assert page.get(name, set()) == {*options}, f"{PAGE}: {name}"
        if "level" in options:  # what writes a level has all options of writing
            assert {one.name for one in fields(SaveOptions)} <= {*options}, name
        doc = inspect.getdoc(call) or ""
        for option, parameter in options.items():
            if (name, option) in OTHERS:
                continue
            default, annotation, home = EVERY[option]
            assert parameter.kind == inspect.Parameter.KEYWORD_ONLY or option == "names", name
            assert parameter.default == default, f"{name}: {option}={parameter.default!r}"
            assert str(parameter.annotation) == annotation, f"{name}: {option}"
            if name != home:
                assert _refers(doc, option, home), f"{name}: {option} is described elsewhere"


def _refers(doc: str, option: str, home: str) -> bool:
    """Whether the text says that the option is that of another call."""
    if re.search(r"^(\s*As in `\w+`|.*\bas `\w+` does\b)", doc, re.M):
        return True
    entry = re.search(rf"^ *(?:\w+, )*{option}(?:, \w+)*: (.*(?:\n {{8,}}.*)*)", doc, re.M)
    text = " ".join((entry[1] if entry else "").split())
    others = {"Writer": "Writer|save", "load": "load|save|save_async", "open": "open|load"}
    return re.search(rf"as in `?(?:ckptfmt\.)?(?:{others.get(home, home)})\b", text) is not None
