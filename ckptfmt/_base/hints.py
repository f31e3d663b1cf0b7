# SPDX-License-Identifier: Apache-2.0
"""Names in messages: a few of many, and those nearest to a missing one."""

from __future__ import annotations

import difflib
import heapq
import itertools
import os
from collections.abc import Collection

from ckptfmt._base import names
from ckptfmt.errors import shortened

# More names than this are counted in a message.
NAMED_MAX = 8
# A missing name is compared with no more names than this, and in full, which is slow, with the few
# that share the most with it: callers may look for many names that are missing.
COMPARED_MAX = 10_000
COMPARED_IN_FULL = 20


def some(found: Collection[object], quote: str = "'") -> str:
    """Return names for a message, quoted and at most `NAMED_MAX`."""
    shown = ", ".join(
        f"{quote}{shortened(str(name))}{quote}" for name in itertools.islice(found, NAMED_MAX)
    )
    return shown + (f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else "")


def near(name: str, present: Collection[str]) -> str:
    """Return a hint with the names most similar to a missing one, for the end of a message: of
    variables, without the suffix that all of them have."""
    if len(present) > COMPARED_MAX:
        return ""
    name = name.removesuffix(names.VALUE_SUFFIX)
    short = {one.removesuffix(names.VALUE_SUFFIX): one for one in present}

    def shared(other: str) -> int:
        start = os.path.commonprefix([name, other])  # noqa: RUF071 (characters are meant)
        end = os.path.commonprefix([name[::-1], other[::-1]])  # noqa: RUF071
        return len(start) + len(end)

    # The last parts of a path alone are a likely mistake, and the first ones.
    ends, starts = (f"/{name}", f".{name}"), (f"{name}/", f"{name}.")
    found = [one for one in short if one.endswith(ends) or one.startswith(starts)]
    found = found[:COMPARED_IN_FULL]
    if not found:
        likely = heapq.nlargest(COMPARED_IN_FULL, short, shared)
        found = difflib.get_close_matches(name, likely)
    return f"; the nearest are {some([short[one] for one in found])}" if found else ""
