# SPDX-License-Identifier: Apache-2.0
"""The format of format.md and lifecycle.md as a program.

Written from the text alone, to be read beside it: one module for several sections, one function
for each structure. It shares no code with the library. It is simple rather than fast, but linear in
the size of the files. A file that breaks a rule raises Violation with the rule's id and the failure
class, and no file raises another exception.
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
