# SPDX-License-Identifier: Apache-2.0
"""The format of format.md and lifecycle.md as a program.

Written from the text alone, to be read beside it: a room for some sections each, a function for
what a section tells. It shares no code with the library. Correct and plain before fast, but linear
in the bytes that are there. A file that breaks a rule gives a Violation with the rule's id and the
failure class; no other exception comes of any bytes.
"""

from .bundle import Bundle, read_all
from .merge import merge
from .rules import DISABLED, LIMITS, Violation
from .slices import decode_slice_key, parse_slice_text, print_slice_text
from .verify import verify
from .writer import Piece, write

__all__ = [
    "DISABLED",
    "LIMITS",
    "Bundle",
    "Piece",
    "Violation",
    "decode_slice_key",
    "merge",
    "parse_slice_text",
    "print_slice_text",
    "read_all",
    "verify",
    "write",
]
