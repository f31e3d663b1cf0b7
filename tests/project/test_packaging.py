# SPDX-License-Identifier: Apache-2.0
"""What users get: README, sdist, and the check of the machine that comes first.

The installation of the wheel is tested by `make dist-check`.
"""

from __future__ import annotations

import os
import pydoc
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.pages import ROOT, run_console, run_page

import ckptfmt
import ckptfmt._ckptfmt
from ckptfmt.cli.parser import COMMANDS

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme(tmp_path: Path) -> None:
    """Its example runs, and its commands then print what it shows. That of torch runs in
    tests/peers."""
    for path in (ROOT / "tests" / "golden" / "merged").glob("ckpt.*"):  # TensorFlow wrote them
        shutil.copy(path, tmp_path / path.name.replace("ckpt.", "model.ckpt-1000."))
    run_page("README.md", tmp_path)
    run_console("README.md", tmp_path)
    assert len(README.splitlines()) <= 150, "two screens"


def test_speed_is_that_of_the_page() -> None:
    """A run of the benchmark writes its own report: what it measures never fails a test."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = README.split("| of the limit |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len(table) == 5 and set(table) < set(page.splitlines())
    assert re.findall(r"From a run of (\S+)", page)[0] in README


def test_changelog_knows_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", changelog, flags=re.M)[1:]
    assert any(section.startswith(f"[{ckptfmt.__version__}]") for section in sections)
    for section in sections:
        heading = section.splitlines()[0]
        assert "### Format" in section, f"{heading} does not say what changed in the format"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and the list of files of the sdist. The compiler is a script that
    copies the extension of the tree; `make dist-check` compiles, and builds the sdist."""
    pytest.importorskip("setuptools")
    pytest.importorskip("wheel")
    directory = tmp_path_factory.mktemp("built")
    compiler = directory / "cc"
    copy = f'cp "{ckptfmt._ckptfmt.__file__}" "$2"'
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n{copy}\n')
    compiler.chmod(0o755)
    ran = subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", directory),
            *("build", "--build-base", directory / "build"),
            *("bdist_wheel", "--dist-dir", directory, "--bdist-dir", directory / "wheel"),
        ],
        cwd=ROOT,
        env={**os.environ, "CC": str(compiler), "LDSHARED": str(compiler), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return directory


def test_sdist_is_complete(built: Path) -> None:
    """What is needed to build, test and fuzz is in it; nothing that was built is."""
    sources = (built / "ckptfmt.egg-info/SOURCES.txt").read_text(encoding="utf-8").splitlines()
    inside = set(map(os.path.normpath, sources))
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "build_ffi.py", "pyproject.toml"}
    for folder in ("csrc", "docs", "spec", "tests", "fuzz", "examples", "tools", "ckptfmt"):
        needed |= {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
            and not {"__pycache__", "corpus"} & set(path.parts)
            and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
            and path.suffix not in {".so", ".pyc", ".o"}
        }
    assert not needed - inside, "add to MANIFEST.in"
    assert "fuzz/corpus/table/sound" in inside
    built = [name for name in inside if name.endswith((".so", ".o", ".a", ".pyc"))]
    assert built == []


def test_man_pages_are_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    data = f"ckptfmt-{ckptfmt.__version__}.data/data/share/man/man1/"
    with zipfile.ZipFile(wheel) as opened:
        inside = {name: opened.read(name) for name in opened.namelist()}
    pages = {name.removeprefix(data): inside[name] for name in inside if name.startswith(data)}
    assert pages.keys() == {"ckptfmt.1", *(f"ckptfmt-{name}.1" for name in COMMANDS)}
    assert b"\\-\\-recursive" in pages["ckptfmt-verify.1"]
    if shutil.which("groff") is not None:
        for name, page in pages.items():
            command = ["groff", "-man", "-Tutf8", "-ww", "-z"]
            shown = subprocess.run(command, input=page, capture_output=True, check=True)
            assert not shown.stderr, name
    assert not [name for name in inside if name.endswith((".h", ".c"))]


def need(*what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / "tools" / "need.sh"), *what], capture_output=True, text=True, check=False
    )


def test_missing_tools_are_named_in_one_line() -> None:
    ran = need("python:no-such-python", "cc:no-such-cc", "no-such-tool")
    assert ran.returncode == 1
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    for name in ("Python >= 3.11", "no-such-python", "C compiler", "no-such-cc", "no-such-tool"):
        assert name in line


def test_what_is_there_is_not_missed() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no cc")
    ran = need("cc:cc", "sh")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_python_without_headers_is_named(tmp_path: Path) -> None:
    """A stand-in that answers as a Python without venv and headers would."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\ncase $2 in *version_info*) exit 0 ;; *) exit 1 ;; esac\n", encoding="utf-8"
    )
    fake.chmod(0o755)
    ran = need(f"python:{fake}")
    assert ran.returncode == 1
    assert "venv" in ran.stderr
    assert "Python.h" in ran.stderr


def test_a_python_without_a_gil_is_refused() -> None:
    code = (
        "import runpy, sysconfig\n"
        "sysconfig.get_config_var = lambda name: name == 'Py_GIL_DISABLED'\n"
        "runpy.run_path('setup.py')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr == (
        "ckptfmt needs a Python with the GIL, and this is a free-threaded build of it\n"
    )


def test_the_recorded_interface_is_that_of_the_header() -> None:
    """Without abidiff too, which compares types as well (`make abi`)."""
    recorded = (ROOT / "csrc/package/libckptfmt.abi").read_text(encoding="utf-8")
    symbols = re.findall(r"<elf-symbol name='(\w+)'", recorded)
    header = (ROOT / "csrc/ckptfmt.h").read_text(encoding="utf-8")
    assert symbols == sorted(re.findall(r"^CKPTFMT_API\b[^;(]*?\b(ckptfmt_\w+)\(", header, re.M))


def installed(root: Path) -> list[str]:
    """Every file and link below a prefix, by its path in it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def make(*words: str | Path) -> None:
    subprocess.run(["make", "-s", *words], cwd=ROOT, capture_output=True, check=True)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make install` puts below DESTDIR, for the prefix /opt/x."""
    if not (ROOT / "build/libckptfmt.so").exists():
        pytest.skip("not built; `make lib` does")
    stage = tmp_path_factory.mktemp("stage")
    make("PREFIX=/opt/x", f"DESTDIR={stage}", "install")
    return stage


def test_make_install(stage: Path) -> None:
    root = stage / "opt/x"
    files = installed(root)
    version = ckptfmt.__version__
    real = f"lib/libckptfmt.so.{version}"
    soname = next(name for name in files if name.startswith("lib/libckptfmt.so.") and name != real)
    assert files == sorted(
        [
            "include/ckptfmt.h",
            "lib/cmake/ckptfmt/ckptfmt-config-version.cmake",
            "lib/cmake/ckptfmt/ckptfmt-config.cmake",
            "lib/libckptfmt.a",
            "lib/libckptfmt.so",
            soname,
            real,
            "lib/pkgconfig/ckptfmt.pc",
            "share/man/man3/ckptfmt.3",
        ]
    )
    assert (root / "lib/libckptfmt.so").readlink() == Path(Path(soname).name)
    assert (root / soname).readlink() == Path(Path(real).name)
    if shutil.which("readelf"):
        ran = subprocess.run(
            ["readelf", "-d", root / real], capture_output=True, text=True, check=True
        )
        assert f"soname: [{Path(soname).name}]" in ran.stdout
    assert "ckptfmt_reader_open\n" in (root / "share/man/man3/ckptfmt.3").read_text()
    for path in (root / "lib/pkgconfig/ckptfmt.pc", *(root / "lib/cmake/ckptfmt").iterdir()):
        assert "@" not in path.read_text()
        assert "/opt/x" not in path.read_text()


def test_make_uninstall(stage: Path, tmp_path: Path) -> None:
    shutil.copytree(stage, tmp_path, symlinks=True, dirs_exist_ok=True)
    make("PREFIX=/opt/x", f"DESTDIR={tmp_path}", "uninstall")
    assert not installed(tmp_path)


PROJECT = """\
cmake_minimum_required(VERSION 3.13)
project(example C)
find_package(ckptfmt 0.1 REQUIRED)
foreach(library ckptfmt ckptfmt_static)
  add_executable(with_${library} plain_c.c)
  target_link_libraries(with_${library} PRIVATE ckptfmt::${library})
endforeach()
"""


@pytest.mark.parametrize(
    "lib", ["lib", *(pytest.param(one, marks=pytest.mark.slow) for one in ("lib/x86_64", None))]
)
def test_an_installed_prefix_can_be_moved(lib: str | None, stage: Path, tmp_path: Path) -> None:
    """Programs are built against it elsewhere. LIBDIR outside of the prefix stays where it is."""
    prefix, moved = tmp_path / "prefix", tmp_path / "moved"
    if lib == "lib":
        shutil.copytree(stage / "opt/x", prefix, symlinks=True)
    libraries = prefix / lib if lib else tmp_path / "beside"
    for _ in range(0 if lib == "lib" else 2):  # also over itself
        make(f"PREFIX={prefix}", f"LIBDIR={libraries}", "install")
    if lib is not None:
        prefix.rename(moved)
        libraries = moved / lib
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(ROOT / "examples/plain_c.c", source)
    programs = []
    if shutil.which("pkg-config"):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries / "pkgconfig")}
        asked = ["pkg-config", "--cflags", "--libs", "ckptfmt"]
        flags = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
        programs.append(tmp_path / "with_pkg_config")
        words = ["cc", source / "plain_c.c", *flags.stdout.split(), "-o", programs[-1]]
        subprocess.run([*words, f"-Wl,-rpath,{libraries}"], check=True)
    if shutil.which("cmake"):
        (source / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        where = f"-Dckptfmt_DIR={libraries / 'cmake/ckptfmt'}"
        for words in (["-S", source, "-B", tmp_path / "cmake", where], ["--build", "cmake"]):
            subprocess.run(["cmake", *words], cwd=tmp_path, capture_output=True, check=True)
        programs += [tmp_path / "cmake/with_ckptfmt", tmp_path / "cmake/with_ckptfmt_static"]
    if not programs:
        pytest.skip("neither pkg-config nor cmake")
    for program in programs:
        output = tmp_path / f"{program.name}-files" / "model"
        ran = subprocess.run([program, output], capture_output=True, text=True, check=True)
        assert "layer/kernel" in ran.stdout, ran


def test_help_begins_with_what_users_call() -> None:
    text = pydoc.plain(pydoc.render_doc(ckptfmt))
    first = "\n".join(text.splitlines()[:32])
    named = re.findall(r"\b([a-zA-Z_0-9]+)\(", ckptfmt.__doc__ or "")
    assert {"save", "load", "open", "merge", "Checkpoint"} < set(named)
    for name in named:
        assert name in first
        assert callable(getattr(ckptfmt, name))
