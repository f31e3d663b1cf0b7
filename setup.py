# SPDX-License-Identifier: Apache-2.0
"""The parts of the build that pyproject.toml has no words for."""

from setuptools import setup

# abi3: one binary for this Python and all later ones.
setup(cffi_modules=["build_ffi.py:ffi"], options={"bdist_wheel": {"py_limited_api": "cp311"}})
