#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the requirements of extras that this Python lacks, one a line, for pip to install."""

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def lacks(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return False
    try:
        installed = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return True
    return not requirement.specifier.contains(installed, prereleases=True)


extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
for extra in sys.argv[1:]:
    for line in extras[extra]:
        if lacks(Requirement(line)):
            print(line)
