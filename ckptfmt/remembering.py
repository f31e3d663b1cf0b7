# SPDX-License-Identifier: Apache-2.0
"""Properties that are worked out once and then remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 (as that of functools)
    """As that of functools, whose objects of a class share a lock before Python 3.12: a child that
    was forked while another thread held it would wait for ever. Threads that ask at once may all
    work it out; all get what the first of them remembered."""

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
