# SPDX-License-Identifier: Apache-2.0
"""Puts the wheels of `tools/cross.py` beside those of `tools/dist_check.py` in build/dist/, checks
that all files there are of one version and have one text, and prints what a person must do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "build" / "dist"
PERSON = """
What remains for a person:
  - on a Mac, in an unpacked sdist:
      python3 -m venv venv && venv/bin/pip install WHEEL'[test,cli]' && rm -r ckptfmt &&
        venv/bin/python -m pytest -q tests/cli tests/reports tests/format/test_golden.py
    Nothing has run there before. What it prints, after `uname -mrs`, is the report to file.
"""


def metadata(path: Path) -> str:
    """Return the metadata of a sdist or wheel, without the lines that only one of them has."""
    if path.suffix == ".whl":
        with ZipFile(path) as wheel:
            (name,) = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")]
            return wheel.read(name).decode()
    with tarfile.open(path) as sdist:
        (member,) = [
            one
            for one in sdist.getmembers()
            if one.name.count("/") == 1 and one.name.endswith("/PKG-INFO")
        ]
        stream = sdist.extractfile(member)
        assert stream is not None
        return stream.read().decode()


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wheel in (ROOT / "build/cross").glob("*-*/ckptfmt-*.whl"):
        shutil.copy(wheel, DIST)
    files = sorted(DIST.iterdir())
    if {re.split("[-]|[.]tar", one.name)[1] for one in files} != {project["version"]}:
        raise SystemExit(f"not all of version {project['version']}: {files}")
    if len({metadata(one) for one in files}) != 1:
        raise SystemExit("the files have different metadata")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    print(*(f"{one.stat().st_size:9,} {one.name}" for one in files), PERSON.rstrip(), sep="\n")
    heading = f"## [{project['version']}]"
    (line,) = re.findall(f"^{re.escape(heading)}.*", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if "unreleased" in line:
        print(f"  - CHANGELOG.md: the date of the release, instead of {line!r}")
    if "urls" not in project:
        print("  - pyproject.toml: [project.urls], the address of the sources")
    readme = (ROOT / "README.md").read_text()
    if relative := re.findall(r"\]\((?!https?:|#)([^)]+)\)", readme):
        print(f"  - README.md: {len(relative)} links to files, which PyPI does not show")
    print(f"  - a tag v{project['version']}, and `twine upload build/dist/*`")


if __name__ == "__main__":
    main()
