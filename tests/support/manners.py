# SPDX-License-Identifier: Apache-2.0
"""A web server with bad manners, and what a load from it comes to.

`python -m support.manners DIRECTORY STEP` loads a checkpoint of that directory once in each STEPth
manner, of the index and of the data file, with a short limit on silence; where that took a while,
it does so again with a long limit and an interrupt. The same for file systems of fsspec. It prints
the time and a JSON list of [manner, what was read, outcome, seconds, seconds after the interrupt or
None].
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from fsspec.implementations.local import LocalFileSystem

import ckptfmt
from ckptfmt.stores import waiting

ARRAYS = {"w": np.arange(3000.0), "b": np.ones((7, 3), np.float32)}
LARGE, LARGE_SIZE = [f"w{number}" for number in range(12)], 9 << 20
SHORT, LONG = "0.6", "600"
INTERRUPT_SECONDS = 0.2


class Answer:
    """One answer of the server: a manner changes it, or sends it by itself."""

    def __init__(self, handler: Handler, data: bytes, first: int, whole: int, ranged: bool) -> None:
        self.handler, self.whole, self.first = handler, whole, first
        self.body, self.status = data, 206 if ranged else 200
        self.headers = {
            "Content-Length": str(len(data)),
            "ETag": '"one"',
            "Last-Modified": "Mon, 23 Nov 2026 10:00:00 GMT",
        }
        if ranged:
            self.headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{whole}"

    def begin(self) -> None:
        self.handler.send_response(self.status)
        for name, value in self.headers.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()

    def send(self, body: bytes | None = None) -> None:
        self.begin()
        self.write(self.body if body is None else body)

    def write(self, data: bytes) -> None:
        if self.handler.command != "HEAD":
            self.handler.wfile.write(data)
            self.handler.wfile.flush()

    def close(self) -> None:
        self.handler.close_connection = True
        with contextlib.suppress(OSError):
            self.handler.connection.shutdown(socket.SHUT_RDWR)


Manner = Callable[[Answer], None]


def _headers(**changes: str | None) -> Manner:
    """Send these headers in place of those, or without them."""

    def manner(answer: Answer) -> None:
        for name, value in changes.items():
            header = name.replace("_", "-")
            answer.headers.pop(header, None)
            if value is not None:
                answer.headers[header] = value
        answer.send()

    return manner


def _status(status: int, **headers: str) -> Manner:
    def manner(answer: Answer) -> None:
        answer.status, answer.body = status, b""
        answer.headers = {"Content-Length": "0", **headers}
        answer.send()

    return manner


def _range(text: str) -> Manner:
    """Send this Content-Range: FIRST, LAST and SIZE are what is right."""

    def manner(answer: Answer) -> None:
        if "Content-Range" in answer.headers:
            numbers = {
                "FIRST": answer.first,
                "LAST": answer.first + len(answer.body) - 1,
                "SIZE": answer.whole,
            }
            made = re.sub(
                r"(FIRST|LAST|SIZE)([+-]\d+)?", lambda m: str(numbers[m[1]] + int(m[2] or 0)), text
            )
            answer.headers["Content-Range"] = made
        answer.send()

    return manner


def _sleep(answer: Answer) -> None:
    answer.handler.server.released.wait(1000)


def _silent(answer: Answer) -> None:
    _sleep(answer)


def _half_a_header(answer: Answer) -> None:
    answer.handler.wfile.write(b"HTTP/1.1 206 Partial")
    _sleep(answer)


def _stalls(share: float) -> Manner:
    def manner(answer: Answer) -> None:
        answer.begin()
        answer.write(answer.body[: int(len(answer.body) * share)])
        if answer.handler.command != "HEAD":
            _sleep(answer)

    return manner


def _ends(share: float) -> Manner:
    def manner(answer: Answer) -> None:
        answer.send(answer.body[: int(len(answer.body) * share)])
        answer.close()

    return manner


def _drips(answer: Answer) -> None:
    answer.begin()
    for start in range(0, len(answer.body), 1500):
        time.sleep(0.05)  # each far shorter than the limit, in sum longer
        answer.write(answer.body[start : start + 1500])


def _too_much(answer: Answer) -> None:
    answer.send(answer.body + bytes(1000))
    answer.close()


def _endless(answer: Answer) -> None:
    del answer.headers["Content-Length"]
    answer.headers["Connection"] = "close"
    answer.begin()
    if answer.handler.command != "HEAD":
        with contextlib.suppress(OSError):
            answer.write(answer.body)
            while not answer.handler.server.released.is_set():
                answer.write(bytes(1 << 16))
    answer.close()


def _no_length(answer: Answer) -> None:
    if answer.handler.command != "HEAD":
        del answer.headers["Content-Length"]
    answer.headers["Connection"] = "close"
    answer.send()
    answer.close()


def _chunked(*, end: bytes, chunk: Callable[[bytes], bytes]) -> Manner:
    def manner(answer: Answer) -> None:
        if answer.handler.command != "HEAD":
            del answer.headers["Content-Length"]
            answer.headers["Transfer-Encoding"] = "chunked"
        answer.send(chunk(answer.body) + end)
        if not end:
            answer.close()

    return manner


def _as_chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def _whole(answer: Answer) -> None:
    """As if it did not know ranges."""
    answer.body = answer.handler.file.read_bytes()
    answer.status = 200
    answer.headers |= {"Content-Length": str(len(answer.body))}
    answer.headers.pop("Content-Range", None)
    answer.send()


def _changing(answer: Answer) -> None:
    answer.handler.server.count += 1
    answer.headers["ETag"] = f'"{answer.handler.server.count}"'
    answer.send()


def _other_size(answer: Answer) -> None:
    if answer.handler.command == "HEAD":
        answer.headers["Content-Length"] = str(answer.whole + 50)
    answer.send()


def _zeros(answer: Answer) -> None:
    answer.send(bytes(len(answer.body)))


def _garbage(answer: Answer) -> None:
    answer.handler.wfile.write(b"\x00\xff no HTTP at all\r\n" * 20)
    answer.close()


def _closes(answer: Answer) -> None:
    answer.close()


def _redirects_elsewhere(answer: Answer) -> None:
    if answer.handler.path.startswith("/moved/"):
        answer.send()
    else:
        _status(302, Location=f"/moved{answer.handler.path}")(answer)


def _nothing(answer: Answer) -> None:
    answer.send()


MANNERS: dict[str, Manner] = {
    "good": _nothing,
    "never answers": _silent,
    "half a header": _half_a_header,
    "stalls before the body": _stalls(0),
    "stalls in the body": _stalls(0.5),
    "ends before the body": _ends(0),
    "ends in the body": _ends(0.5),
    "drips": _drips,
    "too much": _too_much,
    "endless": _endless,
    "no length": _no_length,
    "huge length": _headers(Content_Length=str(1 << 62)),
    "length that is not a number": _headers(Content_Length="many"),
    "chunked": _chunked(end=b"0\r\n\r\n", chunk=_as_chunk),
    "chunked without an end": _chunked(end=b"", chunk=_as_chunk),
    "chunked wrongly": _chunked(end=b"0\r\n\r\n", chunk=lambda body: b"zz\r\n" + body),
    "says gzip": _headers(Content_Encoding="gzip"),
    "ignores ranges": _whole,
    "no range": _range(""),
    "another range": _range("bytes FIRST+7-LAST+7/SIZE"),
    "range backwards": _range("bytes LAST-FIRST/SIZE"),
    "range of a larger file": _range("bytes FIRST-LAST/SIZE+50"),
    "range of a huge file": _range(f"bytes FIRST-LAST/{1 << 63}"),
    "range of an unknown file": _range("bytes FIRST-LAST/*"),
    "no etag": _headers(ETag=None),
    "weak etag": _headers(ETag='W/"one"'),
    "changing etag": _changing,
    "no date": _headers(Last_Modified=None),
    "date that is none": _headers(Last_Modified="yesterday"),
    "other size by HEAD": _other_size,
    "zeros": _zeros,
    "garbage": _garbage,
    "closes": _closes,
    "redirects to itself": _status(302, Location="?"),
    "redirects elsewhere": _redirects_elsewhere,
    "redirects to nowhere": _status(302, Location="http://127.0.0.1:9/"),
    "204": _status(204),
    "304": _status(304),
    "403": _status(403),
    "404": _status(404),
    "416": _status(416),
    "429": _status(429),
    "500": _status(500),
    "503": _status(503),
}
# Those that never end by themselves.
STALLS = ("never answers", "half a header", "stalls before the body", "stalls in the body")
LARGE_MANNERS = ("never answers", "stalls in the body")
# Those whose bytes are wrong: the checkpoint may be called damaged.
WRONG = {"zeros", "204"}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.released = threading.Event()
        self.count = 0
        self.manner: Manner = _nothing
        self.suffix = ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    @property
    def file(self) -> Path:
        path = urlsplit(self.path).path.removeprefix("/moved")
        return self.server.directory / path.lstrip("/")

    def answer(self) -> None:
        if not self.file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = self.file.stat().st_size
        first, last = 0, size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is not None:
            first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
            last = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
        with self.file.open("rb") as file:
            data = os.pread(file.fileno(), last - first, first)
        made = Answer(self, data, first, size, asked is not None)
        if self.server.suffix in self.path:
            self.server.manner(made)
        else:
            made.send()

    do_GET = do_HEAD = answer  # noqa: N815


@contextlib.contextmanager
def serving(directory: Path, manner: str, suffix: str, name: str = "m") -> Iterator[str]:
    server = Server(directory)
    server.manner, server.suffix = MANNERS[manner], suffix
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{name}"
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def _outcome(load: Callable[[], Any]) -> str:
    try:
        found = load()
    except ckptfmt.CkptfmtError as error:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException as error:
        return f"untyped {type(error).__name__}: {error}"
    right = all(np.array_equal(found[name], array) for name, array in ARRAYS.items())
    return "right" if right else "wrong"


def _interrupted(load: Callable[[], Any]) -> tuple[str, float]:
    sent = [0.0]

    def interrupt() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(INTERRUPT_SECONDS, interrupt)
    timer.start()
    try:
        outcome = _outcome(load)
        return outcome, time.monotonic() - sent[0]
    finally:
        timer.cancel()


Row = tuple[str, str, str, float, float | None]


def _short(manner: str, suffix: str, directory: Path) -> Row:
    """A load with a short limit on silence."""
    with serving(directory, manner, suffix) as url:
        began = time.monotonic()
        outcome = _outcome(lambda: ckptfmt.load(url))
        return manner, suffix, outcome, time.monotonic() - began, None


def _long(row: Row, directory: Path) -> Row:
    """The same load with a long limit and an interrupt."""
    with serving(directory, row[0], row[1]) as url:
        stopped, seconds = _interrupted(lambda: ckptfmt.load(url))
    outcome = stopped if stopped.startswith(("untyped", "wrong")) else row[2]
    return *row[:2], outcome, row[3], seconds if stopped == "interrupted" else None


def _large(manner: str, directory: Path) -> Row:
    """A load by several threads into arrays of the caller's, which nothing touches afterwards."""
    os.environ[waiting.STALL_VARIABLE] = SHORT
    with serving(directory, manner, "data", "large") as url:
        began = time.monotonic()
        outcome = _outcome(lambda: ckptfmt.load(url))
        took = time.monotonic() - began
    os.environ[waiting.STALL_VARIABLE] = LONG
    targets = {name: np.zeros(LARGE_SIZE, np.uint8) for name in LARGE}
    with serving(directory, manner, "data", "large") as url:
        stopped, after = _interrupted(lambda: ckptfmt.load_into(url, targets))
        then = [zlib.crc32(array) for array in targets.values()]
    time.sleep(0.3)
    if then != [zlib.crc32(array) for array in targets.values()]:
        stopped = "wrong: written into afterwards"
    outcome = stopped if stopped.startswith(("untyped", "wrong")) else outcome
    return f"large: {manner}", "data", outcome, took, after if stopped == "interrupted" else None


class StallingFiles(LocalFileSystem):
    """A file system one of whose methods does not return."""

    cachable = False

    def __init__(self, method: str) -> None:
        super().__init__()
        self.released = threading.Event()
        whole = getattr(self, method)

        def stalling(*given: Any, **named: Any) -> Any:
            self.released.wait(1000)
            return whole(*given, **named)

        setattr(self, method, stalling)


CALLS: dict[str, Callable[[str], Any]] = {
    "info": ckptfmt.load,
    "cat_file": ckptfmt.load,
    "ls": lambda url: ckptfmt.load(url.removesuffix("m")),
    "pipe_file": lambda url: ckptfmt.save(f"{url}2", ARRAYS),
}


def _of_fsspec(method: str, directory: Path) -> Row:
    files = StallingFiles(method)
    url = f"stalling://{method}{directory}/m"
    ckptfmt.stores.mount(f"stalling://{method}", files)
    os.environ[waiting.STALL_VARIABLE] = SHORT
    began = time.monotonic()
    outcome = _outcome(lambda: CALLS[method](url))
    took = time.monotonic() - began
    os.environ[waiting.STALL_VARIABLE] = LONG
    stopped, after = _interrupted(lambda: CALLS[method](url))
    return f"fsspec {method}", "", outcome, took, after if stopped == "interrupted" else None


def every(rows: Iterable[str], step: int) -> list[str]:
    """Every such row, at least one, from the middle of the first ones."""
    found = list(rows)
    return found[min(step // 2, len(found) - 1) :: step]


def main(directory: Path, step: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    waiting.PAUSE = 0.01
    waiting.SLOWEST = 1 << 40
    ckptfmt.save(directory / "m", ARRAYS)
    os.environ[waiting.STALL_VARIABLE] = SHORT
    pairs = [(manner, suffix) for manner in every(MANNERS, step) for suffix in ("index", "data")]
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda pair: _short(*pair, directory), pairs))
    os.environ[waiting.STALL_VARIABLE] = LONG
    rows = [_long(row, directory) if row[3] > INTERRUPT_SECONDS else row for row in rows]
    rows += [_of_fsspec(method, directory) for method in every(CALLS, step)]
    random = np.random.default_rng(1)
    for manner in every(LARGE_MANNERS, step):
        large = {name: random.integers(0, 255, LARGE_SIZE, np.uint8) for name in LARGE}
        ckptfmt.save(directory / "large", large, durability="none")
        rows.append(_large(manner, directory))
    print(json.dumps([time.time(), rows]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
