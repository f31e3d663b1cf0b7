# SPDX-License-Identifier: Apache-2.0
"""A cached property that a forked child can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 (as functools.cached_property)
    """functools.cached_property without its lock.

    Before Python 3.12 functools holds a lock during the computation. A child forked meanwhile by
    another thread (as DataLoader workers are) would wait for that lock for ever. Here concurrent
    threads may each compute the value; all get the one stored first.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...

    def __get__(self, instance: object | None, owner: type[Any]) -> cached_property[T] | T:
        if instance is None:
            return self
        found: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return found
