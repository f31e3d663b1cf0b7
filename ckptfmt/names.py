# SPDX-License-Identifier: Apache-2.0
"""Names: of the files of a checkpoint, and of tensors as they cross into C."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

from ckptfmt.errors import InvalidError

__all__ = ["DataName", "data_name", "index_name", "parse_data_name", "sharded_filename"]

# Tensors whose names begin so belong to the format: metadata, and what stands in for an empty
# shard.
RESERVED = "_CKPTFMT_"
METADATA = "_CKPTFMT_METADATA"
SHARD_STAND_IN = "_CKPTFMT_SHARD_"

_DATA_NAME = re.compile(r"(?s)(.*)\.data-([0-9]{5,10})-of-([0-9]{5,10})")


class DataName(NamedTuple):
    """What the name of a data file says."""

    prefix: str
    shard: int
    num_shards: int


def sharded_filename(basename: str, shard: int, num_shards: int) -> str:
    """`basename-SSSSS-of-NNNNN`, as TensorFlow's ShardedFilename op: no range check, at least five
    characters each.

    >>> sharded_filename("part", 1, 3)
    'part-00001-of-00003'

    Raises:
        InvalidError: numbers that are none.
    """
    try:
        shard, num_shards = operator.index(shard), operator.index(num_shards)
    except TypeError:
        raise InvalidError(f"shard {shard!r} and num_shards {num_shards!r} are integers") from None
    return f"{basename}-{shard:05d}-of-{num_shards:05d}"


def index_name(prefix: str) -> str:
    """Path of the index file of the checkpoint at `prefix`."""
    return f"{prefix}.index"


def data_name(prefix: str, shard: int, num_shards: int) -> str:
    """Path of one data file of the checkpoint at `prefix`."""
    return sharded_filename(f"{prefix}.data", shard, num_shards)


def parse_data_name(path: str) -> DataName | None:
    """The parts of a data file's path; None if it is not named like one."""
    match = _DATA_NAME.fullmatch(path)
    if match is None:
        return None
    prefix, shard, num_shards = match.groups()
    parsed = DataName(prefix, int(shard), int(num_shards))
    return parsed if data_name(*parsed) == path else None


def tensor_bytes(name: str | bytes) -> bytes:
    """A tensor name as the format stores it: UTF-8, bytes that str cannot hold as surrogate
    escapes."""
    if isinstance(name, str):
        try:
            return name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidError(f"tensor name {name!r} cannot be encoded: {error.reason}") from None
    if isinstance(name, bytes):
        return name
    raise InvalidError(f"a tensor name is str or bytes, not {type(name).__name__}")


def tensor_text(name: str | bytes) -> str:
    """A tensor name as str; the inverse of `tensor_bytes`."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
