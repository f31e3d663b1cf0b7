# SPDX-License-Identifier: Apache-2.0
"""The border to C: the only package that touches `ffi` and `lib`. No policy, no names of dtypes.

Three kinds of things cross:

- **Handles** (`ReaderHandle`, `WriterHandle`, `VerifierHandle`) are wrapped in the line that
  creates them. A handle may be closed while other threads are inside a call: the last one out
  frees it. It remembers its process: in a forked child every use raises, and closing touches
  nothing, because the files belong to the parent.
- **Columns** are arrays of C structs seen as numpy structured arrays, whose fields come from the
  parsed header. A batch of any size is one crossing.
- **Views** (`Selection`, mappings, `Memory`) are memory of C that Python sees. Each view's base
  chain ends in an object that owns the memory, which is therefore freed when the last view dies,
  never before.
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
)
from ckptfmt._core.dlpack import array_of_capsule
from ckptfmt._core.library import DtypeInfo, counters, crc32c, dtype_table, parse_spec
from ckptfmt._core.memory import Memory, copy_size, new_array
from ckptfmt._core.reading import (
    ReaderHandle,
    Record,
    Selection,
    index_count,
)
from ckptfmt._core.verifying import Finding, VerifierHandle
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
    "REQUEST",
    "SEVERITY_NOTE",
    "SOURCE",
    "STORAGE_FIXED",
    "STORAGE_NONE",
    "STORAGE_STRING",
    "STORAGE_VARIANT",
    "STORED_COMPRESSED",
    "STORED_MISSING",
    "VERIFY",
    "Codec",
    "Coder",
    "DtypeInfo",
    "Finding",
    "Memory",
    "PlainArrays",
    "ReaderHandle",
    "Record",
    "Selection",
    "VerifierHandle",
    "WriterHandle",
    "address",
    "addresses",
    "array_of_capsule",
    "copy_size",
    "copy_to",
    "counters",
    "crc32c",
    "dtype_table",
    "error_of",
    "index_count",
    "memory_at",
    "merge",
    "new_array",
    "parse_spec",
    "path_bytes",
    "text",
    "version",
]
