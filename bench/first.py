# SPDX-License-Identifier: Apache-2.0
"""The first tensor in a new process: `PYTHON bench/first.py SIDE FOLDER NAME` prints a sum."""

import importlib
import sys

print(importlib.import_module(f"sides.{sys.argv[1]}").first(*sys.argv[2:4]).view("u4").sum())
