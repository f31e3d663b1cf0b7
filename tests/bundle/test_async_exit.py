# SPDX-License-Identifier: Apache-2.0
"""How a process ends that has a save in the background: by waiting for it, unless it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptfmt

# The background writes only once the interpreter has begun to exit; or never.
HEAD = """
import atexit, os, signal, sys, threading
import numpy as np
import ckptfmt
from ckptfmt import save_async
from ckptfmt.bundle import writer
prefix, real, reached = sys.argv[1], writer.write_sources, threading.Event()
never = threading.Event()

def held_up(*given, **options):
    reached.set()
    if threading.current_thread() is not threading.main_thread():
        never.wait() if "never" in sys.argv else threading.main_thread().join()
    real(*given, **options)

writer.write_sources = held_up
values = {"x": np.full(1000, 2.0), "y": np.arange(5)}
"""

SAVE = "future = save_async(prefix, values); reached.wait()\n"
KILL, SLOW = "os.kill(os.getpid(), signal.SIGKILL)", pytest.mark.slow
SAVER = """
spec = lambda i: ckptfmt.SaveSpec(np.full(1000, 2.0), "", "x" if i == 0 else f"x{i}",
    device=f"/job:w/task:{i}")
saver = ckptfmt.Saver({"all": {"x" if i == 0 else f"x{i}": spec(i) for i in range(12)}})
options = ckptfmt.tf.CheckpointOptions(
    experimental_write_callbacks=[lambda: print("written", flush=True)])
future = saver.save_async(prefix, options); reached.wait()
"""


def run(tmp_path: Path, program: str, *more: str, head: str = HEAD) -> tuple[int, str, str]:
    """How a process ends that runs the program: status, what it printed, and what it complained
    of."""
    command = [sys.executable, "-c", head + program, str(tmp_path / "ck"), *more]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("save", "end", "status", "complaint"),
    [
        (SAVE, "", 0, ""),
        (SAVE, "sys.exit(3)", 3, ""),
        (SAVE, "raise ValueError('mine')", 1, "ValueError: mine"),
        (SAVER, "raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        pytest.param(SAVER, "", 0, "", marks=SLOW),
        pytest.param(SAVER, "sys.exit(3)", 3, "", marks=SLOW),
        pytest.param(SAVER, "raise ValueError('mine')", 1, "ValueError: mine", marks=SLOW),
        pytest.param(
            SAVE, "raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt", marks=SLOW
        ),
    ],
)
def test_an_exit_waits(tmp_path: Path, save: str, end: str, status: int, complaint: str) -> None:
    found, printed, stderr = run(tmp_path, save + end)
    assert found == status
    assert printed == ("written\n" if save is SAVER else "")
    assert stderr.splitlines()[-1:] == ([complaint] if complaint else [])
    assert set(ckptfmt.load(tmp_path / "ck")["x"].tolist()) == {2.0}
    assert not [name for name in os.listdir(tmp_path) if "temp" in name]


@pytest.mark.parametrize(
    ("save", "end"),
    [
        (SAVE, "os._exit(0)"),
        (SAVER, KILL),
        pytest.param(SAVER, "os._exit(0)", marks=SLOW),
        pytest.param(SAVE, KILL, marks=SLOW),
    ],
)
def test_what_does_not_exit_but_stops_keeps_the_older_checkpoint(
    tmp_path: Path, save: str, end: str
) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.ones(3)})
    found, _, stderr = run(tmp_path, save + end, "never")
    assert (found, stderr) == (0 if "_exit" in end else -signal.SIGKILL, "")
    assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [1, 1, 1]
    assert ckptfmt.verify(tmp_path / "ck").ok


@pytest.mark.parametrize("save", [SAVE, SAVER])
def test_a_save_while_the_interpreter_exits(tmp_path: Path, save: str) -> None:
    """There is no background any more: it is written at once."""
    body = save.strip().replace("\n", "\n    ")
    program = f"def late():\n    {body}\n    print(future.done())\natexit.register(late)\n"
    found, printed, stderr = run(tmp_path, program)
    assert (found, stderr) == (0, "")
    assert printed.endswith("True\n")
    assert set(ckptfmt.load(tmp_path / "ck")["x"].tolist()) == {2.0}


@pytest.mark.parametrize(
    "kept", ["", "import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(future))"]
)
def test_an_error_that_nobody_heard_of_is_logged_at_exit(tmp_path: Path, kept: str) -> None:
    """Also if the future is never freed."""
    (tmp_path / "ck.index").mkdir()
    (tmp_path / "ck.index" / "full").mkdir()
    found, printed, stderr = run(tmp_path, SAVE + kept)
    assert (found, printed) == (0, "")
    assert stderr.startswith(
        f"the background save of {tmp_path / 'ck'} failed and its error was never asked for: "
    )
    assert "StorageError" in stderr
    # Who asked has heard of it.
    program = f"{SAVE}{kept}\n" + "future.add_done_callback(lambda f: f.exception())"
    assert run(tmp_path, program) == (0, "", "")


@pytest.mark.parametrize("before", ["", "ckptfmt.save_async(sys.argv[2], values).result()"])
def test_an_error_of_a_handler_of_exits_is_logged(tmp_path: Path, before: str) -> None:
    """Whatever is loaded only once it is needed, in the handler or behind it."""
    (tmp_path / "ck.index").mkdir()
    (tmp_path / "ck.index" / "full").mkdir()
    program = f"""
import atexit, sys
import ckptfmt, numpy as np
values = {{"x": np.arange(3)}}
atexit.register(lambda: ckptfmt.save_async(sys.argv[1], values))
{before}
"""
    found, printed, stderr = run(tmp_path, program, str(tmp_path / "other"), head="")
    assert (found, printed) == (0, "")
    assert stderr.startswith(
        f"the background save of {tmp_path / 'ck'} failed and its error was never asked for: "
    )


def test_a_handler_of_exits_is_the_first_to_save(tmp_path: Path) -> None:
    """Nothing of Python's waits for threads that are begun by a module loaded so late."""
    program = """
import atexit, sys
import ckptfmt

def last():
    import numpy as np
    from ckptfmt.bundle import writer
    import threading
    real, prefix = writer.write_sources, sys.argv[1]
    def late(*given, **options):
        threading.Event().wait(1)  # the rest of the exit would take no time
        real(*given, **options)
    writer.write_sources = late
    ckptfmt.save_async(prefix, {"x": np.arange(3)})

atexit.register(last)
"""
    assert run(tmp_path, program, head="") == (0, "", "")
    assert ckptfmt.load(tmp_path / "ck")["x"].tolist() == [0, 1, 2]


def test_a_process_of_multiprocessing(tmp_path: Path) -> None:
    program = """
import multiprocessing
def work():
    save_async(prefix, values); reached.wait()
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start(); child.join(); print(child.exitcode)
"""
    found, printed, stderr = run(tmp_path, program)
    assert (found, printed, stderr) == (0, "0\n", "")
    assert set(ckptfmt.load(tmp_path / "ck")["x"].tolist()) == {2.0}
