# SPDX-License-Identifier: Apache-2.0
"""Compressed values: level "ckptfmt" of the format.

A value is stored in chunks that stand for 256 KiB each and are compressed one by one, so that a
slice costs the chunks that it touches, and threads share the work. Of numbers a chunk is cut into
byte planes, of floating-point numbers with the sign turned out of the byte of the exponent; each
plane is a zstd frame, or raw where that gains less than a twentieth. Which planes are worth trying,
and how, is found by measuring samples of each value. A value that gains nothing is stored as it
is.

The C core cuts, joins, sums, checks and places; coding and decoding of zstd is done here, in
threads that do not hold the interpreter's lock.
"""

from ckptfmt.compression.settings import CHUNK_SIZE, Compression, compression_of

__all__ = ["CHUNK_SIZE", "Compression", "compression_of"]
