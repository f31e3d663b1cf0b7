# SPDX-License-Identifier: Apache-2.0
"""The real TensorFlow, asked through a worker process that may die."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .values import Value, unpacked

# What to write at which offsets of a file; None cuts the file there.
Mutation = tuple[tuple[int, bytes | None], ...]

MEMORY_LIMIT = 8 << 30
TIME_LIMIT = 300.0


class OracleError(Exception):
    """TensorFlow refused: `kind` is the class of its exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class OracleDiedError(Exception):
    """TensorFlow's process ended: `signal` killed it; 256 + status if it exited, 0 if it hung."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"died with signal {signal_number}" if signal_number else "hung")
        self.signal = signal_number


def interpreter() -> str:
    """The Python that has TensorFlow: CKPTFMT_TF_PYTHON, or the one that runs the tests."""
    return os.environ.get("CKPTFMT_TF_PYTHON", sys.executable)


def environment() -> dict[str, str]:
    """What TensorFlow runs with: nothing of ckptfmt on its path, nothing left in the sources."""
    found = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    found.pop("PYTHONPATH", None)
    return found


def missing() -> str | None:
    """Why there is no oracle here; None if there is one."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    python = interpreter()
    try:
        found = subprocess.run(
            [python, "-c", probe], capture_output=True, timeout=60, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot run {python}: {error}"
    return None if found == 0 else "tensorflow is not installed (extra: interop)"


def text(items: Iterable[bytes | str]) -> list[str]:
    """Bytes as the worker's JSON carries them."""
    encoded = (
        item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in items
    )
    return [item.decode("latin-1") for item in encoded]


def _nothing(_prefix: Path | str) -> None:
    pass


class Oracle:
    """TensorFlow's operations; they raise OracleError, or OracleDiedError and start anew then.

    `written` is called with the prefix of each bundle that they wrote.
    """

    def __init__(
        self,
        *,
        memory_limit: int = MEMORY_LIMIT,
        time_limit: float = TIME_LIMIT,
        written: Callable[[Path | str], None] = _nothing,
    ) -> None:
        self.written = written
        self.memory_limit = memory_limit
        self.time_limit = time_limit
        self.seconds = 0.0
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def call(self, op: str, blob: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
        process = self._started()
        assert process.stdin is not None
        request = {"op": op, "blob": len(blob), **arguments}
        try:
            unsent = memoryview(json.dumps(request).encode() + b"\n" + blob)
            while unsent:
                unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
            line, rest = self._line(process)
            head = json.loads(line)
            reply = self._exactly(process, rest, head["blob"])
        except (BrokenPipeError, EOFError):
            raise OracleDiedError(self._buried(process)) from None
        self.seconds += head["seconds"]
        if "died" in head:
            raise OracleDiedError(head["died"])
        if "error" in head:
            raise OracleError(head["error"], head["message"])
        return head, reply

    def version(self) -> str:
        return self.call("version")[0]["version"]

    def save_v2(
        self,
        prefix: Path | str,
        names: Sequence[bytes],
        specs: Sequence[bytes],
        tensors: Sequence[Value],
        *,
        isolated: bool = False,
    ) -> None:
        self.call(
            "save_v2",
            b"".join(value.packed() for value in tensors),
            prefix=str(prefix),
            names=text(names),
            specs=text(specs),
            values=[value.describe() for value in tensors],
            isolated=isolated,
        )
        self.written(prefix)

    def restore_v2(
        self,
        prefix: Path | str,
        names: Sequence[bytes],
        specs: Sequence[bytes],
        dtypes: Sequence[int],
        *,
        isolated: bool = False,
    ) -> list[Value]:
        head, blob = self.call(
            "restore_v2",
            prefix=str(prefix),
            names=text(names),
            specs=text(specs),
            dtypes=list(dtypes),
            isolated=isolated,
        )
        return self._values(head, blob)

    def merge_v2_checkpoints(
        self,
        prefixes: Sequence[Path | str],
        destination: Path | str,
        *,
        delete_old_dirs: bool = True,
        allow_missing_files: bool = False,
        isolated: bool = False,
        sound: bool = True,
    ) -> None:
        """`sound`: the inputs have values behind their entries, so the result can be read."""
        self.call(
            "merge_v2_checkpoints",
            prefixes=[str(prefix) for prefix in prefixes],
            destination=str(destination),
            delete_old_dirs=delete_old_dirs,
            allow_missing_files=allow_missing_files,
            isolated=isolated,
        )
        if sound:
            self.written(destination)

    def list_variables(
        self, prefix: Path | str, *, isolated: bool = False
    ) -> list[tuple[bytes, int, tuple[int, ...]]]:
        """Name, dtype code and shape of each tensor, in TensorFlow's order."""
        head, _ = self.call("list_variables", prefix=str(prefix), isolated=isolated)
        return [
            (name.encode("latin-1"), code, tuple(shape)) for name, code, shape in head["variables"]
        ]

    def get_tensor(self, prefix: Path | str, name: bytes, *, isolated: bool = False) -> Value:
        head, blob = self.call(
            "get_tensor", prefix=str(prefix), name=text([name])[0], isolated=isolated
        )
        return self._values(head, blob)[0]

    def save_checkpoint(self, prefix: Path | str, tensors: dict[str, Value]) -> None:
        """An object-based checkpoint of variables, one attribute a tensor."""
        self.call(
            "save_checkpoint",
            b"".join(value.packed() for value in tensors.values()),
            prefix=str(prefix),
            names=list(tensors),
            values=[value.describe() for value in tensors.values()],
        )
        self.written(prefix)

    def damage(
        self,
        prefix: Path | str,
        file: Path | str,
        mutations: Sequence[Mutation],
        names: Sequence[bytes],
        specs: Sequence[bytes],
        tensors: Sequence[Value],
    ) -> list[str]:
        """Outcomes of restoring everything from a mutated file, which is put back afterwards."""
        head, _ = self.call(
            "damage",
            b"".join(value.packed() for value in tensors),
            prefix=str(prefix),
            file=str(file),
            mutations=[
                [(offset, None if patch is None else patch.hex()) for offset, patch in mutation]
                for mutation in mutations
            ],
            names=text(names),
            specs=text(specs),
            dtypes=[value.code for value in tensors],
            values=[value.describe() for value in tensors],
        )
        return head["outcomes"]

    @staticmethod
    def _values(head: dict[str, Any], blob: bytes) -> list[Value]:
        found = []
        position = 0
        for description in head["values"]:
            found.append(unpacked(description, blob[position : position + description["size"]]))
            position += description["size"]
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            worker = Path(__file__).with_name("tf_worker.py")
            self._process = subprocess.Popen(
                [interpreter(), str(worker), str(self.memory_limit)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                bufsize=0,
            )
            self.starts += 1
        return self._process

    def _buried(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for a worker that closed its pipe and says what ended it."""
        self._process = None
        assert process.stdin is not None
        assert process.stdout is not None
        code = process.wait(30)
        process.stdin.close()
        process.stdout.close()
        return -code if code < 0 else 256 + code

    def _some(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                process.send_signal(signal.SIGKILL)
                self._buried(process)
                raise OracleDiedError(0)
        received = os.read(process.stdout.fileno(), 1 << 20)
        if not received:
            raise EOFError
        return received

    def _line(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + self.time_limit
        received = b""
        while b"\n" not in received:
            received += self._some(process, deadline)
        line, _, rest = received.partition(b"\n")
        return line, rest

    def _exactly(self, process: subprocess.Popen[bytes], received: bytes, size: int) -> bytes:
        deadline = time.monotonic() + self.time_limit
        parts = [received]
        total = len(received)
        while total < size:
            parts.append(self._some(process, deadline))
            total += len(parts[-1])
        return b"".join(parts)
