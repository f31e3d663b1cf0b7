# SPDX-License-Identifier: Apache-2.0
"""Every bundle that TensorFlow writes in these tests is read by the C core and by the reference
decoder as well, right after it was written, and to the same values.

The Oracle tells of what it wrote; `written` finds what another worker wrote. Bundles larger than
BYTES_MAX are counted and left out: the reference decoder is slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.both import assert_both_read

BYTES_MAX = 64 << 20
# Fewer in a run of all tests: some worker's bundles are no longer found.
LEAST = 3000

_State = tuple[int, int, int]


class Readings:
    """What was read so far."""

    def __init__(self) -> None:
        self.bundles = self.tensors = self.size = self.left_out = 0
        self.seconds = 0.0

    def read(self, prefix: Path | str) -> None:
        """Compares one bundle that TensorFlow has just written."""
        prefix = Path(prefix)
        size = sum(path.stat().st_size for path in prefix.parent.glob(f"{prefix.name}.*"))
        if size > BYTES_MAX:
            self.left_out += 1
            return
        began = time.monotonic()
        self.tensors += len(assert_both_read(prefix))
        self.seconds += time.monotonic() - began
        self.bundles += 1
        self.size += size

    def summary(self) -> str:
        return (
            f"both decoders read {self.bundles} bundles of TensorFlow alike, "
            f"{self.tensors} tensors in files of {self.size} bytes, in {self.seconds:.0f} seconds; "
            f"{self.left_out} were too large"
        )


READINGS = Readings()


@contextmanager
def written(folder: Path | str) -> Iterator[None]:
    """Compares the bundles under a folder that are new, or others, after what TensorFlow does."""
    before = _bundles(folder)
    yield
    for prefix, state in _bundles(folder).items():
        if before.get(prefix) != state:
            READINGS.read(prefix)


def _bundles(folder: Path | str) -> dict[str, _State]:
    """The bundles in a folder and those in it, by prefix."""
    found = {}
    for inside, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".index"):
                path = os.path.join(inside, name)
                told = os.stat(path)
                state = (told.st_ino, told.st_mtime_ns, told.st_size)
                found[path.removesuffix(".index")] = state
    return found
