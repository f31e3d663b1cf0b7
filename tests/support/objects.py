# SPDX-License-Identifier: Apache-2.0
"""Objects that Checkpoints of tests save and restore."""

from __future__ import annotations

from typing import Any

import ckptfmt


class Module(ckptfmt.Trackable):
    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class Optimizer(Module):
    """Has these slot variables: variable, name, slot."""

    untracked = ("slots",)

    def __init__(self, *slots: tuple[Any, str, Any]) -> None:
        self.slots = list(slots)

    def get_slot_names(self) -> list[str]:
        return sorted({name for _, name, _ in self.slots})

    def get_slot(self, variable: Any, name: str) -> Any:
        found = (slot for owner, key, slot in self.slots if owner is variable and key == name)
        return next(found, None)


class State:
    """A text, saved as Python state."""

    def __init__(self, text: str) -> None:
        self.text = text

    def serialize(self) -> str:
        return self.text

    def deserialize(self, value: bytes) -> None:
        self.text = value.decode()
