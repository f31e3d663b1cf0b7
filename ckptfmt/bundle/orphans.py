# SPDX-License-Identifier: Apache-2.0
"""Names in a directory of checkpoints, and which of them killed writers may leave as orphaned files
(CMT-15). Names only: no file is opened here, and names are taken literally."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ckptfmt._base.names import INTENT, PART, parse_data_name
from ckptfmt.bundle.state_file import STATE_NAME

# The metrics of checkpoints, beside the state file.
METRICS_NAME = "checkpoint.ckptfmt"

INDEX = ".index"
DATA = ".data-"
# Ours begin with a letter; TensorFlow's are decimal, of any length.
_TEMPORARY = re.compile(r"(?s)(.+)\.tempstate(?:([a-f][0-9a-f]{15})|[0-9]{1,20})")
_DIRECTORY = re.compile(r"(?s)(.+)_temp_[0-9a-f]{16}")
_CLAIM = re.compile(r"(?s)-.+\.claim")
_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


def number_of(name: str, checkpoint_name: str) -> int | None:
    """Return n of the name `<checkpoint_name>-<n>` as managers spell it; None of another name."""
    text = name.removeprefix(f"{checkpoint_name}-")
    return int(text) if text != name and _NUMBER.fullmatch(text) else None


@dataclass
class Files:
    """The names in a directory that belong to one checkpoint.

    Attributes:
        index: whether it has an index.
        data: names of data files, by N of "-of-N".
        intent: whether there is the intent of a merge.
        temporary: files that are being written, or orphaned.
        claims: lock files by which registered savers reserve the name.
        directories: temporary directories.
        foreign: whether TensorFlow may be writing it, or was killed while it did.
    """

    index: bool = False
    data: dict[int, list[str]] = field(default_factory=dict)
    intent: bool = False
    temporary: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    foreign: bool = False


def of_managed(names: Iterable[str], checkpoint_name: str | None) -> dict[str, Files]:
    """Return what belongs to each checkpoint `<checkpoint_name>-<n>` among `names`; to each
    checkpoint, without claims, for None."""
    found: dict[str, Files] = {}
    for name in names:
        owner, kind, num_shards = _belongs(name, checkpoint_name)
        if not owner:
            continue
        files = found.setdefault(owner, Files())
        if kind == "index":
            files.index = True
        elif kind == "intent":
            files.intent = True
        elif kind == "data":
            if num_shards:
                files.data.setdefault(num_shards, []).append(name)
        elif kind == "foreign":
            files.foreign = True
        elif kind == "temporary":
            files.temporary.append(name)
        elif kind == "claim":
            files.claims.append(name)
        elif kind == "directory":
            files.directories.append(name)
    return found


def _belongs(name: str, checkpoint_name: str | None) -> tuple[str, str, int]:
    """As `_parsed`, for the checkpoints of this name; claims are known only by that name."""
    if checkpoint_name is None:
        return _parsed(name)
    if name.startswith(f"{checkpoint_name}-"):
        found = _parsed(name)
        if number_of(found[0], checkpoint_name) is not None:
            return found
        owner, kind = _claimed(name, checkpoint_name)
        if number_of(owner, checkpoint_name) is not None:
            return owner, kind, 0
    return "", "", 0


def other_temporaries(names: Iterable[str], checkpoint_name: str | None) -> list[str]:
    """Return the temporary files among `names` for the state file and the metrics; for None those
    for any file that is not of a checkpoint, such as an export."""
    return [
        name
        for name in names
        if (match := _TEMPORARY.fullmatch(name)) is not None
        and match[2]
        and (
            match[1] in (STATE_NAME, METRICS_NAME)
            or (checkpoint_name is None and not _parsed(name)[0])
        )
    ]


def temporary_directories(names: Iterable[str], checkpoint_name: str) -> list[str]:
    """Return the temporary directories of saves of one checkpoint among `names`."""
    found = ((name, _DIRECTORY.fullmatch(name)) for name in names)
    return [name for name, match in found if match and match[1] == checkpoint_name]


def is_part(name: str) -> bool:
    """Return whether a file in a temporary directory has a name that a save gives."""
    owner, kind, _ = _parsed(name)
    return kind in ("index", "intent", "data", "temporary") and bool(PART.fullmatch(owner))


def _parsed(name: str) -> tuple[str, str, int]:
    """Return the checkpoint that a name belongs to, what it is, and the number of data files that a
    data file's name states, if that is possible; ("", "", 0) of any other name."""
    if DATA in name and (data := parse_data_name(name)):
        is_possible = 0 <= data.shard < data.num_shards
        return data.prefix, "data", data.num_shards if is_possible else 0
    if name.endswith(INDEX):
        return name.removesuffix(INDEX), "index", 0
    if name.endswith(INTENT):
        return name.removesuffix(INTENT), "intent", 0
    if temporary := _TEMPORARY.fullmatch(name):
        owner, kind, _ = _parsed(temporary[1])
        if kind in ("index", "intent", "data"):
            return owner, "temporary" if temporary[2] else "foreign", 0
        return "", "", 0
    if name.endswith("_temp"):
        return name.removesuffix("_temp"), "foreign", 0
    if directory := _DIRECTORY.fullmatch(name):
        return directory[1], "directory", 0
    return "", "", 0


def _claimed(name: str, checkpoint_name: str) -> tuple[str, str]:
    """Return the same for the lock files of registered savers, `<checkpoint>-<saver>.claim`."""
    match = re.match(re.escape(checkpoint_name) + r"-(?:0|-?[1-9][0-9]*)(?=-)", name)
    if match is not None and _CLAIM.fullmatch(name, match.end()):
        return match[0], "claim"
    return "", ""
