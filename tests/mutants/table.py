# SPDX-License-Identifier: Apache-2.0
"""The table of one-line faults, rows.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
C_PROGRAM = "tests/c/"


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        fault: what is wrong with the changed code.
        file: the file, relative to the repository.
        old: text that occurs once in it.
        new: what replaces that text.
        tests: pytest node ids, or C test programs by their source files; at least one must fail.
        always: whether it runs with every change.
    """

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    always: bool = False

    @property
    def is_c(self) -> bool:
        """Whether the fault or a test needs a build."""
        return self.file.startswith("csrc/") or any(map(is_program, self.tests))


def is_program(test: str) -> bool:
    return test.startswith(C_PROGRAM)


def rows() -> list[Row]:
    """All rows, in the order of the table."""
    with open(Path(__file__).with_name("rows.toml"), "rb") as stream:
        found = tomllib.load(stream)["row"]
    return [Row(**{**one, "tests": tuple(one["tests"])}) for one in found]
