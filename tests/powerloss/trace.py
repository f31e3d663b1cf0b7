# SPDX-License-Identifier: Apache-2.0
"""The changes that a program asks of a directory, from strace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from powerloss.disk import Call

__all__ = ["traced"]

# Every call that can change a file or directory; one that is not known below fails the test.
CALLS = (
    "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,syncfs,sync,"
    "sync_file_range,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "ftruncate,truncate,fallocate,copy_file_range,sendfile,splice,symlink,symlinkat,io_uring_setup"
)
_BYTES = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_FD = re.compile(rb"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>")
_LINE = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(<.*>)?(.*)")


def traced(scenario: str, root: Path, log: Path, module: str = "powerloss.scenarios") -> list[Call]:
    """Run a scenario, `python -m MODULE SCENARIO ROOT`, and return its calls."""
    command = [
        "strace",
        "-f",
        "-y",
        "-xx",
        "-s",
        "10000000",
        "-o",
        str(log),
        "-e",
        f"trace={CALLS}",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-m", module, scenario, str(root)]
    subprocess.run([*command, *program], check=True, env=environment)
    return list(_calls(log, os.fsencode(root.resolve())))


def _calls(log: Path, root: bytes) -> Iterator[Call]:
    there: set[bytes] = set()
    unfinished: dict[bytes, bytes] = {}
    with open(log, "rb") as lines:
        for line in lines:
            pid = line.split(b" ", 1)[0]
            if b"<unfinished ...>" in line:
                unfinished[pid] = line.split(b" <unfinished")[0]
                continue
            resumed = re.match(rb"\d+ +<\.\.\. \w+ resumed>(.*)", line, re.S)
            if resumed:  # its effect is placed where it ended
                line = unfinished.pop(pid) + resumed[1]  # noqa: PLW2901
            match = _LINE.match(line)
            if match is None:  # a signal, an exit
                continue
            yield from _of_line(match[2].decode(), match[3], int(match[4] or -1), root, there)


def _text(hexadecimal: bytes) -> bytes:
    return bytes.fromhex(hexadecimal.replace(rb"\x", b"").decode())


def _of_line(
    name: str, arguments: bytes, result: int, root: bytes, there: set[bytes]
) -> Iterator[Call]:
    if result < 0 or b"(deleted)" in arguments:  # failed, or of bytes that no name leads to
        return
    places = [_text(match[1]) for match in _FD.finditer(arguments)]
    texts = [_text(match[1]) for match in _BYTES.finditer(_FD.sub(b"", arguments))]
    if "write" in name and places[0] == b"/dev/null":
        if texts[0].startswith(b"mark "):
            yield Call("mark", texts[0][5:].decode())
    elif "write" in name or name in ("fsync", "fdatasync", "ftruncate"):
        if _inside(places[0], root):
            yield _of_file(name, _below(places[0], root), texts, arguments, result)
    else:
        paths = _paths(name, places, texts)
        if any(_inside(path, root) for path in [*paths, *places]):
            yield from _of_names(name, arguments, paths, root, there)


def _of_file(name: str, path: str, texts: list[bytes], arguments: bytes, result: int) -> Call:
    last = arguments.rsplit(b", ", 1)[-1]
    if name in ("fsync", "fdatasync"):
        return Call("sync", path)
    if name == "ftruncate":
        return Call("truncate", path, offset=int(last))
    assert name != "pwritev2"
    data = b"".join(texts)[:result]
    assert len(data) == result, "strace shortened a write"
    return Call("write", path, data=data, offset=-1 if name in ("write", "writev") else int(last))


def _of_names(
    name: str, arguments: bytes, paths: list[bytes], root: bytes, there: set[bytes]
) -> Iterator[Call]:
    relative = [_below(path, root) for path in paths]
    kinds = {"open": "create", "openat": "create", "creat": "create", "rmdir": "unlink"}
    kind = kinds.get(name, name.removesuffix("2").removesuffix("at"))
    if kind == "create":
        if b"O_TRUNC" in arguments and paths[0] in there:
            yield Call("truncate", relative[0])
        if b"O_CREAT" not in arguments or paths[0] in there:
            return
    elif kind not in ("rename", "link", "unlink", "mkdir"):
        raise AssertionError(f"a call that the model of the disk lacks: {name}")
    if kind in ("rename", "unlink"):
        there.discard(paths[0])
    if kind != "unlink":
        there.add(paths[-1])
    yield Call(kind, *relative)


def _paths(name: str, places: list[bytes], texts: list[bytes]) -> list[bytes]:
    """Return the full paths of the arguments."""
    if name.endswith("at") or name == "renameat2":
        found = [os.path.join(*pair) for pair in zip(places, texts, strict=False)]
    else:
        found = [os.path.join(os.fsencode(os.getcwd()), text) for text in texts]
    return [os.path.normpath(path) for path in found]


def _inside(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root + b"/")


def _below(path: bytes, root: bytes) -> str:
    assert _inside(path, root), path
    return path[len(root) + 1 :].decode()
