# SPDX-License-Identifier: Apache-2.0
"""Section 4: what a reader does, step by step."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from .entries import STRING, TYPES, VARIANT, Entry, no_value, read_entry, read_header
from .index import (
    EMPTY_BLOCK,
    Place,
    block_contents,
    block_entries,
    data_name,
    footer,
    handle,
    in_file,
    is_v1,
    open_regular,
    read_at,
    separator,
    successor,
)
from .messages import Message
from .objects import decode_graph
from .rules import LIMITS, Violation, at, crc32c, found, need, u32
from .slices import (
    Box,
    check_extents,
    check_overlaps,
    elements,
    intersection,
    missing_box,
    runs,
    slice_box,
    slice_key,
    split_slice_key,
)
from .values import (
    Array,
    Flat,
    check_elements,
    check_value,
    chunk_place,
    parse_metadata,
    read_chunk,
    swap,
    take_value,
    to_array,
)

T = TypeVar("T")
Path: TypeAlias = str | os.PathLike[str]
Attempt: TypeAlias = Callable[..., Any]  # takes a function and what to call it with


def once(call: Callable[..., T], *arguments: Any) -> T:
    """An attempt that ends all where it fails; verifying goes on."""
    return call(*arguments)


class Bundle:
    """An open checkpoint: the index is checked now; blocks, entries and values when asked for.

    header: num_shards, endianness, version. deviations: those found so far, as (name, offset in
    the index file; that of the block if inside Snappy). verified: whether checksums cover the
    last read.
    """

    def __init__(self, prefix: Path, consumer: int = 2) -> None:
        self.prefix, self.consumer = os.fspath(prefix), consumer
        self.path = self.prefix + ".index"
        self.deviations: dict[tuple[str, int], None] = {}
        self.verified = True
        self._blocks: dict[int, dict[bytes, Place]] = {}
        self._keys = 0  # bytes of the keys in them
        self.entries: dict[bytes, Entry] = {}
        self._files: dict[int, int] = {}
        need("\0" not in self.prefix, "NAM-1", "BAD_PATH", "a NUL byte in the prefix")
        with at(self.path):
            self._load()
            self._open_table()
            first = self.block(0) if self._index else {}
            need(next(iter(first), None) == b"", "HDR-1", "BAD_HEADER", "no header")
            self.header = read_header(first[b""], consumer)
        self.shards: int = self.header["num_shards"]
        self.big: bool = self.header["endianness"] == 1

    # Open

    def _load(self) -> None:
        fd = open_regular(self.path)
        need(fd is not None or not is_v1(self.prefix), "NAM-9", "UNSUPPORTED", "a V1 checkpoint")
        fd = found(fd, "NAM-2", "CHECKPOINT_NOT_FOUND", "no index file")
        with open(fd, "rb") as file:
            self._stat = os.fstat(fd)
            need(self._stat.st_size <= LIMITS["index"], "TAB-13", "LIMIT", "size of the index")
            self.data = file.read()

    def _note(self, deviation: str, offset: int) -> None:
        self.deviations[deviation, offset] = None

    def _open_table(self) -> None:
        data, note = self.data, self._note
        meta, (offset, size) = footer(data, note)
        in_file(offset, size, data)
        # Index key, offset and size of each data block.
        self._index: list[tuple[bytes, int, int]] = []
        with at(f"index block at {offset}"):
            contents, inside = block_contents(data, offset, size, note)
            end, gap = 0, False
            for key, start, stop, _, _ in block_entries(contents, True, inside):
                begin, length, pos = handle(contents, start, stop, "TAB-2", inside)
                if pos != stop:
                    inside("HANDLE_TAIL", pos)  # TAB-3
                in_file(begin, length, data)
                need(begin >= end, "TAB-4", "BAD_BLOCK", f"block at {begin} before {end}")
                gap |= begin != end
                end = begin + length + 5
                need(end <= offset, "TAB-4", "BAD_BLOCK", f"block at {begin} after the index")
                self._index.append((key, begin, length))
        if data[meta[0] : meta[0] + 13] != EMPTY_BLOCK or meta[1] != 8:
            note("METAINDEX", meta[0])  # TAB-10
        ends = (meta[0], end + meta[1] + 5, offset + size + 5)
        if gap or ends != (end, offset, len(data) - 48):
            note("TABLE_GAP", end)  # TAB-11

    def block(self, i: int) -> dict[bytes, Place]:
        """The entries of a data block by their keys."""
        if i in self._blocks:
            return self._blocks[i]
        top, offset, size = self._index[i]
        out: dict[bytes, Place] = {}
        first = key = b""
        position = before = 0
        with at(f"block at {offset}"):
            contents, note = block_contents(self.data, offset, size, self._note)
            for key, start, stop, position, restarts in block_entries(contents, False, note):
                self._keys += len(key)
                self._check_listed(self._keys)
                if out and len(key) + stop - start >= 524288:
                    note("BLOCK_SIZE", position)  # TAB-9
                first = first if out else key
                before = position + 4 * restarts + 4 if out else 0
                out[key] = Place(contents, start, stop, note)
            if out:
                good = i == 0 or first > self._index[i - 1][0]
                need(good, "TAB-5", "BAD_ORDER", f"first key {first[:80]!r}")
                need(key <= top, "TAB-5", "BAD_ORDER", f"last key {key[:80]!r}")
            if not out or before >= 262144:
                note("BLOCK_SIZE", position)  # TAB-9: the block should have ended before
        self._blocks[i] = out
        return out

    # Look a name up

    def place(self, key: bytes) -> Place | None:
        i = bisect.bisect_left(self._index, key, key=lambda block: block[0])
        return self.block(i).get(key) if i < len(self._index) else None

    def find(self, key: bytes, own: bool = False) -> Entry | None:
        """The entry under a key, or None (TAB-12); own: the key is that of a slice."""
        if key not in self.entries:
            place = self.place(key)
            if place is None:
                return None
            with at(f"entry of {key[:80]!r}"):
                self.entries[key] = read_entry(place, own)
        return self.entries[key]

    def _is_slice(self, key: bytes) -> bool:
        """Whether some tensor's entry lists the key (KEY-6)."""
        try:
            name, _ = split_slice_key(key)
        except Violation:
            return False
        parent = self.find(name) if name and not self._is_slice(name) else None
        slices = parent.slices if parent else ()
        return any(slice_key(name, extents) == key for extents in slices)

    def entry(self, name: bytes) -> tuple[Entry, list[Entry | None]]:
        """The decoded entry of a tensor, and its slices' own (None where missing)."""
        own = self._is_slice(name)
        need(not own, "KEY-6", "TENSOR_NOT_FOUND", f"{name!r} is the key of a slice")
        entry = self.find(name, own) if name else None
        entry = found(entry, "TAB-12", "TENSOR_NOT_FOUND", f"{name!r}")
        if not entry.slices:
            return entry, []
        if entry.offset or entry.size or entry.crc32c:
            entry.at.note("SLICE_LOCATION", entry.at.start)  # ENT-7
        self._check_listed(len(name) * len(entry.slices))
        keys = (slice_key(name, extents) for extents in entry.slices)
        # TAB-13: a key above the limit is in no index.
        return entry, [self.find(k, True) if len(k) <= LIMITS["key"] else None for k in keys]

    def _check_listed(self, size: int) -> None:
        """The limit of decoded keys (TAB-13)."""
        need(size <= max(LIMITS["keys"], 16 * len(self.data)), "TAB-13", "LIMIT", "size of keys")

    # List

    def keys(self, attempt: Attempt = once) -> list[bytes]:
        """All keys in order, the header's first."""
        keys: list[bytes] = []
        for i in range(len(self._index)):
            keys += attempt(self.block, i) or ()
            need(len(keys) <= LIMITS["entries"], "TAB-13", "LIMIT", "number of entries")
        return keys

    def names(self, attempt: Attempt = once) -> list[bytes]:
        """Names of all tensors in key order, after checking every block and every entry."""
        with at(self.path):
            keys = self.keys(attempt)
            self._note_blocks()
            hidden: set[bytes] = set()
            listed = 0
            for key in sorted(keys[1:], key=len):  # a slice key is longer than the tensor's name
                entry = attempt(self.find, key, key in hidden)
                if entry and entry.slices:
                    listed += len(key) * len(entry.slices)
                    self._check_listed(listed)
                    hidden.update(slice_key(key, extents) for extents in entry.slices)
                    attempt(self.entry, key)
            return [key for key in keys[1:] if key not in hidden]

    def _note_blocks(self) -> None:
        """Deviations that take two blocks: TAB-7, TAB-8 and the end of a block by TAB-9."""
        for i, (top, offset, _) in enumerate(self._index):
            block, after = self._blocks.get(i), self._blocks.get(i + 1)
            last_one = i + 1 == len(self._index)
            if not block or not (after or last_one):
                continue
            last = next(reversed(block))
            following = next(iter(after)) if after else b""
            if top != (separator(last, following) if after else successor(last)):
                self._note("SEPARATOR", offset)
            if after:
                place = after[following]
                size = len(following) + place.stop - place.start
                if len(block[last].contents) < 262144 and size < 524288:
                    self._note("BLOCK_SIZE", offset)

    # Read

    def read(self, name: bytes, box: Box | None = None) -> Array:
        """A tensor, or a box of it, (start, length) for each dimension, as a numpy array.

        Strings and variants are bytes in an object array; an unknown type gives the stored bytes.
        """
        with at(f"tensor {name!r}"):
            self.verified = True
            with at(self.path):
                entry, parts = self.entry(name)
                box = check_box(box, entry.shape)
                code = entry.dtype
                need(not no_value(code), "DTY-5", "BAD_DTYPE", f"data type {code}")
                whole = box is None and not entry.slices and not entry.compressed
                need(code in TYPES or whole, "DTY-6", "UNSUPPORTED", f"data type {code}")
                need(code != VARIANT or not self.big, "VAR-6", "UNSUPPORTED", "big-endian")
            if entry.slices:
                flat = self._read_slices(entry, parts, box or [(0, n) for n in entry.shape])
            else:
                flat = self.value(entry, box, entry.count if box is None else elements(box))
            return to_array(flat, entry.type, entry.shape if box is None else [n for _, n in box])

    def _read_slices(self, entry: Entry, parts: Sequence[Entry | None], box: Box) -> Flat:
        pieces: list[tuple[Box, Flat]] = []
        for wanted, place, part in self.wanted(entry, parts, box):
            with at(f"slice {place}"):
                own = check_part(entry, part, place)
                own_box = check_box(inside(wanted, place), own.shape)
                pieces.append((wanted, self.value(own, own_box, elements(box))))
        size, n = entry.type.size or 1, elements(box)
        out: Any = bytearray(n * size) if entry.type.size else [b""] * n
        for wanted, flat in pieces:
            pos = 0
            for first, n in runs([n for _, n in box], inside(wanted, box)):
                out[first * size : (first + n) * size] = flat[pos : pos + n * size]
                pos += n * size
        return out if isinstance(out, list) else bytes(out)

    def wanted(
        self, entry: Entry, parts: Sequence[Entry | None], box: Box
    ) -> list[tuple[Box, Box, Entry | None]]:
        """What is wanted of each slice that has some of it, its place, and its own entry."""
        for extents in entry.slices:
            check_extents(extents, entry.shape)
        check_overlaps(entry.slices)
        boxes = [slice_box(extents, entry.shape) for extents in entry.slices]
        cut = [intersection(box, other) for other in boxes]
        if sum(map(elements, cut)) != elements(box):
            need(False, "SLC-11", "BAD_SLICE", f"{missing_box(box, boxes)} is in no slice")
        return [one for one in zip(cut, boxes, parts, strict=True) if elements(one[0])]

    def value(self, entry: Entry, box: Box | None, given: int) -> Flat:
        """The step *Value*: the elements of a whole value or of a box of it.

        given is the number of elements that the whole request gives (TAB-13).
        """
        with at(self.path):
            check_value(entry, self.shards, self.big, self.consumer)
            total = given * entry.type.size if entry.type.size else entry.raw_size
            need(total <= LIMITS["value"], "TAB-13", "LIMIT", f"{total} bytes")
        fd = self.data_file(entry)
        with at(f"{self.data_path(entry)} at {entry.offset}"):
            check_elements(entry)
            if box is not None and entry.type.size:
                part = self._read_part(fd, entry, box)
                return swap(part, entry.type.unit) if self.big else part
            flat = take_value(entry, self._read_whole(fd, entry), self.big)
            if box is None or isinstance(flat, bytes):
                return flat
            return [x for first, n in runs(entry.shape, box) for x in flat[first : first + n]]

    def stored_chunk(self, fd: int, entry: Entry, i: int) -> bytes:
        """Chunk i as it is stored, compared with its checksum (EXT-9, CMP-11)."""
        start, size = chunk_place(entry, i)
        chunk = read_at(fd, start, size)
        stored = u32.unpack_from(entry.ext["chunk_crcs"], 4 * i)[0]
        rule = "CMP-11" if entry.compressed else "EXT-9"
        need(crc32c(chunk) == stored, rule, "CHECKSUM", f"chunk {i} at {start}")
        return chunk

    def _chunk(self, fd: int, entry: Entry, i: int) -> bytes:
        """The raw bytes of chunk i."""
        chunk, size = self.stored_chunk(fd, entry, i), entry.ext["chunk_size"]
        if not entry.compressed:
            return chunk
        with at(f"chunk {i}"):
            return read_chunk(chunk, min(size, entry.raw_size - i * size), entry.type.unit)

    def _read_whole(self, fd: int, entry: Entry) -> bytes:
        if entry.compressed:
            return b"".join(self._chunk(fd, entry, i) for i in range(len(entry.ext["sizes"])))
        return read_at(fd, entry.offset, entry.size)

    def _read_part(self, fd: int, entry: Entry, box: Box) -> bytes:
        """A box of a FIXED value: only the chunks that have a byte of it (EXT-9, CMP-21)."""
        element, size = entry.type.size, entry.ext.get("chunk_size", 0)
        out, held, chunk = bytearray(), -1, b""
        self.verified = self.verified and size > 0
        for first, n in runs(entry.shape, box):
            pos, end = first * element, (first + n) * element
            if not size:
                out += read_at(fd, entry.offset + pos, end - pos)
            while size and pos < end:
                i = pos // size
                if i != held:
                    held, chunk = i, self._chunk(fd, entry, i)
                stop = min(end, (i + 1) * size)
                out += chunk[pos - i * size : stop - i * size]
                pos = stop
        return bytes(out)

    def data_path(self, entry: Entry) -> str:
        return data_name(self.prefix, entry.shard_id, self.shards)

    def data_file(self, entry: Entry) -> int:
        """The data file of this very generation (NAM-5, CMT-12), which must hold the value."""
        shard, path = entry.shard_id, self.data_path(entry)
        if shard not in self._files:
            fd = open_regular(path)
            if fd is not None:
                self._files[shard] = fd
            need(self._is_in_force(), "CMT-12", "GENERATION_GONE", "another index is in force")
            need(fd is not None, "NAM-5", "SHARD_MISSING", path)
        size = os.fstat(self._files[shard]).st_size
        good = entry.size == 0 or size >= entry.offset + entry.size or entry.slices
        need(good, "DAT-2", "TRUNCATED", f"{path}: {size} bytes, {entry.size} at {entry.offset}")
        return self._files[shard]

    def _is_in_force(self) -> bool:
        """Whether the index is still the one that was read (CMT-12)."""
        try:
            now = os.stat(self.path)
            if now.st_ctime_ns != self._stat.st_ctime_ns:
                with open(self.path, "rb") as file:
                    file.seek(-48, os.SEEK_END)
                    if file.read() != self.data[-48:]:
                        return False
        except OSError:
            return False
        known = (self._stat.st_dev, self._stat.st_ino, len(self.data))
        return (now.st_dev, now.st_ino, now.st_size) == known

    # Metadata and objects

    def _one_string(self, name: bytes, rule: str) -> bytes:
        entry, _ = self.entry(name)
        value = self.read(name)
        need(entry.dtype == STRING and not entry.shape, rule, "BAD_ENTRY", "no scalar string")
        return bytes(value.item())

    @property
    def metadata(self) -> Any:
        name = b"_CKPTFMT_METADATA"
        return parse_metadata(self._one_string(name, "EXT-7")) if self.find(name) else {}

    def objects(self) -> list[Message] | None:
        """The nodes of the object graph; None without one."""
        name = b"_CHECKPOINTABLE_OBJECT_GRAPH"
        if not self.find(name):
            return None
        with at(self.prefix):
            return decode_graph(self._one_string(name, "OBJ-1"))

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

    def __del__(self) -> None:
        self.close() if "_files" in self.__dict__ else None


def check_box(box: Box | None, shape: Sequence[int]) -> Box | None:
    """None for the whole of a tensor; a box must be inside it."""
    if box is None:
        return None
    good = len(box) == len(shape) and all(
        s >= 0 <= n and s + n <= size for (s, n), size in zip(box, shape, strict=True)
    )
    need(good, "TXT-6", "ARGUMENT", f"box {box} of {shape}")
    return None if list(box) == [(0, size) for size in shape] else box


def check_part(entry: Entry, own: Entry | None, place: Box) -> Entry:
    """The entry of a slice, which must fit its tensor."""
    own = found(own, "SLC-7", "BAD_SLICE", "no entry under the slice key")
    need(own.dtype == entry.dtype, "SLC-8", "BAD_SLICE", f"data type {own.dtype}")
    need(own.shape == [n for _, n in place], "SLC-9", "BAD_SLICE", f"shape {own.shape}")
    return own


def inside(box: Box, place: Box) -> Box:
    """A box as seen from the start of the place around it."""
    return [(s - origin, n) for (s, n), (origin, _) in zip(box, place, strict=True)]


def read_all(prefix: Path) -> dict[bytes, Array]:
    bundle = Bundle(prefix)
    return {name: bundle.read(name) for name in bundle.names()}
