# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a small model saved by four processes, merged, looked at, sliced and damaged.

Everything happens in a temporary directory, which is gone afterwards.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import ckptfmt

PROCESSES = 4
ROWS, COLUMNS = 4096, 256
VOCABULARY = ["<pad>", "<start>", "the", "checkpoint", "Prüfpunkt", "検査点"]


def kernel_rows(first: int, last: int) -> np.ndarray:
    """The rows of the kernel that one process holds; nobody holds all of them."""
    values = np.arange(first * COLUMNS, last * COLUMNS, dtype=np.float32) % 251
    return (values / 16).astype(ml_dtypes.bfloat16).reshape(last - first, COLUMNS)


def save_shard(rank: int, prefix: str) -> None:
    """What one process does: its rows of the kernel, and tensors of its own."""
    rows = ROWS // PROCESSES
    with ckptfmt.Writer(prefix) as writer:
        writer.add_slice(
            "embedding/kernel",
            kernel_rows(rank * rows, (rank + 1) * rows),
            shape=(ROWS, COLUMNS),
            offset=(rank * rows, 0),
        )
        random = np.random.default_rng(rank)
        writer.add(f"layer_{rank}/kernel", random.normal(size=(64, 64)).astype(np.float32))
        writer.add(f"layer_{rank}/bias", np.full(64, rank, np.float32))
        if rank == 0:
            writer.add("step", np.int64(12345))
            writer.add("vocabulary", np.array(VOCABULARY))


def say(text: str) -> None:
    print(f"\n* {text}", flush=True)


def command(verb: str, model: str) -> int:
    """Runs the ckptfmt command as a user would, and shows what it prints."""
    directory, name = os.path.split(model)
    print(f"  $ ckptfmt {verb} {name}", flush=True)
    ran = subprocess.run(
        [sys.executable, "-m", "ckptfmt", verb, name],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
        check=False,
    )
    for line in ran.stdout.splitlines():
        print(f"  {line}")
    print(f"  (exit status {ran.returncode})", flush=True)
    return ran.returncode


def save_from_processes(prefixes: list[str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=save_shard, args=(rank, prefix))
        for rank, prefix in enumerate(prefixes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode != 0 for worker in workers):
        raise SystemExit("a worker process failed")


def restore_slice(model: str) -> None:
    with ckptfmt.open(model) as checkpoint:
        part = checkpoint["embedding/kernel"][1000:1100, 8:16]
        words = [word.decode() for word in checkpoint["vocabulary"].read()]
        step = int(checkpoint["step"].read())
    # Row 1024 is where the first process's rows end and the second's begin.
    if not np.array_equal(part, kernel_rows(1000, 1100)[:, 8:16]):
        raise SystemExit("the slice is not what was saved")
    if words != VOCABULARY or step != 12345:
        raise SystemExit("vocabulary or step are not what was saved")
    print(f"  rows 1000 to 1099, columns 8 to 15: {part.dtype}, {part.nbytes} bytes, as saved;")
    print(f"  it is in two data files. step = {step}, {len(words)} words of the vocabulary.")


def damage(model: str) -> None:
    with ckptfmt.open(model) as checkpoint:
        stored = checkpoint["embedding/kernel"].slices[2]
        shards = checkpoint.header.num_shards
    data = Path(f"{model}.data-{stored.shard:05d}-of-{shards:05d}")
    offset = stored.offset + 1000
    with open(data, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x04]))
    print(f"  byte {offset} of {data.name}: {byte:#04x} became {byte ^ 4:#04x}")


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ckptfmt-demo-") as directory:
        model = os.path.join(directory, "model")
        prefixes = [
            os.path.join(directory, "model_temp", f"part-{rank:05d}-of-{PROCESSES:05d}")
            for rank in range(PROCESSES)
        ]
        say(
            f"Saving from {PROCESSES} processes. Each writes one bundle: its quarter of the rows of"
        )
        print("  embedding/kernel (bfloat16), and its layer. No process has the whole model.")
        save_from_processes(prefixes)

        say("Merging the four bundles into one checkpoint. The data files move as they are; only a")
        print("  new index is written, and the checkpoint appears with one rename.")
        ckptfmt.merge(prefixes, model, inputs="consume")
        for path in sorted(Path(directory).glob("model.*")):
            print(f"  {path.name:30} {path.stat().st_size:>9} bytes")

        say("Looking at it. This reads the index only.")
        if command("inspect", model) != 0:
            raise SystemExit("inspect failed")

        say("Checking every checksum in it.")
        if command("verify", model) != 0:
            raise SystemExit("verify found a problem in a sound checkpoint")

        say("Restoring a slice. This reads the bytes of the slice and what it takes to check them.")
        restore_slice(model)

        say("Damaging one bit of one data file.")
        damage(model)
        if command("verify", model) != 1:
            raise SystemExit("verify did not notice")

        say("Reading the damaged tensor, and then one that is not.")
        with ckptfmt.open(model) as checkpoint:
            try:
                checkpoint["embedding/kernel"].read()
            except ckptfmt.CorruptError as error:
                print(f"  CorruptError: {str(error).replace(directory + os.sep, '')}")
            else:
                raise SystemExit("wrong bytes were returned")
            bias = checkpoint["layer_3/bias"].read()
        print(f"  layer_3/bias still reads: {bias.shape} of {bias.dtype}, all {bias[0]:g}.")
    say(f"Done in {time.monotonic() - began:.1f} s. Nothing is left behind.")


if __name__ == "__main__":
    main()
