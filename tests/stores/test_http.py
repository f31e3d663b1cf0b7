# SPDX-License-Identifier: Apache-2.0
"""Checkpoints over HTTP through obstore, from a server of the standard library with ranges."""

from __future__ import annotations

import io
import pickle
import re
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import in_child

import ckptfmt
from ckptfmt import cli, stores
from ckptfmt.files import locate
from ckptfmt.report import html
from ckptfmt.stores import waiting

MIB = 1 << 20
ARRAYS = {"w": np.random.default_rng(3).integers(0, 255, (20, MIB), np.uint8), "b": np.arange(10.0)}


class Server(ThreadingHTTPServer):
    """Serves the files of a directory.

    Attributes:
        requests: methods and paths, in order.
        sent: bytes of all bodies.
        failures: what becomes of the next answers with data: "error", or "cut" in the middle.
    """

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.requests: list[str] = []
        self.sent = 0
        self.failures: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    @property
    def file(self) -> Path:
        return self.server.directory / self.path.lstrip("/")

    @property
    def etag(self) -> str:
        info = self.file.stat()
        return f'"{info.st_mtime_ns}-{info.st_size}"'

    def answer(self, *, body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        failure = ""
        if self.server.failures and body and ".data-" in self.path:
            failure = self.server.failures.pop(0)
        if failure == "error":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.file
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, status, first = path.read_bytes(), 200, 0
        size = len(data)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is not None:
            first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
            last = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
            data, status = data[first:last], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", self.etag)
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        self.end_headers()
        if body:
            self.server.sent += len(data)
            self.close_connection = failure == "cut"
            self.wfile.write(data[: len(data) // 2] if failure else data)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(waiting, "PAUSE", 0)
    found = Server(tmp_path)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    stores.mount(url(found), None)
    found.shutdown()
    thread.join()
    found.server_close()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_load(server: Server) -> None:
    ckptfmt.save(server.directory / "run" / "model", ARRAYS)
    found = ckptfmt.load(f"{url(server)}/run/model")
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)
    assert ckptfmt.verify(f"{url(server)}/run/model").ok


def test_few_requests(server: Server) -> None:
    ckptfmt.save(server.directory / "model", ARRAYS)
    with ckptfmt.open(f"{url(server)}/model") as reader:
        assert server.requests == ["GET /model.index", "HEAD /model.index"]
        server.requests.clear()
        server.sent = 0
        assert np.array_equal(reader["w"][7], ARRAYS["w"][7])
    assert len(server.requests) <= 3 and server.sent <= 2 * MIB


def test_a_report_reads_little_of_a_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ckptfmt.save(server.directory / "model", ARRAYS)
    monkeypatch.setattr(html, "URL_BYTES", 3 * MIB)
    page = io.BytesIO()
    ckptfmt.report.report(f"{url(server)}/model", page)
    assert server.sent < 6 * MIB
    assert b'"complete": false' in page.getvalue() and b'"sampled": 1' in page.getvalue()
    page.seek(0)
    ckptfmt.report.report(f"{url(server)}/model", page, seconds=None)
    assert b'"complete": true' in page.getvalue()
    ckptfmt.save(server.directory / "model-2", ARRAYS)
    server.sent = 0
    paths = [f"{url(server)}/{name}" for name in ("model", "model-2", "model-3")]
    (damage,) = ckptfmt.report.report_series(paths, page)
    assert "model-3" in damage and server.sent < 9 * MIB


def test_errors_of_the_server_are_retried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PAUSE", 0.01)
    ckptfmt.save(server.directory / "model", {"w": ARRAYS["b"]})
    with ckptfmt.open(f"{url(server)}/model") as reader:
        server.failures += ["error", "cut", "error", "cut"]
        assert np.array_equal(reader["w"].read(), ARRAYS["b"])
    assert not server.failures


def test_a_server_that_is_down_is_not_damage(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(waiting.STALL_VARIABLE, "0.2")
    ckptfmt.save(server.directory / "model", {"w": ARRAYS["b"]})
    server.failures += ["error"] * 1000
    assert cli.main(["verify", f"{url(server)}/model"]) == 2
    assert "unreadable: " in capsys.readouterr().out
    (server.directory / "model.data-00000-of-00001").unlink()
    assert cli.main(["verify", f"{url(server)}/model"]) == 1


def test_missing(server: Server) -> None:
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        ckptfmt.open(f"{url(server)}/nowhere")


def test_nothing_can_be_written(server: Server) -> None:
    with pytest.raises(ckptfmt.StorageError):
        ckptfmt.save(f"{url(server)}/model", {"x": ARRAYS["b"]})
    assert list(server.directory.iterdir()) == []


def test_nothing_can_be_removed(server: Server) -> None:
    ckptfmt.save(server.directory / "model", {"x": ARRAYS["b"]})
    assert cli.main(["rm", f"{url(server)}/model"]) == 2
    assert len(list(server.directory.iterdir())) == 2


def test_a_replaced_file(server: Server) -> None:
    prefix = server.directory / "model"
    ckptfmt.save(prefix, {"w": ARRAYS["b"]})
    with ckptfmt.open(f"{url(server)}/model") as reader:
        ckptfmt.save(prefix, {"w": ARRAYS["b"] + 1})
        with pytest.raises(ckptfmt.errors.GenerationGoneError):
            reader["w"].read()


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json"], ["verify"], ["show"]])
def test_commands(server: Server, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    ckptfmt.save(server.directory / "model", {"w": ARRAYS["b"]})
    given = [*command, f"{url(server)}/model", *(["w"] if command == ["show"] else [])]
    assert cli.main(given) == 0
    assert capsys.readouterr().out


def test_after_a_fork(server: Server) -> None:
    """obstore would wait forever for threads that a fork does not copy."""
    ckptfmt.save(server.directory / "model", {"w": ARRAYS["b"]})
    with ckptfmt.open(f"{url(server)}/model") as reader:
        reader["w"].read()

        def read() -> None:
            for call in (lambda: reader["w"], lambda: ckptfmt.load(f"{url(server)}/model")):
                with pytest.raises(ckptfmt.InvalidError, match="fork"):
                    call()

        assert in_child(read) == 0
    again = pickle.loads(pickle.dumps(reader))
    assert np.array_equal(again["w"].read(), ARRAYS["b"])


def test_convert_and_diff(server: Server, tmp_path: Path) -> None:
    ckptfmt.save(server.directory / "model", {"w": ARRAYS["b"]})
    source, target = f"{url(server)}/model", str(tmp_path / "copy")
    assert cli.main(["convert", "--quiet", source, target]) == 0
    assert cli.main(["diff", source, target]) == 0
    assert cli.main(["convert", "--quiet", source, "memory://run/copy"]) == 0
    assert cli.main(["diff", source, "memory://run/copy"]) == 0


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1", b"", b"PK"])
def test_no_host_of_a_masked_path(
    server: Server, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file seems to be is read at its own URL, not at the one that errors show."""
    asked: list[str] = []
    read_ends = locate.read_ends

    def record(path: str, *sizes: int) -> tuple[bytes, bytes]:
        asked.append(path)
        return read_ends(path, *sizes)

    monkeypatch.setattr(locate, "read_ends", record)
    (server.directory / "model.index").write_bytes(content + bytes(60 * bool(content)))
    prefix = f"http://user:SECRET@127.0.0.1:{server.server_port}/model"
    with pytest.raises(ckptfmt.CorruptError) as caught:
        ckptfmt.open(prefix)
    report = ckptfmt.verify(prefix)
    assert set(asked) == {f"{prefix}.index"}
    shown = f"http://***@127.0.0.1:{server.server_port}/model.index"
    assert caught.value.path == report.problems[0].path == shown
    if content != b"PK":
        what = "an empty file" if not content else "a Git LFS pointer"
        assert f"it looks like {what}" in caught.value.message
        assert what in report.problems[0].message


def test_credentials_are_masked(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everywhere but in what is passed back to `open`."""
    monkeypatch.setenv(waiting.STALL_VARIABLE, "0.5")
    monkeypatch.setattr(waiting, "PAUSE", 0.01)
    ckptfmt.save(server.directory / "run" / "model", {"w": ARRAYS["b"]})
    secret = "HUSH%40RET"
    signed = f"http://user:{secret}@127.0.0.1:{server.server_port}/run"
    shown: list[object] = []
    with ckptfmt.open(f"{signed}/model") as reader:
        assert secret in reader.prefix
        assert np.array_equal(ckptfmt.load(reader.prefix)["w"], ARRAYS["b"])
        shown += [repr(reader), str(reader), reader._repr_html_(), reader["w"]]
        ckptfmt.save(server.directory / "run" / "model", {"w": ARRAYS["b"]})
        with pytest.raises(ckptfmt.StorageError) as failed:
            reader["w"].read()
        shown += [failed.value, repr(failed.value), failed.value.path, failed.value.filename]
    report = ckptfmt.verify(f"{signed}/model")
    shown += [repr(report), str(report)]
    for path in (f"{signed}/nowhere", f"http://user:{secret}@127.0.0.1:9/model", f"{signed}/"):
        with pytest.raises(ckptfmt.CkptfmtError) as raised:
            ckptfmt.load(path)
        shown += [raised.value, repr(raised.value), raised.value.path, raised.value.args]
        shown += traceback.format_exception_only(raised.value)
    url, page = f"{signed}/model", str(tmp_path / "page.html")
    commands = [["inspect"], ["inspect", "--slices"], ["verify"], ["digest"], ["show", url, "w"]]
    for command in commands:
        for more in ([], ["--json"]) if command != ["digest"] else ([],):
            cli.main([*command, *([url] if len(command) < 3 else []), *more])
    cli.main(["report", url, "--before", url, "-o", page])
    cli.main(["verify", f"{signed}/nowhere"])
    cli.main(["convert", url, str(tmp_path / "copy")])
    output = capsys.readouterr()
    shown += [output.out, output.err, Path(page).read_text(), *(one.message for one in recwarn)]
    for text in map(str, shown):
        assert "HUSH" not in text, text[:300]
    assert "***@127.0.0.1" in output.out
    for text, expected in (
        ("s3://b/m?X-Amz-Signature=abc&sig=def#x", "s3://b/m?X-Amz-Signature=***&sig=***#x"),
        ("http://h/m%3FX-Amz-Signature=abc%26x", "http://h/m%3FX-Amz-Signature=***"),
        ("http:/u:p@h:1.index", "http:/***@h:1.index"),
        ("s3://AK:a/b/c@bucket/x", "s3://***@bucket/x"),
        ("http://h:8000/a@b", "http://h:8000/a@b"),
        ("http://u:p@ss@h/a", "http://***@h/a"),
        ("a key=1 of x@y and http://h/a@b", "a key=1 of x@y and http://h/a@b"),
    ):
        assert ckptfmt.errors.masked(text) == expected
