# SPDX-License-Identifier: Apache-2.0
"""SaveOptions: how a checkpoint is written. Public calls that save have its fields as keywords with
its defaults; below them the record is passed on. docs/options.md describes the options."""

from __future__ import annotations

import copy
import operator
import re
from dataclasses import dataclass, fields
from typing import Any, get_args

from ckptfmt._base.arguments import Durability, Level, check_choice, invalid, wrong

# Bytes; the default of all levels but "v2".
ALIGNMENT = 64
# The highest level of zstd.
_ZSTD_MAX = 22


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """How a checkpoint is written. Checked when it is made, and nowhere else.

    Attributes:
        level, alignment, durability, compression: as in `ckptfmt.Writer`.

    Raises:
        InvalidError: an option of the wrong type or value.
    """

    level: Level = "v2+"
    alignment: int | None = None
    durability: Durability = "full"
    compression: str | None = None

    def __post_init__(self) -> None:
        check_choice("level", self.level, get_args(Level))
        check_choice("durability", self.durability, get_args(Durability))
        if self.compression is not None:
            _check_compression(self.compression, self.level)
        if self.alignment is not None:
            object.__setattr__(self, "alignment", _alignment(self.alignment))

    def of_format(self) -> list[str]:
        """Return the names of the options that differ from the defaults and are only of this
        format: of all but `durability`, which files of other formats have too."""
        return [
            one.name
            for one in fields(SaveOptions)
            if one.name != "durability" and getattr(self, one.name) != one.default
        ]

    @property
    def padding(self) -> int | None:
        """The multiple of bytes at which tensors start; None if they follow each other."""
        return self.alignment or (None if self.level == "v2" else ALIGNMENT)

    @property
    def zstd(self) -> int | None:
        """The level of zstd; None to compress nothing."""
        if self.compression is None:
            return 1 if self.level == "ckptfmt" else None
        return int(self.compression.partition(":")[2] or 1)


def of_part(options: SaveOptions) -> SaveOptions:
    """Return the options of a part of the checkpoint, whose data files the merge syncs."""
    return _but(options, durability="none" if options.durability == "none" else "rename")


def at_level(options: SaveOptions, level: str) -> SaveOptions:
    """Return the same options for another level, that of a checkpoint."""
    return _but(options, level=level)


def _but(options: SaveOptions, **changed: Any) -> SaveOptions:
    made = copy.copy(options)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made


def shared(options: SaveOptions) -> dict[str, Any]:
    """Return by name what must be equal in all processes that save one checkpoint."""
    return {one.name: getattr(options, one.name) for one in fields(SaveOptions)}


def _check_compression(compression: object, level: Level) -> None:
    if not isinstance(compression, str):
        raise wrong("compression", "'zstd', 'zstd:<level>' or None", compression)
    found = re.fullmatch(r"zstd(?::([0-9]{1,2}))?", compression)
    if found is None or not 1 <= int(found[1] or 1) <= _ZSTD_MAX:
        raise invalid(
            "compression",
            f"compression {compression!r} is neither 'zstd' nor 'zstd:1' to 'zstd:{_ZSTD_MAX}'",
        )
    if level == "v2":
        raise invalid("compression", "level 'v2' has no place for compressed values")


def _alignment(given: Any) -> int:
    try:
        size = operator.index(given)
    except TypeError:
        size = None
    if size is None or isinstance(given, bool):
        raise wrong("alignment", "a whole number of bytes", given)
    if not 1 <= size < 2**63:
        raise invalid("alignment", f"alignment {given} is not a positive number of bytes")
    return size
