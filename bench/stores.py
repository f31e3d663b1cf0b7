# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on S3 beside s3fs, boto3 and obstore moving the same bytes, in one run.

    PYTHONPATH=.:tests python bench/stores.py [--smoke] [--mib 256]

The server is moto's on the loopback interface, a Python program that all clients wait for: the
ratios say how much work a client adds, not how fast S3 is. Ours also checksums all bytes.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable

import boto3
import numpy as np
import obstore
import s3fs
from obstore.store import S3Store
from support.s3 import KEY, REGION, S3

import ckptfmt

URL, MIB, TENSORS = "s3://bucket/run/model", 1 << 20, 16


def measured(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="little data, once")
    parser.add_argument("--mib", type=int, default=256)
    options = parser.parse_args()
    size = (16 if options.smoke else options.mib) * MIB
    rounds = 1 if options.smoke else 3
    data = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    arrays = {f"layer{i}": part for i, part in enumerate(np.split(data, TENSORS))}
    raw = data.tobytes()
    with S3() as server:
        server.bucket("bucket")
        secret = {"access_key_id": KEY, "secret_access_key": KEY, "region": REGION}
        store = S3Store(
            "bucket", endpoint=server.direct_url, client_options={"allow_http": True}, **secret
        )
        ckptfmt.stores.mount("s3://bucket", store)
        files = s3fs.S3FileSystem(
            key=KEY,
            secret=KEY,
            client_kwargs={"endpoint_url": server.direct_url, "region_name": REGION},
        )
        client = boto3.client(
            "s3",
            endpoint_url=server.direct_url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
        )
        rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "ckptfmt": (lambda: ckptfmt.save(URL, arrays), lambda: ckptfmt.load(URL)),
            "obstore": (
                lambda: obstore.put(store, "o", raw, chunk_size=16 * MIB, max_concurrency=4),
                lambda: obstore.get(store, "o").bytes(),
            ),
            "s3fs": (
                lambda: files.pipe_file("bucket/s", raw),
                lambda: files.cat_file("bucket/s"),
            ),
            "boto3": (
                lambda: client.upload_fileobj(io.BytesIO(raw), "bucket", "b"),
                lambda: client.download_fileobj("bucket", "b", io.BytesIO()),
            ),
        }
        print(f"{size // MIB} MiB in {TENSORS} tensors, median of {rounds}, ratios to ckptfmt\n")
        print(
            "| | write, MiB/s | ratio | read, MiB/s | ratio |\n| --- | ---: | ---: | ---: | ---: |"
        )
        base: list[float] = []
        for name, works in rows.items():
            speeds = [size / MIB / measured(work, rounds) for work in works]
            base = base or speeds
            cells = (
                f"{speed:.0f} | {speed / ours:.2f}"
                for speed, ours in zip(speeds, base, strict=True)
            )
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        client.close()


if __name__ == "__main__":
    main()
