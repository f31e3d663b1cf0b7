# SPDX-License-Identifier: Apache-2.0
"""The parts of the build that pyproject.toml has no words for."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build

# Without a GIL there is no stable ABI, and calls into one object are not excluded from each other.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit("ckptfmt needs a Python with the GIL, and this is a free-threaded build of it")


class Build(build):
    """Adds the man pages, which `tools/man.py` writes from the built command."""

    def run(self) -> None:
        """Build, then write the pages."""
        super().run()
        pages = Path(self.build_temp, "man")
        path = [os.path.abspath(self.build_lib), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        subprocess.run([sys.executable, "tools/man.py", pages], env=environment, check=True)
        found = sorted(map(str, pages.glob("*.1")))
        self.distribution.data_files = [("share/man/man1", found)]


setup(
    cffi_modules=["build_ffi.py:ffi"],
    cmdclass={"build": Build},
    # abi3: one binary for this Python and all later ones.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
