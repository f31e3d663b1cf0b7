# SPDX-License-Identifier: Apache-2.0
"""Dask arrays read from a checkpoint by slices, and stored into a new one by chunks.

    python examples/dask_arrays.py SOURCE DESTINATION

Reads every tensor of numbers, halves it, and writes the results as one checkpoint. No process holds
a whole tensor: each task reads the bytes of its chunk and writes a part, and the last task merges
the parts, which moves no tensor bytes. Works with every scheduler of Dask whose workers share the
file system.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import ckptfmt


def arrays_of(path: str) -> dict[str, da.Array]:
    """Return the tensors of a checkpoint as lazy arrays."""
    return {
        # A handle is pickled as the path and the name; a worker opens the checkpoint again.
        name: da.from_array(handle, chunks="auto")
        for name, handle in ckptfmt.open(path).items()
        if handle.dtype is not None and not handle.dtype.hasobject
    }


class Target:
    """What dask.array.store needs: an assignment of a chunk to a box of the tensor."""

    def __init__(self, directory: Path, name: str, number: int, shape: tuple[int, ...]) -> None:
        self.directory, self.name, self.number, self.shape = directory, name, number, shape

    def __setitem__(self, box: tuple[slice, ...], chunk: np.ndarray) -> None:
        """Write a chunk as a part of its own. A task that Dask repeats replaces its part."""
        offset = tuple(one.start for one in box)
        part = "-".join(map(str, ["part", self.number, *offset]))
        with ckptfmt.Writer(self.directory / part) as writer:
            writer.add_slice(self.name, chunk, shape=self.shape, offset=offset)


@dask.delayed
def merged(directory: str, prefix: str, _stored: object) -> None:
    """Merge the parts when all are stored."""
    parts = sorted(path.with_suffix("") for path in Path(directory).glob("part-*.index"))
    ckptfmt.merge(parts, prefix, inputs="consume")


def store(prefix: str, arrays: Mapping[str, da.Array]) -> None:
    """Write Dask arrays as one checkpoint."""
    near = Path(prefix).absolute()
    with tempfile.TemporaryDirectory(prefix=f"{near.name}.parts-", dir=near.parent) as directory:
        named = enumerate(arrays.items())
        targets = [Target(Path(directory), name, n, array.shape) for n, (name, array) in named]
        with ckptfmt.Writer(Path(directory) / "part-empty") as writer:  # Dask skips empty chunks
            for name, array in arrays.items():
                if array.size == 0:
                    writer.add(name, np.empty(array.shape, array.dtype))
        stored = da.store(list(arrays.values()), targets, lock=False, compute=False)
        merged(directory, str(near), stored).compute()


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Halve all numbers of a checkpoint.")
    parser.add_argument("source")
    parser.add_argument("destination")
    given = parser.parse_args()
    arrays = arrays_of(given.source)
    store(given.destination, {name: array / 2 for name, array in arrays.items()})
    print(f"{len(arrays)} tensors in {given.destination}")


if __name__ == "__main__":
    main()
