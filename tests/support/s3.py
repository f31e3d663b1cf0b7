# SPDX-License-Identifier: Apache-2.0
"""An S3 server on the loopback interface: moto's, in a process of its own, behind a proxy that
counts requests and makes faults. Needs the extra `peers`."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
from botocore.config import Config

from support.child import Child

__all__ = ["S3", "Fault", "Request", "running"]

# It ends with its standard input, too: when the test's process was killed.
SERVER = """
import logging, os, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
"""

REGION, KEY = "us-east-1", "testing"
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "host", "content-length"}
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>"
BROKEN = b"<Error><Code>InternalError</Code><Message>We had a problem.</Message></Error>"


@dataclass
class Request:
    """One request that the proxy got.

    Attributes:
        key: the bucket and the key, or the bucket alone for a listing.
        operation: the method, or what a query makes of it: "list", "begin", "part", "complete",
            "abort".
        received: bytes of the request's body.
        sent: bytes of the answer, with its headers.
        status: 0 if it got no answer.
    """

    operation: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    received: int = 0
    sent: int = 0
    status: int = 0


@dataclass
class Fault:
    """What happens to the next requests that match.

    Attributes:
        does: "500" or "503" answer with that status; "drop" closes the connection in the middle of
            the request's body; "lose" carries the request out and closes without an answer;
            "truncate" sends half of the answer's body; "stall" sends half of it and then nothing
            for `seconds`; "delay" waits `seconds` before it carries the request out.
        operation: of the requests, "" for all.
        key: a regular expression that is found in the key.
        times: how many requests, after the first `after` that match.
    """

    does: str
    operation: str = ""
    key: str = ""
    times: int = 1
    after: int = 0
    seconds: float = 60.0

    def takes(self, operation: str, key: str) -> bool:
        if self.operation not in ("", operation) or not re.search(self.key, key):
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return self.times >= 0


class S3:
    """The server.

    Attributes:
        url: of the proxy.
        direct_url: of moto itself, which counts nothing.
        requests: those that the proxy got.
        faults: those in force.
        before: called as before(operation, key) before a request is carried out; if it returns
            true, the request is not, and gets no answer.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.before: Callable[[str, str], object] = _nothing
        self._lock = threading.Lock()
        # moto looks and then puts: two conditional writes at a time would both succeed.
        self._commit = threading.Lock()
        self._late: set[str] | None = None
        self._child = Child(SERVER)
        self.port = int(self._child.line())
        self.direct_url = f"http://127.0.0.1:{self.port}"
        self._released = threading.Event()
        self._proxy = _Proxy(self)
        self.url = f"http://127.0.0.1:{self._proxy.server_port}"
        self._thread = threading.Thread(target=self._proxy.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.direct_url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._released.set()
        self._proxy.shutdown()
        self._thread.join(60)
        self._proxy.server_close()
        self.client.close()
        self._child.__exit__()

    # ---- for clients

    def environment(self, direct: bool = False) -> dict[str, str]:
        """Return the environment in which obstore, s3fs and boto3 use this server."""
        return {
            "AWS_ENDPOINT_URL": self.direct_url if direct else self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, name: str) -> str:
        """Make an empty bucket."""
        with contextlib.suppress(self.client.exceptions.NoSuchBucket):
            for key in self.keys(name):
                self.client.delete_object(Bucket=name, Key=key)
            for upload in self.uploads(name):
                self.client.abort_multipart_upload(Bucket=name, **upload)
        self.client.create_bucket(Bucket=name)
        return name

    def reset(self) -> None:
        """Forget requests, faults, `before` and what listings hide."""
        with self._lock:
            self.before = _nothing
            self.requests.clear()
            self.faults.clear()
            self._late = None

    # ---- what is there

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def get(self, bucket: str, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=data)

    def uploads(self, bucket: str) -> list[dict[str, str]]:
        """Return the multipart uploads that are under way."""
        found = self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
        return [{"Key": one["Key"], "UploadId": one["UploadId"]} for one in found]

    # ---- what happened, and what shall

    def count(self, *operations: str) -> int:
        """Return how many requests there were, of these operations or of all."""
        with self._lock:
            return sum(not operations or one.operation in operations for one in self.requests)

    def sent(self) -> int:
        """Return the bytes of all answers, with their headers."""
        with self._lock:
            return sum(one.sent for one in self.requests)

    def fault(self, does: str, **given: Any) -> Fault:
        """Put a fault into force; `Fault` describes the arguments."""
        with self._lock:
            self.faults.append(Fault(does, **given))
            return self.faults[-1]

    def hide_new_keys(self) -> None:
        """From now on, listings lack the objects that are written from now on."""
        with self._lock:
            self._late = set()

    # ---- for the proxy

    def fault_for(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            # The first takes it: all others must not count it.
            return next((one for one in self.faults if one.takes(operation, key)), None)

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            written = request.operation in ("PUT", "complete") and request.status < 300
            if self._late is not None and written:
                self._late.add(request.key.partition("/")[2])

    def commit_lock(self, conditional: bool) -> contextlib.AbstractContextManager[Any]:
        return self._commit if conditional else contextlib.nullcontext()

    def listing(self, body: bytes) -> bytes:
        """Return a listing as it is shown."""
        with self._lock:
            late = self._late or ()

        def shown(match: re.Match[bytes]) -> bytes:
            return b"" if unquote(match[1].decode()) in late else match[0]

        pattern = rb"<Contents>(?:(?!</Contents>).)*?<Key>(.*?)</Key>.*?</Contents>"
        return re.sub(pattern, shown, body, flags=re.S) if late else body

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the test."""
        self._released.wait(seconds)


def _nothing(_operation: str, _key: str) -> object:
    return None


def running() -> Iterator[S3]:
    """Yield a server: a fixture's body."""
    with S3() as server:
        yield server


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: S3) -> None:
        self.s3 = server
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away, which killed ones do, are not reported."""


class _ClosedError(Exception):
    """The connection ends without an answer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPConnection("127.0.0.1", self.server.s3.port)

    def finish(self) -> None:
        self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_given: object) -> None:
        """Print nothing."""

    def handle_one_request(self) -> None:
        self.request_seen: Request | None = None
        super().handle_one_request()

    def answer(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, True).items()}
        self.key = unquote(url.path).lstrip("/")
        self.operation = _operation(self.command, self.key, query)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_seen = Request(self.operation, self.key, query, headers)
        try:
            self._answer()
        except (_ClosedError, ConnectionError, TimeoutError, http.client.HTTPException):
            self.close_connection = True
            self._note()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def _answer(self) -> None:
        s3 = self.server.s3
        fault = s3.fault_for(self.operation, self.key)
        does = "" if fault is None else fault.does
        body = self._read_body(half=does == "drop")
        if s3.before(self.operation, self.key):
            raise _ClosedError
        if does in ("500", "503"):
            text = SLOW_DOWN if does == "503" else BROKEN
            self._send(int(does), {"Content-Type": "application/xml"}, text, len(text))
            return
        if fault is not None and does == "delay":
            s3.sleep(fault.seconds)
        conditional = bool(self.headers["If-None-Match"] or self.headers["If-Match"])
        with s3.commit_lock(conditional and self.command in ("PUT", "POST")):
            status, headers, content = self._forward(body)
        if self.operation == "list":
            content = s3.listing(content)
            headers = {name: value for name, value in headers.items() if name != "content-length"}
        if does == "lose":
            raise _ClosedError
        half = len(content) // 2 if does in ("truncate", "stall") else len(content)
        self._send(status, headers, content[:half], len(content))
        if does in ("truncate", "stall"):
            s3.sleep(fault.seconds if fault is not None and does == "stall" else 0)
            raise _ClosedError

    def _read_body(self, half: bool) -> bytes:
        parts = []
        if "chunked" in (self.headers["Transfer-Encoding"] or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = int(self.headers["Content-Length"] or 0)
            parts.append(self.rfile.read(size // 2 if half else size))
            if len(parts[0]) < size and not half:
                raise _ClosedError
        body = b"".join(parts)
        assert self.request_seen is not None
        self.request_seen.received = len(body)
        if half:
            raise _ClosedError
        return body

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP
        }
        self.upstream.request(self.command, self.path, body, headers)
        with self.upstream.getresponse() as response:
            content = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, found, content

    def _send(self, status: int, headers: dict[str, str], content: bytes, size: int) -> None:
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name not in HOP_BY_HOP]
        # The answer to HEAD has the length of a body that it lacks.
        length = headers.get("content-length", size) if self.command == "HEAD" else size
        if status not in (204, 304):
            lines.append(f"content-length: {length}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._note(status, len(head) + len(content))
        self.wfile.write(head)
        self.wfile.write(content)

    def _note(self, status: int = 0, sent: int = 0) -> None:
        """Count the request, before its client knows how it ended."""
        request, self.request_seen = self.request_seen, None
        if request is not None:
            request.status, request.sent = status, sent
            self.server.s3.note(request)


def _operation(method: str, key: str, query: dict[str, str]) -> str:
    if method == "GET" and "/" not in key.rstrip("/"):
        return "list"
    if "uploads" in query:
        return "begin"
    if "uploadId" in query:
        return {"PUT": "part", "POST": "complete", "DELETE": "abort"}.get(method, method)
    return method
