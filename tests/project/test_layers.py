# SPDX-License-Identifier: Apache-2.0
"""The layers of the package: each part imports only those above it, no modules import each other,
and adapters are imported by nobody but their users; and the maps that packages have of their files.
csrc/ has its layers in test_tidy.py."""

from __future__ import annotations

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ckptfmt"

# Modules and packages in the root of the package, the lowest first.
PARTS = [
    *("_ckptfmt", "errors", "_core", "_base", "stores", "files", "bundle"),
    *("naming", "formats", "recipe", "saving", "sharded", "objects"),
    *("manager", "editing", "report", "tf", "types"),
    *("torch", "jax", "keras", "huggingface", "safetensors", "hdf5", "mpi"),
    *("__init__", "cli", "__main__"),
]
ADAPTERS = {"torch", "jax", "keras", "huggingface", "safetensors", "hdf5", "mpi"}


def _modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@functools.cache
def imports() -> list[tuple[str, str]]:
    """What each module imports of the package: when it is imported, later, or for types."""
    found = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: imports are absolute"
                whole = [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
                names = [inner if inner in MODULES else str(outer) for outer, inner in whole]
            else:
                continue
            for name in names:
                if name.split(".")[0] == "ckptfmt" and name != module:
                    found.append((module, name))
    return found


def test_each_part_imports_only_those_above_it() -> None:
    assert {part_of(module) for module in MODULES} <= {*PARTS}, "a part without a place"
    wrong = []
    for module, target in imports():
        one, other = part_of(module), part_of(target)
        above = PARTS.index(other) <= PARTS.index(one)
        adapted = other in ADAPTERS and one not in (other, "cli")
        if not above or adapted:
            wrong.append(f"{module} imports {target}: move the code down, or hand the value in")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    found: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, target in imports():
        if target in MODULES and part_of(module) != "__init__":
            found[module].add(target)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_parts_are_imported_through_their_package() -> None:
    """If one thread imports a package that imports a part, and another imports the part, which
    imports the package first, each waits for the other. Commands have one thread."""
    wrong = []
    for package in {part.rpartition(".")[0] for part in MODULES} - {"", "ckptfmt"}:
        inside = [(one, other) for one, other in imports() if one.startswith(package)]
        if not any(one == package and other.startswith(f"{package}.") for one, other in inside):
            continue
        for module, target in imports():
            outside = not module.startswith(package) and part_of(module) != "cli"
            if (
                outside
                and target.startswith(f"{package}.")
                and target in {other for _, other in inside}
            ):
                wrong.append(f"{module} imports {target}: import it from {package}")
    assert wrong == []


def test_each_package_says_its_idea_and_lists_its_files() -> None:
    for init in PACKAGE.glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        modules = {path.name for path in init.parent.glob("*.py")} - {"__init__.py"}
        assert re.match(r".+\.(\n\n|$)", text), f"{init}: its idea, in one line"
        assert sorted(re.findall(r"\w+\.py\b", text)) == sorted(modules), f"{init}: its files"


# Who asks whether a path is a URL, besides files/ and stores/, and why: a text is looked at there,
# not a place.
QUESTIONS = {
    "_base/names.py": 3,  # what a path may be, how an error leads on, and what is relative
    "bundle/reader.py": 1,  # most URLs are prefixes: no request to look first
    "recipe/sources.py": 1,  # other formats are read by path
    "recipe/opening.py": 1,
    "report/html.py": 1,  # how much of it is read
}


def test_what_is_a_url_is_asked_in_one_place() -> None:
    asked, tests = {}, []
    for path in PACKAGE.rglob("*.py"):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        if not name.startswith(("files/", "stores/")):
            count = len(re.findall(r"(?<!def )\bis_url\(|\b_URL\.match\(", text))
            asked |= {name: count - (name == "_base/names.py")} if count else {}
            tests += [name for _ in re.findall(r"[\"']://", text)]
            if not name.startswith("_core/"):
                tests += [name for _ in re.findall(r"\bstore is (?:not )?None", text)]
    assert (asked, tests) == (QUESTIONS, [])
