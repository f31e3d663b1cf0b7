#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/crc32c/tables.h: every constant that the CRC-32C variants need.

    python3 tools/gen_crc32c_tables.py            writes the header
    python3 tools/gen_crc32c_tables.py --check    exits 1 if the header is not what would be written

The mathematics. A CRC is a remainder: bits are the coefficients of a polynomial over GF(2), and

    state after n bits of message M = (state before * x^n + M * x^32) mod P,
    P = x^32 + x^28 + x^27 + x^26 + x^25 + x^23 + x^22 + x^20 + x^19 + x^18 + x^14
        + x^13 + x^11 + x^10 + x^9 + x^8 + x^6 + 1.

CRC-32C is "reflected": the first bit of a message is the lowest bit of its first byte and has the
highest power. So a 32-bit register r represents the sum of r[i] * x^(31 - i), and a register of w
bits for the sum of r[i] * x^(w - 1 - i). Everything below follows from two sentences:

1. The CRC instruction on a register r of 64 bits, begun at 0, gives r * x^32 mod P.
2. A carry-less product of two reflected registers of a and b bits has a + b - 1 bits. Read as a
   register of a + b bits it represents the product of the two times x.

Slicing: `byte[k][v]` is the state that byte v leaves k zero bytes later: v * x^(8k + 32) mod P, v
on its 8-bit register.

Skipping n bytes without a carry-less multiply (`skip`): state * x^(8n) is linear in the state, so
it is the sum over the eight nibbles of the state of one table entry each.

Folding a 128-bit register (low half L, high half H, representing L * x^64 + H) over d bytes: it may
be replaced by any register that is congruent to L * x^(8d + 64) + H * x^(8d). By sentence 2,
multiplying L by the 32-bit register of x^(8d + 64 - 33) mod P gives that: the product is in the
low 96 bits of 128, so it is read as times x^32, and times x for the reflection, together x^33. For
H the same with 8d - 33. Both products have at most 95 bits, so they add up in place with the 128
bits d bytes later.

Joining: state * x^(8n) for a known n is, by both sentences, the CRC instruction on the carry-less
product of the state and x^(8n - 33) mod P: the product of two 32-bit registers on a 64-bit one is
times x, the instruction times x^32. `fuse[r - 1]` has these for r rounds of the loop that runs
three scalar streams, of `FUSE_WORDS` 8-byte words a round, beside one stream of four vectors a
round: over all bytes, and over those after the vectors, the first and the second stream.

Skipping any n (combine): write 8n in binary and multiply by x^(8 * 2^k) for each bit k of n that is
set. P is x + 1 times a primitive polynomial of degree 31, so x^(2^31 - 1) = 1 mod P (checked
below): n may first be reduced modulo 2^31 - 1, a prime that 8 does not share, and 31 powers are
enough. `power` has them for multiplication in software, and `power_join` over x^33 for the joining
above. Negative exponents are taken modulo 2^31 - 1.
"""

import pathlib
import sys

HEADER = pathlib.Path(__file__).resolve().parent.parent / "csrc" / "crc32c" / "tables.h"

POLYNOMIAL = 0x1EDC6F41  # without x^32, highest power first
ORDER = 2**31 - 1  # of x modulo the polynomial
SLICES = 16
# Bytes a stream, longest first; three just fit 8 KiB, 2 KiB and 512 bytes.
SKIP_SIZES = (2728, 680, 168)
VECTOR_SIZE, VECTORS = 32, 4
FOLD_SIZES = (16, VECTOR_SIZE, VECTORS * VECTOR_SIZE)  # bytes
FUSE_WORDS = 5  # words a scalar stream and round, measured
FUSE_ROUNDS = 64  # most rounds between two joins


def multiply(a: int, b: int) -> int:
    """a * b modulo the polynomial; bit i is the coefficient of x^i."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 32:
            a ^= 1 << 32 | POLYNOMIAL
        b >>= 1
    return product


def power(exponent: int) -> int:
    """x^exponent modulo the polynomial; any integer."""
    exponent %= ORDER
    result, square = 1, 2
    while exponent:
        if exponent & 1:
            result = multiply(result, square)
        square = multiply(square, square)
        exponent >>= 1
    return result


def reflect(value: int, bits: int = 32) -> int:
    """Changes between "bit i is x^i" and the register order."""
    return int(f"{value:0{bits}b}"[::-1], 2)


def slicing() -> list[list[int]]:
    shifts = [power(8 * row + 32) for row in range(SLICES)]
    return [[reflect(multiply(reflect(byte, 8), shift)) for byte in range(256)] for shift in shifts]


def skipping(size: int) -> list[list[int]]:
    shift = power(8 * size)
    return [
        [reflect(multiply(reflect(nibble << 4 * row), shift)) for nibble in range(16)]
        for row in range(8)
    ]


def folding(size: int) -> list[int]:
    return [reflect(power(8 * size + 64 - 33)), reflect(power(8 * size - 33))]


def joining(size: int) -> int:
    return reflect(power(8 * size - 33))


def fusing() -> list[list[int]]:
    rows = []
    for rounds in range(1, FUSE_ROUNDS + 1):
        scalar, vector = rounds * FUSE_WORDS * 8, rounds * VECTORS * VECTOR_SIZE
        behind = [joining(count * scalar) for count in (3, 2, 1)]
        rows.append([joining(3 * scalar + vector), *behind])
    return rows


def initializer(value: int | list, depth: int = 0) -> str:
    """C text of a number or of nested lists of numbers."""
    if isinstance(value, int):
        return f"0x{value:08x}"
    indent = "\t" * (depth + 1)
    if isinstance(value[0], int) and len(value) <= 4:
        return "{" + ", ".join(initializer(item) for item in value) + "}"
    if isinstance(value[0], int):
        rows = [value[i : i + 8] for i in range(0, len(value), 8)]
        lines = [indent + ", ".join(initializer(item) for item in row) + ",\n" for row in rows]
    else:
        lines = [indent + initializer(item, depth + 1) + ",\n" for item in value]
    return "{\n" + "".join(lines) + "\t" * depth + "}"


def array(declarator: str, value: list) -> str:
    return f"static const uint32_t {declarator} = {initializer(value)};\n"


def constants() -> str:
    rows = [
        ("SLICES", SLICES),
        ("ORDER", ORDER),
        ("SKIP_COUNT", len(SKIP_SIZES)),
        ("FOLD_COUNT", len(FOLD_SIZES)),
        ("FUSE_ROUNDS", FUSE_ROUNDS),
        ("FUSE_WORDS", FUSE_WORDS),
        *((f"FOLD_{size}", row) for row, size in enumerate(FOLD_SIZES)),
    ]
    lines = [f"\tCF_CRC32C_{name} = {value}" for name, value in rows]
    return "enum {\n" + ",\n".join(lines) + "\n};\n"


def header() -> str:
    top = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* Generated by tools/gen_crc32c_tables.py, which explains the constants. Do not edit. */
#ifndef CKPTFMT_CRC32C_TABLES_H
#define CKPTFMT_CRC32C_TABLES_H

#include <stdint.h>
"""
    skip_sizes = ", ".join(map(str, SKIP_SIZES))
    skips = [skipping(size) for size in SKIP_SIZES]
    folds = [folding(size) for size in FOLD_SIZES]
    parts = [
        top,
        constants(),
        "/* Bytes a stream, for each table of cf_crc32c_skip. */",
        f"static const uint32_t cf_crc32c_skip_sizes[CF_CRC32C_SKIP_COUNT] = {{{skip_sizes}}};\n",
        array("cf_crc32c_byte[CF_CRC32C_SLICES][256]", slicing()),
        array("cf_crc32c_skip[CF_CRC32C_SKIP_COUNT][8][16]", skips),
        "/* For the low and the high half. */",
        array("cf_crc32c_fold[CF_CRC32C_FOLD_COUNT][2]", folds),
        array("cf_crc32c_fuse[CF_CRC32C_FUSE_ROUNDS][4]", fusing()),
        array("cf_crc32c_power[31]", [reflect(power(8 * 2**k)) for k in range(31)]),
        array("cf_crc32c_power_join[31]", [joining(2**k) for k in range(31)]),
        "#endif\n",
    ]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    square = 2
    for _ in range(31):
        square = multiply(square, square)
    if square != 2:
        raise SystemExit("x^(2^31 - 1) is not 1")
    text = header()
    if arguments == ["--check"]:
        if HEADER.read_text() != text:
            print(f"{HEADER} is out of date: run tools/gen_crc32c_tables.py", file=sys.stderr)
            return 1
        return 0
    if arguments:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    HEADER.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
