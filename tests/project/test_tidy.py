# SPDX-License-Identifier: Apache-2.0
"""The house rules, checked on the repository itself. Every message says what to write instead."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {"generated", ".git", "build", "dist", "corpus", "golden", "vectors", "__pycache__"}
TEXT = {".c", ".h", ".py", ".pyi", ".sh", ".md", ".toml", ".in", ".txt", ""}

# A folder of csrc and what it may include besides itself.
LAYERS = [
    *("base", "crc32c", "table", "proto", "slices", "compress", "rescue"),
    *("storage", "read", "write", "merge", "verify", "python"),
]

C_WIDTH, TAB_WIDTH, PYTHON_WIDTH = 120, 4, 100

# The package whose modules may touch ffi.
DOOR = "_core"

BANNED = {
    "strcpy": "memcpy with a size",
    "strcat": "cf_put_bytes",
    "sprintf": "snprintf with the size of the target",
    "vsprintf": "vsnprintf",
    "gets": "a bounded read",
    "strtok": "a cf_cursor",
    "atoi": "a parser that sees overflow",
    "alloca": "cf_allocate",
    "rand": "cf_os_random",
    "abort": "a status",
    "exit": "a status",
}
BANNED_BUILTINS = {"eval", "exec", "compile", "__import__"}
HEAP = ["malloc", "calloc", "realloc", "reallocarray", "free", "strdup", "strndup", "aligned_alloc"]
# What the system offers, and the one file that may ask for it: the seam is four files, for files,
# for names and for transfers past the page cache. Memory from the system is a
# fifth, and like mapped files it comes from mmap.
SYSTEM = {
    "csrc/storage/posix.c": [
        *("openat", "close", "pread", "pwrite", "fsync", "sync_file_range"),
        *("fstat", "fstatat", "fstatvfs", "ftruncate", "fallocate", "mmap", "munmap", "getentropy"),
        *("flock", "fcntl", "dup2", "fchmod", "fchmodat"),
    ],
    "csrc/base/pages.c": ["madvise", "mmap", "munmap"],
    "csrc/storage/posix_files.c": [
        *("mkdir", "fdopendir", "readdir", "closedir", "flock", "renameat", "linkat", "unlinkat"),
        *("syscall", "nanosleep", "fstatfs"),
    ],
    "csrc/storage/posix_direct.c": [
        "statx",
        "mincore",
        "mmap",
        "munmap",
        "pread",
        "pwrite",
        "fcntl",
    ],
    "no file": [
        *("open", "fopen", "read", "write", "readv", "writev", "fdatasync", "rename"),
        *("renameat2", "link"),
        *("unlink", "remove", "mkdirat", "rmdir", "stat", "lstat", "opendir", "creat", "lseek"),
        *("preadv", "pwritev", "posix_fadvise", "copy_file_range", "readlink", "readlinkat"),
        *("access", "faccessat", "chmod", "statfs", "statvfs", "fread", "fwrite", "dup"),
        *("truncate", "symlink", "symlinkat", "mkstemp", "mkostemp", "tmpfile", "sendfile"),
    ],
}


@functools.cache
def all_files() -> list[Path]:
    """The project's own text files, without what is built and what tools keep."""
    found = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [
            name
            for name in below
            if name not in SKIPPED
            and (name == ".ci" or not name.startswith("."))
            and not name.endswith(".egg-info")
        ]
        paths = (Path(folder, name) for name in names if name not in SKIPPED)
        found += [path for path in paths if path.suffix in TEXT and path.is_file()]
    return sorted(found)


def files(*folders: str, suffixes: set[str] = TEXT) -> Iterator[Path]:
    """Those of the project's own text files that are in one of the folders, if any are given."""
    for path in all_files():
        relative = path.relative_to(ROOT)
        inside = not folders or any(relative.is_relative_to(folder) for folder in folders)
        if inside and path.suffix in suffixes:
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def code_of(path: Path) -> str:
    """The C code without comments and the contents of strings, lines kept."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return '""' if found[0] in "\"'" else "\n" * found.count("\n")

    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, blank, text_of(path), flags=re.S)


def c_files(*folders: str) -> list[Path]:
    found = list(files(*(folders or ("csrc",)), suffixes={".c", ".h"}))
    assert found
    return found


@functools.cache
def calls_of(path: Path) -> dict[str, list[int]]:
    """The lines on which each function is called; `table->read(...)` calls no function `read`."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(code_of(path).splitlines(), 1):
        for name in [] if line.startswith("#") else re.findall(r"(?<![\w.>])(\w+)\s*\(", line):
            found.setdefault(name, []).append(number)
    return found


def calls(path: Path, name: str) -> list[int]:
    """Lines on which the function is called."""
    return calls_of(path).get(name, [])


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The imports, names and calls of a Python file."""
    wanted = (ast.Import, ast.ImportFrom, ast.Name, ast.Call)
    return [node for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, wanted)]


def fail_if(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


# ---- C ---------------------------------------------------------------------------------------


def test_include_layers() -> None:
    found = []
    for path in c_files():
        if path.parent.name == "csrc":
            continue
        layer = path.relative_to(ROOT / "csrc").parts[0]
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text_of(path), re.M):
            if "/" in target and target.split("/")[0] not in allowed:
                found.append(
                    f"{name_of(path)} includes {target}: {layer}/ may include {allowed}, by paths "
                    "relative to csrc; move the code down a layer or hand the value in"
                )
            if not (ROOT / "csrc" / target).is_file():
                found.append(f"{name_of(path)} includes {target}: no such file in csrc")
    fail_if(found)


def test_c_files_use_each_other_one_way() -> None:
    """No circle of files in which each uses a function of the next. X.c and X.h are one file."""
    defined = re.compile(r"^(?!static (?!inline))\w[^;{}()#]*?\b(\w+)\([^;{}]*\)\n\{", re.M)
    units = {path: path.relative_to(ROOT / "csrc").with_suffix("").as_posix() for path in c_files()}
    homes = {name: units[path] for path in units for name in defined.findall(code_of(path))}
    assert len(homes) > 500
    uses: dict[str, dict[str, list[str]]] = {unit: {} for unit in units.values()}
    for path, unit in units.items():
        # Code is indented, declarations are not.
        code = "\n".join(re.findall(r"^\t.*", code_of(path), re.M))
        for name in sorted(homes.keys() & re.findall(r"(?<![\w.>])\w+", code)):
            if homes[name] != unit:
                uses[unit].setdefault(homes[name], []).append(name)
    circle: list[str] = []
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        circle = error.args[1]
    fail_if(
        [
            f"csrc/{user} uses {', '.join(uses[user][used])} of csrc/{used}: move the function, "
            "or hand in the values that it needs"
            for used, user in pairwise(circle)
        ]
    )


def test_codec_has_no_system() -> None:
    headers = r"<(?:pthread|unistd|fcntl|errno|dirent|signal|time|sys/\w+)\.h>"
    fail_if(
        [
            f"{name_of(path)} includes {found}: this folder takes bytes and gives structs; "
            "threads are the work of base/, files of storage/"
            for path in c_files("csrc/table", "csrc/proto", "csrc/slices", "csrc/compress")
            for found in re.findall(headers, text_of(path))
        ]
    )


def test_banned_calls() -> None:
    found = []
    for path in c_files():
        where = name_of(path)
        for name, instead in BANNED.items():
            found += [f"{where}:{n}: {name}; use {instead}" for n in calls(path, name)]
        if where != "csrc/base/memory.c":
            for name in HEAP:
                found += [
                    f"{where}:{n}: {name}; use cf_allocate, cf_reallocate, cf_release"
                    for n in calls(path, name)
                ]
        for home, names in SYSTEM.items():
            found += [
                f"{where}:{n}: {name}, which {home} calls; use the cf_os_ function of storage/os.h"
                for name in names
                if where != home and name not in SYSTEM.get(where, [])
                for n in calls(path, name)
            ]
        # posix_files.c has a question that each system answers by a call of its own.
        own = where in ("csrc/base/system.h", "csrc/storage/posix_files.c")
        if "__linux__" in text_of(path) and not own:
            found.append(f"{where}: __linux__; use CKPTFMT_PLAIN_POSIX of base/system.h")
        # Above storage/, what the system answered is in the error record only.
        if not where.startswith(("csrc/storage/", "csrc/base/pages.c", "csrc/base/workers.c")):
            for number, line in enumerate(code_of(path).splitlines(), 1):
                if re.search(r"(?<![\w.>])errno\b(?!\.h)", line):
                    found.append(f"{where}:{number}: errno; use ckptfmt_error.os_errno")
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if re.search(r"\bassert\s*\(\s*(?:0|false)\b", line):
                found.append(f"{where}:{number}: assert(0); return a status by cf_fail")
    fail_if(found)


def test_every_folder_has_a_test() -> None:
    """A C test bears the folder's name or includes its headers; Python tests csrc/python."""
    folders = {path.stem.removeprefix("test_") for path in files("tests/c", suffixes={".c"})} | {
        header.split("/")[0]
        for path in files("tests/c", suffixes={".c"})
        for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text_of(path), re.M)
    }
    fail_if(
        [
            f"csrc/{folder}/ has no test: write tests/c/test_{folder}.c"
            for folder in LAYERS[:-1]
            if folder not in folders
        ]
    )


def test_every_fuzzer_has_seeds() -> None:
    fail_if(
        [
            f"{name_of(path)} has no seeds: add them to fuzz/make_corpus.py"
            for path in (ROOT / "fuzz").glob("fuzz_*.c")
            if not any((ROOT / "fuzz" / "corpus" / path.stem.removeprefix("fuzz_")).glob("*"))
        ]
    )


# ---- the public header -----------------------------------------------------------------------


def declared() -> set[str]:
    header = text_of(ROOT / "csrc" / "ckptfmt.h")
    return set(re.findall(r"^CKPTFMT_API\b[^;(]*?\b(ckptfmt_\w+)\(", header, re.M))


@functools.cache
def build_ffi() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_ffi", ROOT / "build_ffi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_header_region_is_what_cffi_parses() -> None:
    from cffi import FFI  # noqa: PLC0415 (only this test needs it)

    region = build_ffi().declarations()
    FFI().cdef(region)
    assert set(re.findall(r"\b(ckptfmt_\w+)\(", region)) >= declared()


@pytest.mark.parametrize(
    ("compiler", "language"), [("cc", ("-x", "c", "-std=c11")), ("c++", ("-x", "c++"))]
)
@pytest.mark.parametrize("header", ["ckptfmt.h", "ckptfmt_unstable.h"])
def test_header_stands_alone(
    header: str, compiler: str, language: tuple[str, ...], tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / "alone"
    source.write_text(f'#include "{header}"\n')
    command = [compiler, *language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    subprocess.run([*command, "-I", str(ROOT / "csrc"), str(source)], check=True)


def exported(library: Path) -> set[str]:
    dynamic = ["-D"] if library.suffix == ".so" else ["--extern-only"]
    ran = subprocess.run(
        ["nm", *dynamic, "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    found = (line.split() for line in ran.stdout.splitlines() if len(line.split()) == 3)
    # "A" is the name of the version itself.
    return {name.partition("@")[0] for _, kind, name in found if kind != "A"}


@pytest.mark.parametrize("built", ["extension", "libckptfmt.so", "libckptfmt.a"])
def test_exports_are_the_header(built: str) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    if built == "extension":
        import ckptfmt._ckptfmt  # noqa: PLC0415

        library = Path(ckptfmt._ckptfmt.__file__)
    else:
        library = ROOT / "build" / built
        if not library.exists():
            pytest.skip("not built; `make lib` does")
    names = {name for name in exported(library) if not name.startswith(("PyInit_", "_cffi_"))}
    missing, more = declared() - names, names - declared()
    assert not missing, f"in ckptfmt.h and not defined: {sorted(missing)}"
    assert not more, f"exported and not in ckptfmt.h (declare it there or hide it): {sorted(more)}"


def test_the_static_library_exports_nothing_of_its_host(tmp_path: Path) -> None:
    archive = ROOT / "build" / "libckptfmt.a"
    compiler = shutil.which("cc")
    if not archive.exists() or compiler is None or shutil.which("nm") is None:
        pytest.skip("not built; `make lib` does")
    source, host = tmp_path / "host.c", tmp_path / "host.so"
    source.write_text(
        "const char *ckptfmt_version(void);\nconst char *host(void) { return ckptfmt_version(); }\n"
    )
    command = [compiler, "-shared", "-fPIC", "-o", host, source, archive]
    subprocess.run(command, check=True, capture_output=True)
    assert exported(host) == {"host"}


# ---- Python ----------------------------------------------------------------------------------


def imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package(words: set[str]) -> list[Path]:
    """The modules whose text has one of the words; to parse all takes a second."""
    found = list(files("ckptfmt", suffixes={".py"}))
    assert found
    return [path for path in found if re.search(rf"\b(?:{'|'.join(words)})\b", text_of(path))]


def test_one_door_to_c() -> None:
    found = []
    doors = {"_ckptfmt", "ffi", "cffi"}
    for path in package(doors):
        if path.parent.name == DOOR:
            continue
        names = {part for name in imports(path) for part in name.split(".")}
        names |= {node.id for node in nodes_of(path) if isinstance(node, ast.Name)}
        if names & doors:
            found.append(f"{name_of(path)} touches ffi: give ckptfmt/_core/ a function for it")
    fail_if(found)


def test_no_code_in_data() -> None:
    banned = {"pickle", "cPickle", "dill", "marshal", "shelve", "yaml", "cloudpickle", "joblib"}
    found = []
    for path in package(banned | BANNED_BUILTINS):
        # The restricted reader of what torch.distributed.checkpoint writes.
        allowed = {"pickle"} if name_of(path) == "ckptfmt/formats/dcp.py" else set()
        for name in {name.split(".")[0] for name in imports(path)} & (banned - allowed):
            found.append(f"{name_of(path)} imports {name}: store plain bytes or JSON")
        for node in nodes_of(path):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in BANNED_BUILTINS:
                found.append(f"{name_of(path)}:{called.lineno}: {called.id}; parse it instead")
    fail_if(found)


def test_import_brings_no_framework() -> None:
    code = "import sys, ckptfmt\nprint(*{name.split('.')[0] for name in sys.modules})"
    frameworks = {
        *("dask", "flax", "fsspec", "google", "h5py", "jax", "keras", "lightning", "mpi4py"),
        *("obstore", "orbax", "pickle5", "ray", "safetensors", "tensorflow", "tensorstore"),
        *("torch", "transformers", "yaml"),
    }
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not frameworks & set(ran.stdout.split()), "import a framework inside its adapter alone"


# ---- all files -------------------------------------------------------------------------------


def test_source_says_its_licence() -> None:
    fail_if(
        [
            f"{name_of(path)}: no SPDX line at the top"
            for path in files(suffixes={".c", ".h", ".py", ".sh"})
            if "SPDX-License-Identifier: Apache-2.0" not in text_of(path)[:200]
        ]
    )


def test_no_unfinished_work() -> None:
    marks = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    found = []
    for path in files():
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if marks.search(line) and not line.lstrip().startswith("#define"):
                found.append(f"{name_of(path)}:{number}: finish it, or write the limit down")
    fail_if(found)


def test_no_extra_of_ours_is_installed_from_the_index() -> None:
    """The name there is not ours."""
    fail_if(
        [
            f"{name_of(path)}: name the packages that the extra has"
            for path in (ROOT / "ckptfmt").rglob("*.py")
            if re.search(r"pip install[^\n]*ckptfmt\[", text_of(path))
        ]
    )


def test_nothing_built_is_tracked() -> None:
    """Bytes that are not text belong to inputs of tests, vectors and pictures."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    ran = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = [ROOT / os.fsdecode(name) for name in ran.stdout.split(b"\0") if name]
    inputs = ("fuzz/corpus/", "spec/vectors/", "tests/", "docs/")
    fail_if(
        [
            f"{name_of(path)}: was built; remove it from the repository"
            for path in paths
            if not name_of(path).startswith(inputs)
            and path.is_file()
            and b"\0" in path.read_bytes()
        ]
    )


def test_no_machine_paths() -> None:
    paths = re.compile(r"(?<![\w.])/(?:work|root|farm|home)/")
    fail_if(
        [
            f"{name_of(path)}:{number}: name files relative to the repository"
            for path in files()
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if paths.search(line) and "re.compile" not in line
        ]
    )


def test_line_width() -> None:
    found = []
    for path in files(suffixes={".c", ".h", ".py"}):
        if name_of(path) == "csrc/crc32c/tables.h":
            continue
        width = PYTHON_WIDTH if path.suffix == ".py" else C_WIDTH
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if len(line.expandtabs(TAB_WIDTH)) > width:
                found.append(f"{name_of(path)}:{number}: over {width} columns; break the line")
            if line != line.rstrip():
                found.append(f"{name_of(path)}:{number}: blanks at the end")
    fail_if(found)


# ---- specification ---------------------------------------------------------------------------

FAMILIES = "NAM FTR BLK SNP TAB MSG HDR ENT SHP DTY SLC KEY TXT STR VAR DAT EXT CMP CMT MRG OBJ"
RULE = re.compile(rf"\b(?:{FAMILIES.replace(' ', '|')})-\d+\b")


SPEC = [ROOT / "spec" / "format.md", ROOT / "spec" / "lifecycle.md"]


def spec() -> str:
    """Both documents, one after the other."""
    return "".join(map(text_of, SPEC))


def rules() -> list[str]:
    return re.findall(r"^- \*\*\[([A-Z]+-\d+)\]\*\*", spec(), re.M)


def test_rules_are_unique() -> None:
    ids = rules()
    assert len(ids) > 100
    assert sorted(set(ids)) == sorted(ids)
    fail_if([f"{name} does not belong to a family" for name in ids if not RULE.fullmatch(name)])


def test_cited_rules_exist() -> None:
    known = set(rules())
    fail_if(
        [
            f"{name_of(path)}:{number}: {rule} is no rule of the specification"
            for path in [*files("csrc", "ckptfmt", "tests/c", "fuzz"), *SPEC]
            for number, line in enumerate(text_of(path).splitlines(), 1)
            for rule in RULE.findall(line)
            if rule not in known
        ]
    )


def test_hex_examples() -> None:
    blocks = re.findall(r"^```hex name=(\S+)\n(.*?)^```$", spec(), re.M | re.S)
    assert len(blocks) > 20
    assert len(blocks) == len(re.findall(r"^```hex", spec(), re.M)), "a hex block without name="
    names = [name for name, _ in blocks]
    assert sorted(set(names)) == sorted(names)
    for name, body in blocks:
        plain = " ".join(line.partition("#")[0] for line in body.splitlines()).split()
        assert all(re.fullmatch(r"[0-9a-f]{2}", byte) for byte in plain), f"{name}: not hex pairs"
        assert plain, f"{name}: empty"


# ---- version ---------------------------------------------------------------------------------


def test_version_stands_in_one_place() -> None:
    version = build_ffi().version()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    holders = {
        name_of(path)
        for path in files("csrc", "ckptfmt", "build_ffi.py", "setup.py", "Makefile", "README.md")
        if re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", text_of(path))
    }
    # For those who compile csrc by hand.
    fallback = re.findall(
        r'#define CKPTFMT_VERSION "(.*)"', text_of(ROOT / "csrc" / "base" / "limits.c")
    )
    assert fallback in ([], [version]), "csrc/base/limits.c: the fallback is not the version"
    assert holders <= {"csrc/base/limits.c"}, "the version is in pyproject.toml only"


def test_crc32c_tables_match_their_generator() -> None:
    program = ROOT / "tools" / "gen_crc32c_tables.py"
    assert subprocess.run([sys.executable, program, "--check"], check=False).returncode == 0
