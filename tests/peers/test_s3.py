# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on an S3 server: what a read costs, faults on the way, and writers that are killed,
fail or race."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
from obstore.store import AzureStore, S3Store
from support.child import Child
from support.leftovers import HOURS, STEPS, check_killed_writers
from support.s3 import KEY, REGION, S3, running
from support.strategies import property_test

import ckptfmt
from ckptfmt import errors, stores
from ckptfmt.stores import objects, obstore_client, waiting
from ckptfmt.stores.leftovers import leftovers

URL = "s3://bucket/run/model"
MIB = 1 << 20
Arrays = dict[str, np.ndarray]
OLD: Arrays = {"w": np.arange(1000, dtype=np.float32), "b": np.ones((7, 3))}
# More than one part of an upload, in the store of the fixture `s3`.
NEW: Arrays = {
    "w": np.random.default_rng(1).integers(0, 255, (12, MIB), np.uint8),
    "step": np.int64(7),
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    yield from running()


@pytest.fixture
def user(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty bucket, and the environment of a user of it."""
    server.bucket("bucket")
    server.reset()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield server
    stores.mount("s3://bucket", None)
    server.reset()


@pytest.fixture
def s3(user: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The same through a client that does not wait long, and small parts."""
    monkeypatch.setattr(waiting, "PAUSE", 0.001)
    monkeypatch.setattr(objects, "SMALL_BYTES", MIB)
    monkeypatch.setattr(obstore_client, "PART_BYTES", 5 * MIB)  # S3's least
    stores.mount("s3://bucket", hasty(user))
    return user


def hasty(server: S3, timeout: str = "10s", bucket: str = "bucket") -> S3Store:
    return S3Store(
        bucket,
        endpoint=server.url,
        access_key_id=KEY,
        secret_access_key=KEY,
        region=REGION,
        client_options={"allow_http": True, "timeout": timeout},
        retry_config={
            "max_retries": 5,
            "backoff": {
                "init_backoff": timedelta(milliseconds=1),
                "max_backoff": timedelta(milliseconds=10),
            },
        },
    )


def same(found: Arrays, wanted: Arrays) -> None:
    assert list(found) == sorted(wanted)
    for name, array in wanted.items():
        assert np.array_equal(found[name], array)


# ---- what a user does, and what it costs --------------------------------------------------------


def test_save_and_load(user: S3) -> None:
    ckptfmt.save(URL, NEW, metadata={"step": 3})
    assert user.keys("bucket") == ["run/model.data-00000-of-00001", "run/model.index"]
    same(ckptfmt.load(URL), NEW)
    assert ckptfmt.verify(URL).ok
    assert not user.uploads("bucket")
    program = "from ckptfmt import cli; raise SystemExit(cli.main(['verify', 's3://bucket/run']))"
    with Child(program) as child:
        assert child.line().startswith("sound") and child.end() == 0


@pytest.mark.parametrize("mib", [32, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_slice_takes_few_requests_and_bytes(user: S3, mib: int) -> None:
    tensor = np.random.default_rng(2).integers(0, 255, (mib, MIB), np.uint8)
    ckptfmt.save(URL, {"w": tensor, "other": np.ones(10)}, shards=1)
    user.reset()
    with ckptfmt.open(URL) as reader:
        # The index has a checksum of 4 bytes for each chunk of 256 KiB.
        assert user.count() <= 2 and user.sent() < (16 << 10) + 16 * mib
        assert reader["w"].partial_reads_verified
        user.reset()
        assert np.array_equal(reader["w"][mib // 2], tensor[mib // 2])
        assert user.count() <= 3 and user.sent() <= 2 * MIB
        user.reset()
        assert np.array_equal(reader["w"][5, 1000:2000], tensor[5, 1000:2000])
        assert user.count() <= 2 and user.sent() < MIB


def test_a_whole_load_reads_each_byte_once(user: S3) -> None:
    ckptfmt.save(URL, NEW)
    user.reset()
    same(ckptfmt.load(URL), NEW)
    assert user.sent() < 13 * MIB and user.count("GET") <= 8


def test_a_merge_moves_no_data(s3: S3) -> None:
    ckptfmt.save(f"{URL}-0", {"a": np.arange(5)})
    ckptfmt.save(f"{URL}-1", NEW)
    s3.reset()
    ckptfmt.merge([f"{URL}-0", f"{URL}-1"], URL)
    assert s3.sent() + sum(one.received for one in s3.requests) < MIB
    assert sum("x-amz-copy-source" in one.headers for one in s3.requests) == 2
    same(ckptfmt.load(URL), {"a": np.arange(5), **NEW})


def test_a_manager(s3: S3) -> None:
    state = ckptfmt.Checkpoint(w=np.zeros(1000))
    manager = ckptfmt.CheckpointManager(state, "s3://bucket/train", max_to_keep=2)
    for step in range(4):
        state.w[...] = step
        manager.save()
    assert s3.keys("bucket") == [
        "train/checkpoint",
        *(f"train/ckpt-{n}.{end}" for n in (3, 4) for end in ("data-00000-of-00001", "index")),
    ]
    assert ckptfmt.latest_checkpoint("s3://bucket/train") == "s3://bucket/train/ckpt-4"
    state.w[...] = -1
    state.restore("s3://bucket/train/ckpt-3")
    assert (state.w == 2).all()


def test_s3fs(user: S3) -> None:
    files = s3fs.S3FileSystem(
        key=KEY,
        secret=KEY,
        endpoint_url=user.url,
        client_kwargs={"region_name": REGION},
        skip_instance_cache=True,
    )
    stores.mount("s3://bucket", files)
    stores.mount("s3fs://", files)
    try:
        ckptfmt.save("s3fs://bucket/run/model", OLD)
        ckptfmt.save("s3fs://bucket/run/model", NEW)
        same(ckptfmt.load("s3fs://bucket/run/model"), NEW)
        assert ckptfmt.verify("s3fs://bucket/run/model").ok
        user.reset()
        with ckptfmt.open("s3fs://bucket/run") as reader:
            assert np.array_equal(reader["w"][3], NEW["w"][3])
        assert user.sent() < 3 * MIB
    finally:
        stores.mount("s3fs://", None)
    stores.mount("s3://bucket", None)
    same(ckptfmt.load(URL), NEW)


# ---- faults while reading -----------------------------------------------------------------------


@pytest.mark.parametrize("does", ["500", "503", "lose", "truncate", "stall", "delay"])
def test_faults_while_reading(s3: S3, does: str) -> None:
    ckptfmt.save(URL, NEW)
    s3.reset()
    times = 2
    if does == "stall":
        stores.mount("s3://bucket", hasty(s3, "3s"))
        times = 1
    seconds = 0.01 if does == "delay" else 60.0
    s3.fault(does, operation="GET", key="index", times=times, seconds=seconds)
    s3.fault(does, operation="GET", key="data", times=times, seconds=seconds)
    same(ckptfmt.load(URL), NEW)
    assert all(fault.times < times for fault in s3.faults)


@pytest.mark.parametrize("does", ["500", "503", "lose", "truncate"])
def test_faults_that_stay_are_no_damage(s3: S3, does: str) -> None:
    ckptfmt.save(URL, OLD)
    with ckptfmt.open(URL) as reader:
        s3.fault(does, operation="GET", key="data", times=1000)
        with pytest.raises(errors.StorageError) as raised:
            reader["w"].read()
        assert not isinstance(raised.value, errors.ShardMissingError)
        s3.reset()
        assert np.array_equal(reader["w"].read(), OLD["w"])
    s3.fault(does, key="index", times=1000)
    with pytest.raises(errors.StorageError) as raised:
        ckptfmt.open(URL)
    assert not isinstance(raised.value, errors.CheckpointNotFoundError)


def test_late_listings(s3: S3) -> None:
    """Nothing that is written can be seen in a listing; commits need none."""
    ckptfmt.save(URL, OLD)
    s3.hide_new_keys()
    ckptfmt.save(URL, NEW, shards=3)
    same(ckptfmt.load(URL), NEW)
    ckptfmt.save(URL, {"x": np.ones(3)})
    ckptfmt.save(URL, OLD, shards=3)
    same(ckptfmt.load(URL), OLD)
    assert ckptfmt.verify(URL).ok
    state = ckptfmt.Checkpoint(w=np.zeros(1000))
    manager = ckptfmt.CheckpointManager(state, "s3://bucket/train", max_to_keep=2)
    for _ in range(3):
        manager.save()
    assert ckptfmt.latest_checkpoint("s3://bucket/train") == "s3://bucket/train/ckpt-3"
    again = ckptfmt.CheckpointManager(state, "s3://bucket/train", max_to_keep=2)
    again.save()
    assert ckptfmt.latest_checkpoint("s3://bucket/train") == "s3://bucket/train/ckpt-4"


# ---- faults while writing -----------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["PUT", "begin", "part", "complete"])
@pytest.mark.parametrize("does", ["500", "503", "drop", "lose"])
def test_faults_while_writing(s3: S3, does: str, operation: str) -> None:
    ckptfmt.save(URL, OLD)
    fault = s3.fault(does, operation=operation, times=2)
    try:
        ckptfmt.save(URL, NEW)
    except errors.StorageError:
        # The server no longer knows an upload that it has completed already.
        assert (does, operation) == ("lose", "complete")
        same(ckptfmt.load(URL), OLD)
        ckptfmt.save(URL, NEW)
    assert fault.times <= 0
    same(ckptfmt.load(URL), NEW)
    assert ckptfmt.verify(URL).ok
    if does != "lose":
        assert not s3.uploads("bucket")


@pytest.mark.parametrize("operation", ["PUT", "begin", "part", "complete"])
def test_a_save_that_fails(s3: S3, operation: str) -> None:
    """The old checkpoint stays, and nothing else: uploads are aborted, objects removed."""
    ckptfmt.save(URL, OLD)
    before = s3.keys("bucket")
    s3.fault("503", operation=operation, times=1000, key="index" if operation == "PUT" else "")
    with pytest.raises(errors.StorageError):
        ckptfmt.save(URL, NEW)
    assert s3.keys("bucket") == before
    assert not s3.uploads("bucket")
    s3.reset()
    same(ckptfmt.load(URL), OLD)
    ckptfmt.save(URL, NEW)
    same(ckptfmt.load(URL), NEW)


def test_an_exception_in_a_writer(s3: S3) -> None:
    ckptfmt.save(URL, OLD)
    before = s3.keys("bucket")
    with pytest.raises(KeyError), ckptfmt.Writer(URL) as writer:
        writer.add("w", NEW["w"])
        raise KeyError
    assert s3.keys("bucket") == before and not s3.uploads("bucket")


SAVE = """
import sys
import numpy as np
import ckptfmt, ckptfmt.stores.obstore_client
arrays = {"w": np.ones((9, 1 << 20), np.uint8), "v": np.ones((9, 1 << 20), np.uint8)}
print("ready", flush=True)
sys.stdin.readline()
ckptfmt.save("s3://bucket/run/model", arrays, shards=2)
print("saved", flush=True)
"""


def test_a_writer_killed_anywhere(user: S3) -> None:
    """At each of its requests: old or new, and the next save is as any other."""
    new = {name: np.ones((9, MIB), np.uint8) for name in "wv"}
    outcomes: list[tuple[str, bool]] = []
    while not outcomes or outcomes[-1][0] != "saved":
        # What a killed writer leaves makes the next save of its prefix longer.
        user.bucket("bucket")
        with Child(SAVE) as child:
            ckptfmt.save(URL, OLD)
            assert child.line() == "ready"
            user.reset()
            user.before = _Knife(child, after=len(outcomes))
            child.go_on()
            ended = child.line()
            child.end()
        user.reset()
        found = ckptfmt.load(URL)
        outcomes.append((ended, "v" in found))
        same(found, new if "v" in found else OLD)
        ckptfmt.save(URL, OLD)
        same(ckptfmt.load(URL), OLD)
    assert len(outcomes) > 8
    assert outcomes[0] == ("", False), "most are before the commit"
    assert outcomes[-1] == ("saved", True)


class _Knife:
    """Kills a process at the first request after so many, which is not carried out any more."""

    def __init__(self, child: Child, after: int) -> None:
        self._child, self._left = child, after
        self._lock = threading.Lock()

    def __call__(self, operation: str, key: str) -> bool:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                self._child.process.kill()
            return self._left < 0


# ---- writers that race --------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_a_commit_between_look_and_put_is_refused(s3: S3, there: bool) -> None:
    if there:
        ckptfmt.save(URL, OLD)
    other = {"other": np.arange(5)}
    begun = []

    def save_other(operation: str, key: str) -> None:
        if operation == "PUT" and key.endswith(".index") and not begun:
            begun.append(key)
            ckptfmt.save(URL, other)

    s3.before = save_other
    with pytest.raises(errors.BusyError, match="another writer"):
        ckptfmt.save(URL, NEW)
    same(ckptfmt.load(URL), other)
    assert ckptfmt.verify(URL).ok and not s3.uploads("bucket")
    with ckptfmt.open(URL) as reader:
        assert len(s3.keys("bucket")) == reader.header.num_shards + 1, "nothing is left behind"


def test_many_writers_of_one_prefix(s3: S3) -> None:
    """Each commits or gets a BusyError; what is there in the end is whole, and one of theirs."""
    won, failed = [], []
    start = threading.Barrier(6)

    def save(number: int) -> None:
        start.wait(60)
        for step in range(3):
            arrays = {"w": np.full(1000, number * 10 + step), "n": np.int64(number * 10 + step)}
            try:
                ckptfmt.save(URL, arrays)
            except errors.BusyError:
                continue
            except BaseException as error:
                failed.append(error)
                raise
            won.append(number * 10 + step)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    found = ckptfmt.load(URL)
    assert int(found["n"]) in won and (found["w"] == found["n"]).all()
    assert ckptfmt.verify(URL).ok


# ---- credentials and endpoints ------------------------------------------------------------------


PROGRAM = """
import sys, time, numpy as np, ckptfmt
url, began = sys.argv[1], time.monotonic()
try:
    if sys.argv[2] == "save":
        ckptfmt.save(url, {"w": np.arange(int(sys.argv[3]))})
    print("right", ckptfmt.load(url)["w"].sum(), flush=True)
except BaseException as error:
    print(f"{type(error).__name__}: {error}", flush=True)
print(time.monotonic() - began, flush=True)
"""


def outcome(
    s3: S3, url: str = URL, call: str = "save", size: int = 10, **environment: str | None
) -> tuple[str, float]:
    """Save and load in a new process that has what the AWS tools need, and no more."""
    wanted = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    given = s3.environment() | environment
    wanted |= {name: value for name, value in given.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, call, str(size)],
        env=wanted,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    said, seconds = done.stdout.splitlines()
    return said, float(seconds)


NO_KEYS = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}


def test_an_endpoint_with_http_and_a_key(user: S3) -> None:
    """As boto3 and s3fs: nothing says that http is allowed."""
    only = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None, "AWS_EC2_METADATA_DISABLED": None}
    assert outcome(user, **only)[0] == "right 45"
    only |= {"AWS_ENDPOINT_URL": None, "AWS_ENDPOINT_URL_S3": user.url}
    assert outcome(user, **only)[0] == "right 45"


@pytest.mark.parametrize("endpoint", ["environment", "profile"])
@pytest.mark.parametrize("profile", ["default", "lab"])
def test_a_profile(user: S3, tmp_path: Path, profile: str, endpoint: str) -> None:
    section = "default" if profile == "default" else f"profile {profile}"
    in_file = f"endpoint_url = {user.url}\n" if endpoint == "profile" else ""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(f"[{section}]\nregion = {REGION}\n{in_file}")
    (tmp_path / ".aws/credentials").write_text(
        f"[{profile}]\naws_access_key_id = {KEY}\naws_secret_access_key = {KEY}\n"
    )
    environment = {**NO_KEYS, "HOME": str(tmp_path), "AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    if profile != "default":
        environment["AWS_PROFILE"] = profile
    if endpoint == "profile":
        environment["AWS_ENDPOINT_URL"] = None
    assert outcome(user, **environment)[0] == "right 45"


def test_keys_of_the_environment_and_a_profile_without_any(user: S3, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"[default]\nregion = eu-west-3\nendpoint_url = {user.url}\n")
    environment = {
        **dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SKIP_SIGNATURE": "false",
    }
    assert outcome(user, **environment)[0] == "right 45"
    assert "/eu-west-3/s3/" in user.requests[-1].headers["authorization"]


def test_a_region_of_the_environment_and_keys_of_a_profile(user: S3, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {KEY}\n"
    (tmp_path / ".aws/credentials").write_text(f"[default]\n{keys}region = eu-west-3\n")
    environment = {**NO_KEYS, "HOME": str(tmp_path), "AWS_DEFAULT_REGION": "eu-central-1"}
    assert outcome(user, **environment, AWS_REGION="us-west-1")[0] == "right 45"
    assert "/us-west-1/s3/" in user.requests[-1].headers["authorization"]


def test_a_put_that_the_server_carries_out_later(user: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is unknown: both checkpoints keep their data."""
    monkeypatch.setattr(waiting, "SLOWEST", 1 << 40)
    ckptfmt.save(URL, OLD)
    monkeypatch.setenv(waiting.STALL_VARIABLE, "0.5")
    user.fault("delay", operation="PUT", key="index$", seconds=2)
    with pytest.raises(errors.DurabilityUnknownError, match="not answered"):
        ckptfmt.save(URL, {"w": np.ones(7)})
    monkeypatch.delenv(waiting.STALL_VARIABLE)
    same(ckptfmt.load(URL), OLD)
    time.sleep(2.5)
    same(ckptfmt.load(URL), {"w": np.ones(7)})
    assert ckptfmt.verify(URL).ok
    ckptfmt.save(URL, OLD)
    same(ckptfmt.load(URL), OLD)


def test_no_credentials(user: S3, tmp_path: Path) -> None:
    said, _ = outcome(user, HOME=str(tmp_path), **NO_KEYS)
    assert said.startswith("StorageError: ") and "no credentials were found" in said
    assert "AWS_ACCESS_KEY_ID" in said and "~/.aws" in said
    nowhere: Any = {"proxy_url": "http://127.0.0.1:1"}
    options: Any = {"client_options": nowhere, "retry_config": {"max_retries": 0}}
    stores.mount("az://c", AzureStore("c", account_name="a", **options))
    with pytest.raises(errors.StorageError, match="no credentials were found") as caught:
        ckptfmt.load("az://c/model")
    stores.mount("az://c", None)
    assert "AWS" not in str(caught.value)
    said, _ = outcome(user, HOME=str(tmp_path), AWS_PROFILE="nowhere", **NO_KEYS)
    assert said.startswith("StorageError: ") and "nowhere" in said
    ckptfmt.save(URL, {"w": np.arange(10)})
    for key in user.keys("bucket"):
        user.client.put_object_acl(Bucket="bucket", Key=key, ACL="public-read")
    unsigned = {**NO_KEYS, "HOME": str(tmp_path), "AWS_SKIP_SIGNATURE": "true"}
    assert outcome(user, call="load", **unsigned)[0] == "right 45"


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_bucket_that_does_not_exist(user: S3, call: str) -> None:
    said, _ = outcome(user, "s3://nobucket/m", call)
    assert said.startswith("StorageError: ") and "NoSuchBucket" in said and "<" not in said


# ---- a server that stalls -----------------------------------------------------------------------

STALLS: list[tuple[str, str, str, int]] = [
    ("stall", "GET", "load", 10),
    ("delay", "GET", "load", 10),
    ("stall", "list", "load", 10),
    ("delay", "list", "load", 10),
    ("delay", "PUT", "save", 10),
    ("delay", "begin", "save", 2 << 20),
    ("delay", "part", "save", 2 << 20),
    ("delay", "complete", "save", 2 << 20),
]


@pytest.mark.parametrize(("does", "operation", "call", "size"), STALLS)
def test_a_stall(
    user: S3, monkeypatch: pytest.MonkeyPatch, does: str, operation: str, call: str, size: int
) -> None:
    """A stall ends after two limits and what is under way; Ctrl-C ends it at once."""
    monkeypatch.setattr(waiting, "SLOWEST", 1 << 40)
    monkeypatch.setenv(waiting.STALL_VARIABLE, "0.5")
    ckptfmt.save(URL, OLD)
    url = f"{URL.rpartition('/')[0]}/" if operation == "list" else URL
    user.fault(does, operation=operation, times=1000, seconds=1000)
    began = time.monotonic()
    with pytest.raises(errors.StorageError, match=r"not answered or moved a byte for 0\.5"):
        run(url, call, size)
    seconds = time.monotonic() - began
    monkeypatch.setenv(waiting.STALL_VARIABLE, "60")
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(url, call, size)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, interrupted)
    after = time.monotonic() - began - 0.5
    print(f"{does} of {operation}, {call}: {seconds:.1f} s, after Ctrl-C {after:.2f} s")
    assert seconds < 10 and after < 1
    user.reset()
    same(ckptfmt.load(URL), OLD)


def run(url: str, call: str, size: int) -> None:
    if call == "save":
        ckptfmt.save(url, {"w": np.arange(size)})
    else:
        ckptfmt.load(url)


# ---- what killed writers leave ------------------------------------------------------------------


@property_test(5, 200, STEPS, HOURS)
def test_clean(server: S3, steps: Any, hours: list[float]) -> None:
    """tests/stores/test_leftovers.py has the same of a store in memory."""
    server.bucket("left")
    store = hasty(server, bucket="left")
    check_killed_writers(obstore_client.client(store), "s3://left", "s3://left/run/", steps, hours)


def test_times_of_the_server(s3: S3) -> None:
    ckptfmt.save(URL, OLD)
    s3.put("bucket", "run/model.data-00000-of-00002", b"")
    assert not leftovers("s3://bucket/run", 60.0)
    time.sleep(1.1)  # the resolution of a listing
    (left,) = leftovers("s3://bucket/run", 0.1)
    assert left.url == f"{URL}.data-00000-of-00002"
