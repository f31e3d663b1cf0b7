# SPDX-License-Identifier: Apache-2.0
"""The layouts of the arrays of a tree or a Checkpoint, by the paths of the arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ckptfmt._base.arguments import invalid, wrong
from ckptfmt.objects.traversal import Local, TreeView
from ckptfmt.saving.mesh import Layout, is_foreign_layout


def layouts_by_path(layouts: Any) -> dict[str, Layout | None]:
    """Return layouts by the escaped paths of their leaves.

    Args:
        layouts: a mapping from paths ("model/kernel") to Layout or None, or a tree of these with
            the shape of the tree that is saved. TensorFlow's layouts are taken too, and the texts
            of layouts.

    Raises:
        InvalidError: neither.
    """
    if isinstance(layouts, Mapping) and all(map(_is_layout, layouts.values())):
        for path in layouts:
            if not isinstance(path, str):
                raise wrong("a path of layouts", "a str", path)
        return {path: _layout(value) for path, value in layouts.items()}
    view = _LayoutView(layouts)
    if _is_layout(layouts) or not view.is_container(layouts):
        raise wrong("layouts", "a tree of Layouts, or a mapping from paths to Layouts", layouts)
    return view.by_path()


class _LayoutView(TreeView):
    """A tree of layouts, each in its own place."""

    def is_container(self, value: Any) -> bool:
        """Return whether a tree has children there."""
        return isinstance(value, (Mapping, list, tuple)) or dataclasses.is_dataclass(value)

    def by_path(self) -> dict[str, Layout | None]:
        """Return the layouts by escaped path."""
        found: dict[str, Layout | None] = {}
        waiting: list[tuple[Local, frozenset[int]]] = [(self.start(), frozenset())]
        while waiting:
            local, around = waiting.pop()
            value = local.value
            if _is_layout(value):
                found[local.key_path] = _layout(value)
            elif not self.is_container(value) or id(value) in around:
                raise invalid("layouts", f"layouts has no Layout at {local.key_path!r}")
            else:
                inside = around | {id(value)}
                waiting += [(local.child(child), inside) for child in self.children(local)]
        return found


def _is_layout(value: object) -> bool:
    return value is None or isinstance(value, (Layout, str)) or is_foreign_layout(value)


def _layout(value: Any) -> Layout | None:
    return None if value is None else Layout.of(value)
