# SPDX-License-Identifier: Apache-2.0
"""Section 24: what a reader does, step by step."""

import bisect
import itertools
import os

from .entries import STRING, TYPES, VARIANT, no_value, read_entry, read_header
from .index import (
    EMPTY_BLOCK,
    block_contents,
    block_entries,
    data_name,
    footer,
    handle,
    in_file,
    is_v1,
    open_regular,
    pread,
    separator,
    successor,
)
from .objects import decode_graph
from .rules import LIMITS, at, crc32c, mask, need, u32
from .slices import (
    check_extents,
    check_overlaps,
    elements,
    intersection,
    key_name,
    missing_box,
    runs,
    slice_box,
    slice_key,
)
from .values import (
    check_extension,
    parse_metadata,
    read_chunk,
    read_strings,
    read_variants,
    swap,
    to_array,
)


class Bundle:
    """An open checkpoint: the index is checked now; blocks, entries and values when asked for.

    header: num_shards, endianness, version. notes: oddities met, as (name, offset in the index
    file; that of the block if inside Snappy). verified: whether checksums cover the last read.
    """

    def __init__(self, prefix, consumer=2):
        self.prefix, self.consumer = os.fspath(prefix), consumer
        self.notes, self.verified = [], True
        self._noted, self._blocks, self._entries, self._files, self._keys = set(), {}, {}, {}, 0
        nul = "\0" in self.prefix
        need(not nul, "NAM-1", "BAD_PATH", "a NUL byte in the prefix")
        self.path = self.prefix + ".index"
        with at(self.path):
            self._load_index()
            self._open_table()

    # Open

    def _load_index(self):
        fd = open_regular(self.path)
        if fd is None:
            need(not is_v1(self.prefix), "NAM-9", "UNSUPPORTED", "a V1 checkpoint")
            need(False, "NAM-2", "CHECKPOINT_NOT_FOUND", "no index file")
        with open(fd, "rb") as file:
            self._stat = os.fstat(fd)
            need(self._stat.st_size <= LIMITS["index"], "TAB-13", "LIMIT", "size of the index")
            self.data = file.read()

    def _note(self, oddity, offset):
        if (oddity, offset) not in self._noted:
            self._noted.add((oddity, offset))
            self.notes.append((oddity, offset))

    def _open_table(self):
        data, note = self.data, self._note
        meta, (offset, size) = footer(data, note)
        in_file(offset, size, data)
        with at(f"index block at {offset}"):
            contents, inside = block_contents(data, offset, size, note)
            self._index, end, gap = [], 0, False  # index key, offset, size of each data block
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
        first = self._block(0) if self._index else {}
        need(next(iter(first), None) == b"", "HDR-1", "BAD_HEADER", "no header")
        contents, start, stop, inside = first[b""]
        self.header = read_header(contents, start, stop, self.consumer, inside)
        self._big = self.header["endianness"] == 1

    def _block(self, i):
        """The entries of a data block: key -> contents, start and end of value, note."""
        if i in self._blocks:
            return self._blocks[i]
        top, offset, size = self._index[i]
        out, first, position, before = {}, None, 0, 0
        with at(f"block at {offset}"):
            contents, note = block_contents(self.data, offset, size, self._note)
            for key, start, stop, position, restarts in block_entries(contents, False, note):
                self._keys += len(key)
                self._check_listed(self._keys)
                if out and len(key) + stop - start >= 524288:
                    note("BLOCK_SIZE", position)  # TAB-9
                first = key if first is None else first
                before = position + 4 * restarts + 4 if out else 0
                out[key] = (contents, start, stop, note)
            if out:
                low = self._index[i - 1][0] if i else None
                need(low is None or first > low, "TAB-5", "BAD_ORDER", f"first key {first[:80]!r}")
                need(key <= top, "TAB-5", "BAD_ORDER", f"last key {key[:80]!r}")
            if not out or before >= 262144:
                note("BLOCK_SIZE", position)  # TAB-9: the block should have ended before
        self._blocks[i] = out
        return out

    # Look a name up

    def _place(self, key):
        i = bisect.bisect_left(self._index, key, key=lambda block: block[0])
        return self._block(i).get(key) if i < len(self._index) else None

    def _find(self, key, own=False):
        """The entry under a key, or None (TAB-12); own: the key is that of a slice."""
        if key not in self._entries:
            place = self._place(key)
            if place is None:
                return None
            with at(f"entry of {key[:80]!r}"):
                self._entries[key] = read_entry(*place, own)
        return self._entries[key]

    def _is_slice(self, key):
        """Whether some tensor's entry lists the key (KEY-6)."""
        name, _ = key_name(key) or (b"", 0)
        parent = self._find(name) if name and not self._is_slice(name) else None
        return bool(parent) and any(slice_key(name, extents) == key for extents in parent.slices)

    def entry(self, name):
        """The decoded entry of a tensor, and its slices' own (None where missing)."""
        own = self._is_slice(name)
        need(not own, "KEY-6", "TENSOR_NOT_FOUND", f"{name!r} is the key of a slice")
        entry = self._find(name, own) if name else None
        need(entry, "TAB-12", "TENSOR_NOT_FOUND", f"{name!r}")
        if not entry.slices:
            return entry, []
        if entry.offset or entry.size or entry.crc32c:
            entry.at[3]("SLICE_LOCATION", entry.at[1])  # ENT-7
        self._check_listed(len(name) * len(entry.slices))
        keys = (slice_key(name, extents) for extents in entry.slices)
        # TAB-13: a key above the limit is in no index.
        return entry, [self._find(k, True) if len(k) <= LIMITS["key"] else None for k in keys]

    def _check_listed(self, size):
        """The limit of decoded keys (TAB-13)."""
        need(size <= max(LIMITS["keys"], 16 * len(self.data)), "TAB-13", "LIMIT", "size of keys")

    # List

    def names(self):
        """Names of all tensors in key order, after checking every block and every entry."""
        with at(self.path):
            keys = []
            for i in range(len(self._index)):
                keys += self._block(i)
                need(len(keys) <= LIMITS["entries"], "TAB-13", "LIMIT", "number of entries")
            self._note_blocks()
            hidden, listed = set(), 0
            for key in sorted(keys[1:], key=len):  # a slice key is longer than the tensor's name
                entry = self._find(key, key in hidden)
                if entry.slices:
                    listed += len(key) * len(entry.slices)
                    self._check_listed(listed)
                    hidden.update(slice_key(key, extents) for extents in entry.slices)
                    self.entry(key)
            return [key for key in keys[1:] if key not in hidden]

    def _note_blocks(self):
        """Oddities that take two blocks: TAB-7, TAB-8 and the end of a block by TAB-9."""
        for i, (top, offset, _) in enumerate(self._index):
            block, after = self._block(i), self._block(i + 1) if i + 1 < len(self._index) else None
            if not block or after == {}:
                continue
            last = next(reversed(block))
            following = next(iter(after)) if after else None
            if top != (successor(last) if after is None else separator(last, following)):
                self._note("SEPARATOR", offset)
            if after:
                _, start, stop, _ = after[following]
                full = len(block[last][0]) >= 262144 or len(following) + stop - start >= 524288
                if not full:
                    self._note("BLOCK_SIZE", offset)

    # Read

    def read(self, name, box=None):
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
                need(code != VARIANT or not self._big, "VAR-6", "UNSUPPORTED", "big-endian")
            if entry.slices:
                flat = self._read_slices(entry, parts, box or [(0, n) for n in entry.shape])
            else:
                flat = self._read_value(entry, box, entry.count if box is None else elements(box))
            return to_array(flat, code, entry.shape if box is None else [n for _, n in box])

    def _read_slices(self, entry, parts, box):
        for extents in entry.slices:
            check_extents(extents, entry.shape)
        check_overlaps(entry.slices)
        boxes = [slice_box(extents, entry.shape) for extents in entry.slices]
        covered = sum(elements(intersection(box, other)) for other in boxes)
        if covered != elements(box):
            need(False, "SLC-11", "BAD_SLICE", f"{missing_box(box, boxes)} is in no slice")
        pieces = []
        for own, place in zip(parts, boxes, strict=True):
            wanted = intersection(box, place)
            if not elements(wanted):
                continue
            with at(f"slice {place}"):
                need(own is not None, "SLC-7", "BAD_SLICE", "no entry under the slice key")
                need(own.dtype == entry.dtype, "SLC-8", "BAD_SLICE", f"data type {own.dtype}")
                need(own.shape == [n for _, n in place], "SLC-9", "BAD_SLICE", f"shape {own.shape}")
                inside = [
                    (s - origin, n) for (s, n), (origin, _) in zip(wanted, place, strict=True)
                ]
                own_box = check_box(inside, own.shape)
                pieces.append((wanted, self._read_value(own, own_box, elements(box))))
        size = TYPES[entry.dtype][1] or 1
        out = bytearray(elements(box) * size) if TYPES[entry.dtype][1] else [b""] * elements(box)
        for wanted, flat in pieces:
            inside = [(s - origin, n) for (s, n), (origin, _) in zip(wanted, box, strict=True)]
            pos = 0
            for first, n in runs([n for _, n in box], inside):
                out[first * size : (first + n) * size] = flat[pos : pos + n * size]
                pos += n * size
        return out

    def _read_value(self, entry, box, given):
        """The step *Value*: flat bytes, or a list of bytes, of a whole value or a box of it.

        given is the number of elements that the whole request gives (TAB-13).
        """
        with at(self.path):
            check_extension(entry, self._big, self.consumer)
            shards = self.header["num_shards"]
            need(0 <= entry.shard_id < shards, "ENT-3", "BAD_ENTRY", f"shard_id {entry.shard_id}")
            good = entry.offset >= 0 and entry.size >= 0 and entry.offset + entry.size < 1 << 63
            need(good, "ENT-4", "BAD_ENTRY", f"offset {entry.offset}, size {entry.size}")
            _, element, unit, _ = TYPES.get(entry.dtype, ("", None, 1, None))
            raw = entry.ext["raw_size"] if entry.compressed else entry.size
            if element:
                need(raw == entry.count * element, "ENT-5", "BAD_ENTRY", f"{raw} for {entry.shape}")
            if entry.compressed:
                most = LIMITS["expansion"] * (entry.size + entry.bytes)
                good = raw <= most and raw <= LIMITS["value"]
                need(good, "CMP-20", "LIMIT", f"{raw} bytes from {entry.size}")
            total = given * element if element else raw
            need(total <= LIMITS["value"], "TAB-13", "LIMIT", f"{total} bytes")
        path = data_name(self.prefix, entry.shard_id, shards)
        with at(f"{path} at {entry.offset}"):
            fd = self._file(entry.shard_id, path)
            length = os.fstat(fd).st_size
            good = entry.size == 0 or length >= entry.offset + entry.size
            need(good, "DAT-2", "TRUNCATED", f"{length} bytes")
            if element == 0:
                least = entry.count + 4 if entry.dtype == STRING else 5 * entry.count
                good = raw >= least or (entry.count == raw == 0)
                rule = "STR-2" if entry.dtype == STRING else "VAR-2"
                need(good, rule, "BAD_ENTRY", f"{raw} bytes")
            if box is not None and element:
                flat = self._read_part(fd, entry, box, raw, element)
                return flat if not self._big else swap(flat, unit)
            value, checksum = self._read_whole(fd, entry, raw), entry.crc32c
            if entry.compressed:
                checksum = mask(entry.ext.get("raw_crc32c", 0))
            if entry.dtype == STRING:
                flat = read_strings(value, entry.count, checksum, self._big)
            elif entry.dtype == VARIANT:
                flat = read_variants(value, entry.count, checksum)
            else:
                rule = "CMP-19" if entry.compressed else "DAT-6" if entry.size else "ENT-8"
                need(mask(crc32c(value)) == checksum, rule, "CHECKSUM", "value")
                return swap(value, unit) if self._big else value
            if box is None:
                return flat
            return [x for first, n in runs(entry.shape, box) for x in flat[first : first + n]]

    def _chunk(self, fd, entry, i, raw):
        """The raw bytes of chunk i, compared with its checksum (EXT-9, CMP-11)."""
        size, sizes = entry.ext["chunk_size"], entry.ext.get("sizes")
        if sizes is not None and "starts" not in entry.ext:
            entry.ext["starts"] = list(itertools.accumulate(sizes, initial=entry.offset))  # CMP-7
        n = min(size, raw - i * size)
        start, length = entry.offset + i * size, n
        if sizes is not None:
            start, length = entry.ext["starts"][i], sizes[i]
        chunk = pread(fd, start, length)
        need(len(chunk) == length, "DAT-2", "TRUNCATED", f"chunk {i}")
        stored = u32.unpack_from(entry.ext["chunk_crcs"], 4 * i)[0]
        with at(f"chunk {i} at {start}"):
            need(crc32c(chunk) == stored, "CMP-11" if sizes else "EXT-9", "CHECKSUM")
            return chunk if sizes is None else read_chunk(chunk, n, TYPES[entry.dtype][2])

    def _read_whole(self, fd, entry, raw):
        if entry.compressed:
            return b"".join(self._chunk(fd, entry, i, raw) for i in range(len(entry.ext["sizes"])))
        value = pread(fd, entry.offset, entry.size)
        need(len(value) == entry.size, "DAT-2", "TRUNCATED", "the file shrank")
        return value

    def _read_part(self, fd, entry, box, raw, element):
        """A box of a FIXED value: only the chunks that have a byte of it (EXT-9, CMP-21)."""
        out, size, held, chunk = bytearray(), entry.ext.get("chunk_size", 0), None, b""
        self.verified = self.verified and size > 0
        for first, n in runs(entry.shape, box):
            pos, end = first * element, (first + n) * element
            if not size:
                out += pread(fd, entry.offset + pos, end - pos)
            while size and pos < end:
                i = pos // size
                if i != held:
                    held, chunk = i, self._chunk(fd, entry, i, raw)
                stop = min(end, (i + 1) * size)
                out += chunk[pos - i * size : stop - i * size]
                pos = stop
        need(len(out) == elements(box) * element, "DAT-2", "TRUNCATED", "the file shrank")
        return bytes(out)

    def _file(self, shard, path):
        """The descriptor of a data file of this very generation (NAM-5, CMT-12)."""
        if shard not in self._files:
            fd = open_regular(path)
            if fd is not None:
                self._files[shard] = fd
            try:
                now = os.stat(self.path)
                known = (self._stat.st_dev, self._stat.st_ino, len(self.data))
                same = (now.st_dev, now.st_ino, now.st_size) == known
                if same and now.st_ctime_ns != self._stat.st_ctime_ns:
                    with open(self.path, "rb") as file:
                        file.seek(-48, os.SEEK_END)
                        same = file.read() == self.data[-48:]
            except OSError:
                same = False
            need(same, "CMT-12", "GENERATION_GONE", "another index is in force")
            need(fd is not None, "NAM-5", "SHARD_MISSING", path)
        return self._files[shard]

    # Metadata and objects

    def _one_string(self, name, rule):
        entry, _ = self.entry(name)
        value = self.read(name)
        need(entry.dtype == STRING and not entry.shape, rule, "BAD_ENTRY", "no scalar string")
        return value.item()

    @property
    def metadata(self):
        name = b"_CKPTFMT_METADATA"
        return parse_metadata(self._one_string(name, "EXT-7")) if self._find(name) else {}

    def objects(self):
        """The nodes of the object graph; None without one."""
        name = b"_CHECKPOINTABLE_OBJECT_GRAPH"
        if not self._find(name):
            return None
        with at(self.prefix):
            return decode_graph(self._one_string(name, "OBJ-1"))

    def close(self):
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

    def __del__(self):
        self.close() if "_files" in self.__dict__ else None


def check_box(box, shape):
    """None for the whole of a tensor; a box must lie in it."""
    if box is None:
        return None
    box = [(int(start), int(length)) for start, length in box]
    good = len(box) == len(shape) and all(
        s >= 0 <= n and s + n <= size for (s, n), size in zip(box, shape, strict=True)
    )
    need(good, "TXT-6", "ARGUMENT", f"box {box} of {shape}")
    return None if box == [(0, size) for size in shape] else box


def read_all(prefix):
    bundle = Bundle(prefix)
    return {name: bundle.read(name) for name in bundle.names()}
