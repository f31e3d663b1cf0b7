# SPDX-License-Identifier: Apache-2.0
"""Builds `ckptfmt._ckptfmt`, the cffi module: all of csrc/ plus one generated file.

The declarations come from csrc/ckptfmt*.h and the headers in csrc/python/, from the lines between
their two cffi markers. A copy kept by hand would drift: cffi converts a size_t that was declared
uint32_t without a word. The version comes from pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

import numpy as np
from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADER = HERE / "csrc" / "ckptfmt.h"
UNSTABLE = HERE / "csrc" / "ckptfmt_unstable.h"
OWN_HEADERS = [
    HERE / "csrc" / "python" / name for name in ("arrays.h", "dlpack.h", "reading.h", "slot.h")
]

# Functions of Python that C calls.
CALLBACKS = """
extern "Python" {
    int32_t cf_progress_report(void *context, uint64_t bytes_done, uint64_t bytes_total);
    ckptfmt_status cf_codec_encode(void *context, ckptfmt_codec_item *items, uint64_t count);
    ckptfmt_status cf_codec_decode(void *context, ckptfmt_codec_item *items, uint64_t count);
    ckptfmt_status cf_storage_info(void *, const char *, ckptfmt_object_info *, int32_t *,
        ckptfmt_error *);
    ckptfmt_status cf_storage_list(void *, const char *, void (*)(void *to, const char *name),
        void *, ckptfmt_error *);
    ckptfmt_status cf_storage_open(void *, const char *, void **, ckptfmt_object_info *,
        ckptfmt_error *);
    ckptfmt_status cf_storage_read_batch(void *, ckptfmt_object_read *, uint64_t, ckptfmt_error *);
    ckptfmt_status cf_storage_create(void *, const char *, void **, int32_t *, ckptfmt_error *);
    ckptfmt_status cf_storage_append(void *, void *, const uint8_t *, uint64_t, ckptfmt_error *);
    ckptfmt_status cf_storage_finish(void *, void *, ckptfmt_error *);
    ckptfmt_status cf_storage_object_info(void *, void *, ckptfmt_object_info *, ckptfmt_error *);
    void cf_storage_close(void *, void *);
    ckptfmt_status cf_storage_adopt(void *, const char *, const char *, int32_t *,
        ckptfmt_error *);
    ckptfmt_status cf_storage_publish(void *, const char *, const char *, int32_t, int32_t *,
        ckptfmt_error *);
    ckptfmt_status cf_storage_remove(void *, const char *, ckptfmt_error *);
}
"""


def declarations(header: Path = HEADER) -> str:
    """The declarations of a header, as cffi parses them."""
    text = header.read_text(encoding="utf-8")
    begin, end = "/* cffi: begin */", "/* cffi: end */"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{header}: expected exactly one '{begin}' and one '{end}'")
    region = text[text.index(begin) + len(begin) : text.index(end)]
    return re.sub(r"\bCKPTFMT_API\b", "", region)


def version() -> str:
    """The version of the project, from the one place where it stands."""
    with open(HERE / "pyproject.toml", "rb") as stream:
        return str(tomllib.load(stream)["project"]["version"])


def relative(paths: list[Path]) -> list[str]:
    """The paths relative to the project, as setuptools wants them."""
    return sorted(str(path.relative_to(HERE)) for path in paths)


ffi = FFI()
ffi.cdef("".join(map(declarations, [HEADER, UNSTABLE, *OWN_HEADERS])) + CALLBACKS)
ffi.set_source(
    "ckptfmt._ckptfmt",
    "".join(
        f'#include "{header.relative_to(HERE / "csrc")}"\n' for header in [UNSTABLE, *OWN_HEADERS]
    ),
    sources=relative(list((HERE / "csrc").glob("*/*.c"))),
    depends=relative(
        [*(HERE / "csrc").glob("*.h"), *(HERE / "csrc").glob("*/*.h"), HERE / "pyproject.toml"]
    ),
    include_dirs=["csrc", np.get_include()],
    define_macros=[
        ("Py_LIMITED_API", "0x030b0000"),
        ("CKPTFMT_VERSION", f'"{version()}"'),
        ("_GNU_SOURCE", "1"),
    ],
    extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
