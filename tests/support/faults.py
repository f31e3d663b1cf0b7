# SPDX-License-Identifier: Apache-2.0
"""Faults for one call: a full disk, no free descriptor, an exception or SIGKILL at a random call, a
failed request of a store. Each returns what the call may have done."""

from __future__ import annotations

import contextlib
import inspect
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from hypothesis import strategies as st

import ckptfmt

from .dict_client import DictClient
from .forking import forked, in_child, wait_for
from .process import descriptors, limited
from .strategies import LONG

FREEING = ("__del__", "keep")
PACKAGE = os.path.dirname(ckptfmt.__file__)

Call = Callable[[], object]


class Stopped(BaseException):
    """Raised in the middle of a call, as KeyboardInterrupt is."""


class Fault(NamedTuple):
    """A fault, and when it occurs: after so many bytes, descriptors, calls or microseconds."""

    kind: str
    at: int

    @property
    def in_child(self) -> bool:
        return self.kind.startswith("child")

    @property
    def kills(self) -> bool:
        return self.kind.startswith("child killed")


NO_FAULT = Fault("none", 0)
FAULTS = st.one_of(
    st.just(NO_FAULT),
    st.just(NO_FAULT),
    st.just(Fault("child", 0)),
    st.builds(Fault, st.just("full disk"), st.integers(0, 6000)),
    st.builds(Fault, st.just("descriptors"), st.integers(0, 6)),
    st.builds(Fault, st.just("request"), st.integers(0, 12)),
    st.builds(Fault, st.just("stop"), st.integers(1, 200)),
    st.builds(Fault, st.just("child killed at a call"), st.integers(1, 200)),
    # Not in `make test`, which must not depend on the clock.
    *([st.builds(Fault, st.just("child killed at a time"), st.integers(0, 3000))] * bool(LONG)),
)


def under(fault: Fault, call: Call, client: DictClient, *, consumes: bool = False) -> bool | None:
    """Run `call` under a fault. Return True if it has its effect, False if it has none, None if
    either is right. Other errors than the fault's are raised.

    Args:
        consumes: whether it is a merge that removes inputs. If it could not, it is called again.
    """
    if fault.kills:
        return _killed(fault, call)
    if fault.in_child:
        assert in_child(call) == 0, "the child failed"
        return True
    with warnings.catch_warnings():
        if fault.kind == "stop":  # before `with` has a Writer, its collection abandons it
            warnings.simplefilter("ignore", ResourceWarning)
        try:
            with _armed(fault, client):
                call()
        except (Stopped, ckptfmt.errors.DurabilityUnknownError):
            assert fault.kind != "none"
            return None
        except (OSError, ckptfmt.errors.BusyError) as error:  # an import without descriptors
            if fault.kind == "none":
                raise
            if getattr(error, "failure", None) == "NOT_REMOVED":
                assert consumes, "a save fails because of its own parts"
                call()
                return True
            return False
        return True


@contextlib.contextmanager
def _armed(fault: Fault, client: DictClient) -> Iterator[None]:
    match fault.kind:
        case "full disk":
            with limited(resource.RLIMIT_FSIZE, fault.at):
                yield
        case "descriptors":
            with descriptors(fault.at):
                yield
        case "request":
            left = fault.at

            def before(method: str, key: str) -> None:
                nonlocal left
                left -= 1
                if left == -1:
                    raise OSError(f"{method} {key} failed")

            client.before = before
            try:
                yield
            finally:
                client.before = lambda method, key: None
        case "stop":
            with _at_call(fault.at, _stop):
                yield
        case _:
            yield


@contextlib.contextmanager
def _at_call(number: int, act: Call) -> Iterator[None]:
    """Call `act` in this thread as the n-th function of the package begins, where Python handles
    signals too."""
    left = number

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        code = frame.f_code
        # An exception in what frees an object or closes a generator would be lost.
        is_counted = code.co_name not in FREEING and not code.co_flags & inspect.CO_GENERATOR
        if event == "call" and PACKAGE in code.co_filename and is_counted:
            left -= 1
            if left == 0:
                act()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _stop() -> None:
    raise Stopped


def _killed(fault: Fault, call: Call) -> bool | None:
    def work() -> None:
        with _at_call(fault.at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            call()

    if fault.kind == "child killed at a call":
        status = in_child(work)
    else:
        child = forked(call)
        time.sleep(fault.at / 1e6)
        os.kill(child, signal.SIGKILL)
        status = wait_for(child)
    assert status in (0, -signal.SIGKILL), status
    return True if status == 0 else None
