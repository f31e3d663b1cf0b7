# SPDX-License-Identifier: Apache-2.0
"""The parts of the build that pyproject.toml has no words for."""

import sysconfig

from setuptools import setup

# Without a GIL there is no stable ABI, and calls into one object are not excluded from each other.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit("ckptfmt needs a Python with the GIL, and this is a free-threaded build of it")

# abi3: one binary for this Python and all later ones.
setup(cffi_modules=["build_ffi.py:ffi"], options={"bdist_wheel": {"py_limited_api": "cp311"}})
