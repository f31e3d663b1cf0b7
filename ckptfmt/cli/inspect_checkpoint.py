# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt inspect_checkpoint`: the flags and the output of TensorFlow's tool of this name."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt.cli.output import Output

__all__ = ["EPILOG", "SUMMARY", "add_options", "run"]

SUMMARY = "print a checkpoint as TensorFlow's inspect_checkpoint does"

EPILOG = """
For scripts that call TensorFlow's tool; `ckptfmt inspect` and `ckptfmt show` do more. Without
--all_tensors, --all_tensor_names and --tensor_name the names, dtypes and shapes are printed.

examples:
  ckptfmt inspect_checkpoint --file_name=model.ckpt-1000 --tensor_name=layer/kernel

exit status:
  0  printed, also if there is no tensor of that name
  1  the checkpoint is damaged
  2  wrong usage, or no checkpoint
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--file_name", required=True, help="the checkpoint")
    add("--tensor_name", default="", help="print this tensor")
    # As TensorFlow, take --all_tensors, --all_tensors=true and --all_tensors=False.
    flag: dict[str, Any] = {"nargs": "?", "type": _boolean, "const": True, "default": False}
    add("--all_tensors", metavar="BOOL", help="print the values of all tensors", **flag)
    add("--all_tensor_names", metavar="BOOL", help="print the names of all tensors", **flag)
    add("--count_exclude_pattern", metavar="REGEX", default="", help="not counted as parameters")
    add(
        "--printoptions",
        metavar="NAME=VALUE",
        nargs="*",
        type=_print_option,
        default=[],
        help="arguments of numpy.set_printoptions",
    )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return text.lower() in ("true", "1")


def _print_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"True": True, "False": False}.get(value, value)


def run(options: argparse.Namespace) -> int:
    """Print what is asked for, and return the exit status.

    Raises:
        CkptfmtError: the checkpoint cannot be read.
    """
    reader = ckptfmt.tf.load_checkpoint(options.file_name)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    chosen = sorted(shapes) if options.all_tensors or options.all_tensor_names else []
    out = Output()
    if not chosen and options.tensor_name and options.tensor_name not in shapes:
        out.line(f"Tensor {options.tensor_name} not found in checkpoint")
        out.flush()
        return 0
    if not chosen and not options.tensor_name:
        out.line(reader.debug_string().decode("utf-8", "ignore"))
    with np.printoptions(**dict(options.printoptions)):
        for name in chosen or [options.tensor_name] * bool(options.tensor_name):
            out.line(f"tensor: {name} ({_name_of(dtypes[name])}) {shapes[name]}")
            if options.all_tensors or not chosen:
                out.line(str(reader.get_tensor(name)))
    sizes = {name: math.prod(dims) for name, dims in shapes.items()}
    if options.count_exclude_pattern:
        left_out = [name for name in sizes if re.search(options.count_exclude_pattern, name)]
        excluded = sum(sizes.pop(name) for name in left_out)
        out.line(
            f"# Excluding {len(left_out)} tensors ({excluded} params) that match "
            f"{options.count_exclude_pattern} when counting."
        )
    out.line(f"# Total number of params: {sum(sizes.values())}")
    out.flush()
    return 0


def _name_of(dtype: np.dtype[Any] | None) -> str:
    if dtype is None:
        return "unknown"
    return "string" if dtype == np.dtype(object) else dtype.name
