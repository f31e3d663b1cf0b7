# SPDX-License-Identifier: Apache-2.0
"""Findings of `verify` for people: many that are alike become one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ckptfmt.bundle.verify import Finding
from ckptfmt.errors import masked

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def fields_of(finding: Finding) -> dict[str, object]:
    """Return the fields of a finding in a JSON document."""
    path = None if finding.path is None else masked(finding.path)
    return {**asdict(finding), "path": path, "rule": finding.error().rule}


@dataclass(frozen=True, slots=True)
class Group:
    """Findings that differ only in tensor, offset and the numbers of their messages.

    Attributes:
        first: the first of them.
        count: their number.
    """

    first: Finding
    count: int = 1

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON document."""
        return {**fields_of(self.first), "count": self.count}

    def __str__(self) -> str:
        line = str(self.first)
        if self.count == 1:
            return line
        what = "tensors" if self.first.tensor is not None else "findings"
        head = f"{self.first.severity}: "
        return f"{head}{self.count:,} {what} like this one: {line.removeprefix(head)}"


def grouped(findings: Iterable[Finding], at_most: int) -> list[Group]:
    """Return the findings in their order. More than `at_most` that are alike become one group in
    the place of the first; 0: no limit."""
    alike: dict[tuple[str, ...], list[tuple[int, Finding]]] = {}
    for place, finding in enumerate(findings):
        message = _NUMBERS.sub("0", finding.message)
        kind = finding.severity, finding.failure, finding.path or "", message
        alike.setdefault(kind, []).append((place, finding))
    groups: dict[int, Group] = {}
    for several in alike.values():
        if at_most and len(several) > at_most:
            place, first = several[0]
            groups[place] = Group(first, len(several))
        else:
            groups |= {place: Group(finding) for place, finding in several}
    return [groups[place] for place in sorted(groups)]
