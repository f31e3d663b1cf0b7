# SPDX-License-Identifier: Apache-2.0
"""Servers on the loopback interface that answer as Google Cloud Storage (its XML API) and Azure
Blob Storage do, as far as obstore asks. Conditions of a write are those of the service: Google
compares generations and knows no etags there; Azure compares etags."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import re
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from obstore.store import AzureStore, GCSStore

Headers = dict[str, str]
Answer = tuple[int, bytes, Headers]
RESULT = "MultipartUploadResult"


class _Object:
    def __init__(self, data: bytes, number: int) -> None:
        self.data, self.number, self.time = data, number, time.time()

    @property
    def etag(self) -> str:
        return f'"tag-{self.number}"'

    @property
    def headers(self) -> Headers:
        when = formatdate(self.time, usegmt=True)
        return {
            "ETag": self.etag,
            "Last-Modified": when,
            "x-goog-generation": str(self.number),
        }


class Cloud(http.server.ThreadingHTTPServer):
    """What both have. Attribute `objects`: by key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, _Object] = {}
        self.parts: dict[str, dict[str, bytes]] = {}
        self.numbers = itertools.count(1000)
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def store(self) -> Any:
        """An obstore store of the bucket."""
        raise NotImplementedError

    def answer(
        self, method: str, key: str, query: Headers, headers: Headers, body: bytes
    ) -> Answer:
        """Carry out a request."""
        if method in ("GET", "HEAD"):
            return self._read(method, key, headers) if key else (200, self.listing(query), {})
        if method == "DELETE":
            return (204 if self.objects.pop(key, None) else 404), b"", {}
        if source := headers.get("x-goog-copy-source") or headers.get("x-ms-copy-source"):
            body = self.objects[_key(source)].data
        elif (status := self.refused(self.objects.get(key), headers)) is not None:
            return status, b"<Error><Code>ConditionNotMet</Code></Error>", {}
        return self.put(key, body, 202 if "x-ms-copy-source" in headers else 200)

    def put(self, key: str, body: bytes, status: int) -> Answer:
        made = self.objects[key] = _Object(body, next(self.numbers))
        return status, b"", {**made.headers, "x-ms-copy-status": "success"}

    def _read(self, method: str, key: str, headers: Headers) -> Answer:
        found = self.objects.get(key)
        if not found:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        size = len(found.data)
        asked = headers.get("range", "bytes=0-").removeprefix("bytes=")
        first, _, last = asked.partition("-")
        start = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        more = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if "range" in headers else {}
        body = found.data[start:end]
        return (206 if more else 200), body, {**found.headers, **more}

    def listed(self, query: Headers) -> tuple[list[str], list[str]]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys, folders = [], set[str]()
        for key in sorted(self.objects):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix) or key <= query.get("start-after", ""):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                keys.append(key)
        return keys, sorted(folders)

    def listing(self, query: Headers) -> bytes:
        raise NotImplementedError

    def refused(self, old: _Object | None, headers: Headers) -> int | None:
        """The status for a write whose conditions do not hold."""
        raise NotImplementedError


class Google(Cloud):
    def store(self) -> Any:
        options: Any = {"allow_http": True}
        return GCSStore(
            "bucket",
            base_url=self.url,
            bearer_token="token",
            client_options=options,  # type: ignore[call-arg]
        )

    def answer(
        self, method: str, key: str, query: Headers, headers: Headers, body: bytes
    ) -> Answer:
        if "uploads" in query:
            number = str(next(self.numbers))
            self.parts[number] = {}
            text = f"<UploadId>{number}</UploadId>"
            return 200, f"<Initiate{RESULT}>{text}</Initiate{RESULT}>".encode(), {}
        if "uploadId" not in query:
            return super().answer(method, key, query, headers, body)
        parts = self.parts[query["uploadId"]]
        if method == "PUT":
            parts[query["partNumber"]] = body
            return 200, b"", {"ETag": f'"part-{query["partNumber"]}"'}
        if method == "DELETE":
            return 204, b"", {}
        status, _, made = self.put(key, b"".join(parts[one] for one in sorted(parts, key=int)), 200)
        text = f"<ETag>{made['ETag']}</ETag>"
        return status, f"<Complete{RESULT}>{text}</Complete{RESULT}>".encode(), made

    def refused(self, old: _Object | None, headers: Headers) -> int | None:
        wanted = headers.get("x-goog-if-generation-match")
        number = old.number if old else 0
        return 412 if wanted is not None and int(wanted) != number else None

    def listing(self, query: Headers) -> bytes:
        keys, folders = self.listed(query)
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(one.data)}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{one.etag}</ETag></Contents>"
            for key in keys
            if (one := self.objects[key])
        )
        found += "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        )
        return f"<ListBucketResult>{found}</ListBucketResult>".encode()


class Azure(Cloud):
    def store(self) -> Any:
        options: Any = {"allow_http": True}
        return AzureStore(
            "bucket",
            account_name="account",
            endpoint=self.url,
            bearer_token="token",
            client_options=options,
        )

    def answer(
        self, method: str, key: str, query: Headers, headers: Headers, body: bytes
    ) -> Answer:
        blocks, part = self.parts.setdefault(key, {}), query.get("comp")
        if part == "block":
            blocks[query["blockid"]] = body
            return 201, b"", {}
        if part == "blocklist":
            named = re.findall("<Uncommitted>(.*?)<", body.decode())
            return self.put(key, b"".join(blocks[one] for one in named), 201)
        if part == "batch":  # of removals
            answers = ""
            for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP", body.decode(), re.M)):
                status = 202 if self.objects.pop(_key(path), None) else 404
                answers += f"--one\r\nContent-Type: application/http\r\nContent-ID: {number}"
                answers += f"\r\n\r\nHTTP/1.1 {status} Done\r\n\r\n\r\n"
            return (
                202,
                f"{answers}--one--".encode(),
                {"Content-Type": "multipart/mixed; boundary=one"},
            )
        status, found, more = super().answer(method, key, query, headers, body)
        return (201 if (method, status) == ("PUT", 200) else status), found, more

    def refused(self, old: _Object | None, headers: Headers) -> int | None:
        if headers.get("if-none-match") == "*" and old:
            return 409
        wanted = headers.get("if-match")
        return 412 if wanted is not None and (not old or old.etag != wanted) else None

    def listing(self, query: Headers) -> bytes:
        keys, folders = self.listed(query)
        found = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties>"
            f"<Last-Modified>{one.headers['Last-Modified']}</Last-Modified><Etag>{one.etag}</Etag>"
            f"<Content-Length>{len(one.data)}</Content-Length><Content-Type>x/y</Content-Type>"
            "</Properties></Blob>"
            for key in keys
            if (one := self.objects[key])
        )
        found += "".join(f"<BlobPrefix><Name>{escape(one)}</Name></BlobPrefix>" for one in folders)
        return (
            f"<EnumerationResults><Blobs>{found}</Blobs><NextMarker/></EnumerationResults>".encode()
        )


def _key(path: str) -> str:
    return unquote(urlsplit(path).path).lstrip("/").partition("bucket/")[2]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", 1 << 16  # an answer is one packet
    server: Cloud

    def log_message(self, *_words: object) -> None:
        """Print nothing."""

    def _carry_out(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        with self.server.lock:
            key = _key(self.path)
            status, found, more = self.server.answer(self.command, key, query, headers, body)
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _carry_out  # noqa: N815


@contextlib.contextmanager
def serving(kind: type[Cloud]) -> Iterator[Cloud]:
    """Run a server."""
    with kind() as cloud:
        thread = threading.Thread(target=cloud.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield cloud
        cloud.shutdown()
        thread.join(60)
