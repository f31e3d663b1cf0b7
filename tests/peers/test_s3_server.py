# SPDX-License-Identifier: Apache-2.0
"""The S3 server of the tests, by a client that knows nothing of us: what it counts and what it
breaks. If this fails, the other tests over it say nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import obstore
import pytest
from obstore import exceptions
from obstore.store import S3Store
from support.s3 import KEY, REGION, S3, running

MIB = 1 << 20
BODY = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    yield from running()


@pytest.fixture
def s3(server: S3) -> S3:
    server.bucket("bucket")
    server.reset()
    return server


@pytest.fixture
def client(s3: S3) -> S3Store:
    """A client that neither waits for long nor tries again."""
    return S3Store(
        "bucket",
        endpoint=s3.url,
        access_key_id=KEY,
        secret_access_key=KEY,
        region=REGION,
        client_options={"allow_http": True, "timeout": "2s"},
        retry_config={"max_retries": 0},
    )


def test_requests_and_bytes_are_counted(s3: S3, client: S3Store) -> None:
    obstore.put(client, "a/x", BODY, use_multipart=False)
    (request,) = s3.requests
    assert (request.operation, request.key, request.status) == ("PUT", "bucket/a/x", 200)
    assert request.received == MIB
    s3.reset()
    assert bytes(obstore.get_range(client, "a/x", start=1000, end=3000)) == BODY[1000:3000]
    assert s3.count("GET") == s3.count() == 1 and 2000 < s3.sent() < 3500
    assert s3.keys("bucket") == ["a/x"]


def test_one_of_many_conditional_puts_succeeds(s3: S3, client: S3Store) -> None:
    won = []

    def put(number: int) -> None:
        try:
            obstore.put(client, "x", b"%d" % number, mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % number for number in won] == [s3.get("bucket", "x")]


def test_faults_of_a_put_are_before_it_or_after_it(s3: S3, client: S3Store) -> None:
    for does, there in (("drop", False), ("500", False), ("503", False), ("lose", True)):
        s3.fault(does, operation="PUT")
        with pytest.raises(exceptions.BaseError):
            obstore.put(client, does, BODY, use_multipart=False)
        assert (does in s3.keys("bucket")) == there


@pytest.mark.parametrize("does", ["500", "503", "lose", "truncate", "stall", "delay"])
def test_a_fault_breaks_one_read(s3: S3, client: S3Store, does: str) -> None:
    s3.put("bucket", "x", BODY)
    s3.fault(does, key="y$")  # of another object
    s3.fault(does, operation="GET", key="x$", after=1)
    assert bytes(obstore.get(client, "x").bytes()) == BODY
    with pytest.raises(exceptions.BaseError):
        obstore.get(client, "x").bytes()
    assert bytes(obstore.get(client, "x").bytes()) == BODY
    # One that is delayed is counted when it ends.
    assert s3.count("GET") == (2 if does == "delay" else 3)


def test_late_listings(s3: S3, client: S3Store) -> None:
    def listed() -> list[str]:
        return [one["path"] for page in obstore.list(client, "a") for one in page]

    obstore.put(client, "a/old", b"1", use_multipart=False)
    s3.hide_new_keys()
    obstore.put(client, "a/new", b"2", use_multipart=False)
    assert listed() == ["a/old"] and bytes(obstore.get(client, "a/new").bytes()) == b"2"
    s3.reset()
    assert listed() == ["a/new", "a/old"]
