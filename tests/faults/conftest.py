# SPDX-License-Identifier: Apache-2.0
"""The library that makes calls of the operating system fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("faults") / "preload.so"
    source = Path(__file__).with_name("preload.c")
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(source), "-ldl", "-pthread"], check=True)
    return library
