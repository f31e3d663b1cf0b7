# SPDX-License-Identifier: Apache-2.0
"""The boundary to C: the only package that uses `ffi` and `lib`. It holds no policy.

Three kinds of things cross it:

- **Handles** (`ReaderHandle`, `WriterHandle`) own a C object from the moment it is created. A
  handle may be closed while other threads are inside a call: the last call to return frees the
  object. In a forked child a reader opens its checkpoint again; other handles refuse
  every call, and closing them touches nothing, because the files belong to the parent.
- **Columns** are arrays of C structs seen as numpy structured arrays, whose fields come from the
  parsed header. A batch of any size is one call.
- **Views** (`Selection`, mappings, `Memory`) are C memory that Python reads. Each view's base chain
  ends in an object that owns the memory, which is freed with the last view.

border.py       constants, errors, paths, options and handles
library.py      dtypes, checksums, counters, slice texts
reading.py      readers, and the tensors that they list or select
writing.py      writers, and merge
verifying.py    verification
salvaging.py    damaged indexes
storage.py      storages written in Python
codec.py        codecs written in Python
callbacks.py    exceptions of Python code that C calls
columns.py      C structs as numpy columns
memory.py       memory of copies and arrays
dlpack.py       DLPack capsules as arrays
remembering.py  a cached property that a forked child can use
"""

from ckptfmt._core.border import (
    DURABILITY,
    ERROR_BY_FAILURE,
    ERROR_BY_STATUS,
    NO_OFFSET,
    RANK_MAX,
    SEVERITY_NOTE,
    STORAGE_FIXED,
    STORAGE_NONE,
    STORAGE_STRING,
    STORAGE_VARIANT,
    STORED_COMPRESSED,
    STORED_MISSING,
    VERIFY,
    error_of,
    path_bytes,
    text,
    version,
)
from ckptfmt._core.codec import EFFORT_FAST, EFFORT_FULL, Codec, Coder, copy_to, memory_at
from ckptfmt._core.columns import (
    BYTES,
    NUMPY_RANK_MAX,
    REQUEST,
    SOURCE,
    PlainArrays,
    address,
    addresses,
    distinct,
)
from ckptfmt._core.dlpack import array_of_capsule
from ckptfmt._core.library import DtypeInfo, counters, crc32c, dtype_table, parse_spec
from ckptfmt._core.memory import Memory, copy_size, new_array
from ckptfmt._core.reading import (
    ReaderHandle,
    Record,
    Selection,
    index_count,
    is_local,
    sweep,
    sweep_before_save,
)
from ckptfmt._core.remembering import cached_property
from ckptfmt._core.salvaging import (
    REGION_DATA,
    REGION_FOOTER,
    REGION_INDEX,
    SALVAGE_LIKELY,
    SALVAGE_LOST,
    SALVAGE_REPAIRED,
    Damage,
    Salvage,
    salvage_index,
)
from ckptfmt._core.storage import Adopted, ObjectInfo, Read, Storage, Store
from ckptfmt._core.verifying import Finding, verify
from ckptfmt._core.writing import WriterHandle, merge

__all__ = [
    "BYTES",
    "DURABILITY",
    "EFFORT_FAST",
    "EFFORT_FULL",
    "ERROR_BY_FAILURE",
    "ERROR_BY_STATUS",
    "NO_OFFSET",
    "NUMPY_RANK_MAX",
    "RANK_MAX",
    "REGION_DATA",
    "REGION_FOOTER",
    "REGION_INDEX",
    "REQUEST",
    "SALVAGE_LIKELY",
    "SALVAGE_LOST",
    "SALVAGE_REPAIRED",
    "SEVERITY_NOTE",
    "SOURCE",
    "STORAGE_FIXED",
    "STORAGE_NONE",
    "STORAGE_STRING",
    "STORAGE_VARIANT",
    "STORED_COMPRESSED",
    "STORED_MISSING",
    "VERIFY",
    "Adopted",
    "Codec",
    "Coder",
    "Damage",
    "DtypeInfo",
    "Finding",
    "Memory",
    "ObjectInfo",
    "PlainArrays",
    "Read",
    "ReaderHandle",
    "Record",
    "Salvage",
    "Selection",
    "Storage",
    "Store",
    "WriterHandle",
    "address",
    "addresses",
    "array_of_capsule",
    "cached_property",
    "copy_size",
    "copy_to",
    "counters",
    "crc32c",
    "distinct",
    "dtype_table",
    "error_of",
    "index_count",
    "is_local",
    "memory_at",
    "merge",
    "new_array",
    "parse_spec",
    "path_bytes",
    "salvage_index",
    "sweep",
    "sweep_before_save",
    "text",
    "verify",
    "version",
]
