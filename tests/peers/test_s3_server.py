# SPDX-License-Identifier: Apache-2.0
"""The S3 server of the tests, by clients that know nothing of us: what it counts and what it
breaks. If this fails, the other tests over it say nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import boto3
import botocore.exceptions
import obstore
import pytest
from botocore.config import Config
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


def store(s3: S3, retries: int = 0) -> S3Store:
    return S3Store(
        "bucket",
        endpoint=s3.url,
        access_key_id=KEY,
        secret_access_key=KEY,
        region=REGION,
        client_options={"allow_http": True, "timeout": "2s"},
        retry_config={
            "max_retries": retries,
            "backoff": {"init_backoff": timedelta(milliseconds=1)},
        },
    )


def plain(s3: S3) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
        config=Config(retries={"max_attempts": 1}, read_timeout=2, s3={"addressing_style": "path"}),
    )


def test_obstore(s3: S3) -> None:
    client = store(s3)
    obstore.put(client, "a/x", BODY, use_multipart=False)
    assert s3.get("bucket", "a/x") == BODY
    assert [(one.operation, one.key, one.status) for one in s3.requests] == [
        ("PUT", "bucket/a/x", 200)
    ]
    assert s3.requests[0].received == MIB
    s3.reset()
    assert bytes(obstore.get_range(client, "a/x", start=1000, end=3000)) == BODY[1000:3000]
    assert s3.count("GET") == 1 and 2000 < s3.sent() < 3500
    assert bytes(obstore.get(client, "a/x", options={"range": {"suffix": 5}}).bytes()) == BODY[-5:]
    assert obstore.head(client, "a/x")["size"] == MIB
    found = obstore.list_with_delimiter(client, "a")
    assert [one["path"] for one in found["objects"]] == ["a/x"]
    obstore.copy(client, "a/x", "a/y")
    obstore.delete(client, "a/x")
    assert s3.keys("bucket") == ["a/y"] and s3.get("bucket", "a/y") == BODY
    with pytest.raises(FileNotFoundError):
        obstore.head(client, "a/x")


def test_boto3(s3: S3) -> None:
    client = plain(s3)
    client.put_object(Bucket="bucket", Key="k \u00e9&%", Body=BODY)
    assert client.head_object(Bucket="bucket", Key="k \u00e9&%")["ContentLength"] == MIB
    found = client.get_object(Bucket="bucket", Key="k \u00e9&%", Range="bytes=7-9")["Body"].read()
    assert found == BODY[7:10]
    assert s3.keys("bucket") == ["k \u00e9&%"]
    assert client.list_objects_v2(Bucket="bucket")["KeyCount"] == 1
    client.close()


def test_conditions(s3: S3) -> None:
    client = store(s3)
    put = obstore.put(client, "x", b"one", mode="create", use_multipart=False)
    with pytest.raises(exceptions.AlreadyExistsError):
        obstore.put(client, "x", b"two", mode="create", use_multipart=False)
    update: Any = {"e_tag": put["e_tag"]}
    obstore.put(client, "x", b"two", mode=update, use_multipart=False)
    with pytest.raises(exceptions.PreconditionError):
        obstore.put(client, "x", b"three", mode=update, use_multipart=False)
    assert s3.get("bucket", "x") == b"two"
    direct = plain(s3)
    upload = direct.create_multipart_upload(Bucket="bucket", Key="x")["UploadId"]
    part = direct.upload_part(
        Bucket="bucket", Key="x", UploadId=upload, PartNumber=1, Body=b"multipart"
    )
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        direct.complete_multipart_upload(
            Bucket="bucket",
            Key="x",
            UploadId=upload,
            IfNoneMatch="*",
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        )
    direct.close()


def test_one_of_many_conditional_puts_succeeds(s3: S3) -> None:
    client = store(s3)
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


def test_multipart(s3: S3) -> None:
    client = store(s3)
    with obstore.open_writer(client, "x", buffer_size=5 * MIB) as file:
        for _ in range(12):
            file.write(BODY)
    assert s3.get("bucket", "x") == BODY * 12
    assert (s3.count("begin"), s3.count("part"), s3.count("complete")) == (1, 3, 1)
    assert not s3.uploads("bucket")
    with pytest.raises(KeyError), obstore.open_writer(client, "y", buffer_size=5 * MIB) as file:
        for _ in range(12):
            file.write(BODY)
        raise KeyError
    assert s3.count("abort") == 1 and s3.keys("bucket") == ["x"]
    assert not s3.uploads("bucket")


@pytest.mark.parametrize("does", ["500", "503", "lose", "drop"])
def test_faults_that_a_retry_mends(s3: S3, does: str) -> None:
    operation = "PUT" if does == "drop" else "GET"
    s3.put("bucket", "x", BODY)
    s3.fault(does, operation=operation, key="x$", times=2)
    client = store(s3, retries=3)
    assert bytes(obstore.get(client, "x").bytes()) == BODY
    obstore.put(client, "x", BODY[1:], use_multipart=False)
    assert s3.get("bucket", "x") == BODY[1:]
    assert s3.count(operation) == 3
    s3.reset()
    s3.fault(does, operation=operation, key="x$", after=1)
    once = store(s3)
    obstore.put(once, "x", BODY, use_multipart=False)
    assert bytes(obstore.get(once, "x").bytes()) == BODY
    with pytest.raises(exceptions.BaseError):
        obstore.get(once, "x").bytes()
        obstore.put(once, "x", b"other" * 1000, use_multipart=False)
    assert s3.get("bucket", "x") == BODY


def test_a_fault_of_a_put_is_before_it_or_after_it(s3: S3) -> None:
    client = store(s3)
    for does, there in (("drop", False), ("500", False), ("lose", True)):
        s3.fault(does, operation="PUT")
        with pytest.raises(exceptions.BaseError):
            obstore.put(client, does, BODY, use_multipart=False)
        assert (does in s3.keys("bucket")) == there


@pytest.mark.parametrize("does", ["truncate", "stall"])
def test_bodies_that_end_early(s3: S3, does: str) -> None:
    s3.put("bucket", "x", BODY)
    s3.fault(does, operation="GET", times=1)
    client = plain(s3)
    got = client.get_object(Bucket="bucket", Key="x")["Body"]
    with pytest.raises(
        (botocore.exceptions.IncompleteReadError, botocore.exceptions.HTTPClientError)
    ):
        got.read()
    assert client.get_object(Bucket="bucket", Key="x")["Body"].read() == BODY
    client.close()


def test_delays(s3: S3) -> None:
    s3.put("bucket", "x", BODY)
    s3.fault("delay", seconds=0.01, operation="GET")
    assert bytes(obstore.get(store(s3), "x").bytes()) == BODY
    s3.fault("delay", operation="GET")
    with pytest.raises(exceptions.BaseError):
        obstore.get(store(s3), "x").bytes()


def test_late_listings(s3: S3) -> None:
    client = store(s3)
    obstore.put(client, "a/old", b"1", use_multipart=False)
    s3.hide_new_keys()
    obstore.put(client, "a/new", b"2", use_multipart=False)
    listed = [one["path"] for page in obstore.list(client, "a") for one in page]
    assert listed == ["a/old"] and bytes(obstore.get(client, "a/new").bytes()) == b"2"
    s3.reset()
    listed = [one["path"] for page in obstore.list(client, "a") for one in page]
    assert listed == ["a/new", "a/old"]
