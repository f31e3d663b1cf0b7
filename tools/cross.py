# SPDX-License-Identifier: Apache-2.0
"""Builds the library, its C example and the wheel for other systems, and checks what they need.

    python tools/cross.py [--record] [TARGET...]

The compiler is zig, of the extra `cross`, which has the headers and libraries of all targets.
Nothing of what is built runs. The symbols that a wheel takes from outside are compared with those
in tools/symbols/; `--record` writes them. Products are in build/cross/. Needs `make python`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import lief
import numpy as np
import ziglang
from wheel.wheelfile import WheelFile

import build_ffi

ROOT = Path(__file__).resolve().parent.parent
os.chdir(ROOT)
OUT = Path("build/cross")
ZIG = Path(ziglang.__file__).with_name("zig")
EXTENSION = "ckptfmt/_ckptfmt.abi3.so"
os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(ROOT / OUT / "zig"))
lief.logging.disable()


class Target(NamedTuple):
    zig: str  # with the oldest version of the system or of glibc
    tag: str
    flags: tuple[str, ...] = ()


# zig turns crc32 off, which the attribute "sse4.2" of a function does not turn on again.
CRC32 = ("-mcrc32",)
TARGETS = {
    "aarch64-macos": Target("aarch64-macos.11.0", "macosx_11_0_arm64"),
    "x86_64-macos": Target("x86_64-macos.11.0", "macosx_11_0_x86_64", CRC32),
    "aarch64-linux": Target("aarch64-linux-gnu.2.28", "manylinux_2_28_aarch64"),
    "x86_64-musl": Target("x86_64-linux-musl", "musllinux_1_2_x86_64", (*CRC32, "-dynamic")),
}

# Other processors have another long double; nothing may ask for that of the host.
PYCONFIG = """#include_next <pyconfig.h>
#undef SIZEOF_LONG_DOUBLE
#pragma GCC poison SIZEOF_LONG_DOUBLE
#include <stdint.h>
#include <time.h>
#include <wchar.h>
_Static_assert(sizeof(int) == SIZEOF_INT && sizeof(long) == SIZEOF_LONG, "");
_Static_assert(sizeof(void *) == SIZEOF_VOID_P && sizeof(size_t) == SIZEOF_SIZE_T, "");
_Static_assert(sizeof(wchar_t) == SIZEOF_WCHAR_T && sizeof(time_t) == SIZEOF_TIME_T, "");
_Static_assert(sizeof(long long) == SIZEOF_LONG_LONG && sizeof(double) == SIZEOF_DOUBLE, "");
_Static_assert(sizeof(uintptr_t) == SIZEOF_UINTPTR_T, "");
"""
PLANTED = """int planted_symbol(void);
__attribute__((visibility("default"))) int planted(void) { return planted_symbol(); }
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def host_wheel() -> Path:
    """Make the wheel of this system from what `make python` has built, and the C file of cffi."""
    work = OUT / "host"
    shutil.rmtree(work, ignore_errors=True)
    (work / "temp").mkdir(parents=True)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        build_ffi.ffi.emit_c_code(str(work / "temp" / "ckptfmt._ckptfmt.c"))
    (work / "lib/ckptfmt").mkdir(parents=True)
    shutil.copy(EXTENSION, work / "lib/ckptfmt")
    build = ("build", "--build-lib", work / "lib", "--build-temp", work / "temp")
    run(sys.executable, "setup.py", "-q", *build, "bdist_wheel", "--dist-dir", work)
    (wheel,) = work.glob("*.whl")
    return wheel


def numpy_headers(target: Target) -> Path:
    """Return the headers of numpy, for macOS those of its wheel: its long double may differ."""
    if "macos" not in target.zig:
        return Path(np.get_include())
    to = OUT / target.zig / "numpy"
    if not to.exists():
        found = ("--platform", target.tag, "--python-version", "3.11", "--only-binary=:all:")
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", to)
        run(*pip, *found, f"numpy=={np.__version__}")
        (wheel,) = to.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(to, [n for n in archive.namelist() if "/_core/include/" in n])
        wheel.unlink()
    return to / "numpy/_core/include"


def build(target: Target, out: Path, version: str) -> None:
    """Make libckptfmt.a, the shared library, plain_c, and two extensions, one with a planted
    symbol."""
    shutil.rmtree(out / "o", ignore_errors=True)
    (out / "o/include").mkdir(parents=True)
    (out / "o/include/pyconfig.h").write_text(PYCONFIG)
    (out / "o/planted.c").write_text(PLANTED)
    mac = "macos" in target.zig
    cc = [ZIG, "cc", "-target", target.zig, *target.flags, "-O2", "-fno-sanitize=all", "-pthread"]
    flags = ["-std=c11", "-fPIC", "-fvisibility=hidden", "-Werror", "-Icsrc", "-D_GNU_SOURCE"]
    flags += ["-D_FILE_OFFSET_BITS=64", f'-DCKPTFMT_VERSION="{version}"']
    paths = sysconfig.get_paths()
    system = [out / "o/include", paths["include"], paths["platinclude"], numpy_headers(target)]
    of_python = ["-DPy_LIMITED_API=0x030b0000", *(f"-isystem{path}" for path in system)]
    library = [path for path in sorted(Path("csrc").glob("*/*.c")) if path.parts[1] != "python"]
    python = [*Path("csrc/python").glob("*.c"), OUT / "host/temp/ckptfmt._ckptfmt.c"]
    example, planted = Path("examples/plain_c.c"), out / "o/planted.c"

    def compiled(source: Path) -> Path:
        to = out / "o" / f"{source.parent.name}-{source.stem}.o"
        run(*cc, *flags, *(of_python if source in python else []), "-c", source, "-o", to)
        return to

    every = [*library, *python, example, planted]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(every, pool.map(compiled, every), strict=True))
    objects = [made[one] for one in library]
    loose = ["-undefined", "dynamic_lookup"] if mac else []
    (out / "libckptfmt.a").unlink(missing_ok=True)
    run(ZIG, "ar", "rcs", out / "libckptfmt.a", *objects)
    name = ("install_name", "libckptfmt.dylib") if mac else ("soname", "libckptfmt.so")
    named = f"-Wl,-{name[0]},{'@rpath/' if mac else ''}{name[1]}"
    run(*cc, "-shared", named, *objects, "-o", out / name[1])
    run(*cc, made[example], out / "libckptfmt.a", "-o", out / "plain_c")
    extension = [*objects, *(made[one] for one in python)]
    run(*cc, "-shared", "-s", *loose, *extension, "-o", out / "_ckptfmt.abi3.so")
    run(*cc, "-shared", *loose, *extension, made[planted], "-o", out / "planted.so")


def wheel_of(host: Path, target: Target, out: Path) -> Path:
    """Make a wheel: that of this system with another extension and tag."""
    path = out / host.name.replace(host.stem.rsplit("-", 1)[1], target.tag)
    with ZipFile(host) as old, WheelFile(path, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                continue
            if info.filename == EXTENSION:
                content = (out / "_ckptfmt.abi3.so").read_bytes()
            elif info.filename.endswith(".dist-info/WHEEL"):
                content = content.replace(host.stem.rsplit("-", 1)[1].encode(), target.tag.encode())
            new.writestr(info, content)
    return path


def outside(path: Path) -> set[str]:
    """Return the libraries and symbols that a binary takes from outside, with their versions."""
    binary = lief.parse(path)
    if hasattr(binary, "build_version"):  # Mach-O
        libraries = {one.name for one in binary.libraries if one.command.name != "ID_DYLIB"}
        symbols = {one.name for one in binary.imported_symbols}
        return symbols | {f"library {one}" for one in libraries}
    found = {f"library {one}" for one in binary.libraries}
    for one in (one for one in binary.dynamic_symbols if one.name and one.shndx == 0):
        version = one.symbol_version and one.symbol_version.symbol_version_auxiliary
        found.add(f"{one.name} {version.name}" if version else one.name)
    return found


def differences(recorded: set[str], found: set[str]) -> list[str]:
    return [f"+{one}" for one in sorted(found - recorded)] + [
        f"-{one}" for one in sorted(recorded - found)
    ]


def check_signature(path: Path) -> None:
    """Check the ad-hoc signature without which arm64 refuses code: the SHA-256 of each page."""
    content, signature = path.read_bytes(), lief.parse(path).code_signature.data_offset
    count = struct.unpack_from(">I", content, signature + 8)[0]
    slots = dict(struct.unpack_from(">II", content, signature + 12 + 8 * k) for k in range(count))
    at = signature + slots[0]
    magic, _, _, flags, hashes, _, _, pages, limit, size, kind, _, shift = struct.unpack_from(
        ">9I4B", content, at
    )
    assert (magic, flags & 2, size, kind) == (0xFADE0C02, 2, 32, 2), "not an ad-hoc signature"
    assert pages == -(-limit >> shift) and limit == signature, "not all is signed"
    for page in range(pages):
        signed = content[page << shift : min((page + 1) << shift, limit)]
        stored = content[at + hashes + 32 * page :][:32]
        assert hashlib.sha256(signed).digest() == stored, f"page {page} has another signature"


def check(name: str, target: Target, out: Path, wheel: Path, record: bool) -> int:
    """Check the wheel, and return its number of symbols."""
    if "macos" in target.zig:
        for one in ("_ckptfmt.abi3.so", "libckptfmt.dylib", "plain_c"):
            binary = lief.parse(out / one)
            assert binary.header.cpu_type.name == ("ARM64" if "aarch64" in name else "X86_64")
            assert list(binary.build_version.minos)[:2] == [11, 0], binary.build_version
            if "aarch64" in name:
                check_signature(out / one)
    else:
        # Of musl, auditwheel asks for the file, and would find that of this system.
        libc = ("-shared", "-nostdlib", "-Wl,-soname,libc.so", "-o", out / "o/libc.so")
        run(ZIG, "cc", "-target", target.zig, out / "o/planted.c", *libc)
        audit = (sys.executable, "-m", "auditwheel", "show", "--ldpaths", out / "o", wheel)
        said = run(*audit)
        assert target.tag in said, said
    path, found = Path("tools/symbols") / f"{name}.txt", outside(out / "_ckptfmt.abi3.so")
    if record:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{one}\n" for one in sorted(found)))
    recorded = set(path.read_text().splitlines())
    if wrong := differences(recorded, found):
        raise SystemExit("\n".join([f"{path}: other symbols (--record writes them)", *wrong]))
    planted = differences(recorded, outside(out / "planted.so"))
    assert [one for one in planted if "planted_symbol" in one], f"a planted symbol: {planted}"
    return len(found)


def main() -> None:
    names = [one for one in sys.argv[1:] if one != "--record"] or list(TARGETS)
    host = host_wheel()
    for name in names:
        target, out, began = TARGETS[name], OUT / TARGETS[name].zig, time.monotonic()
        build(target, out, build_ffi.version())
        wheel = wheel_of(host, target, out)
        symbols = check(name, target, out, wheel, "--record" in sys.argv)
        print(
            f"portability: cross {name} passed: {wheel.name}, {symbols} symbols,"
            f" {time.monotonic() - began:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
