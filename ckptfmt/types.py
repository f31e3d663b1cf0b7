# SPDX-License-Identifier: Apache-2.0
"""The classes of results, handles and options: for annotations and `isinstance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt._base.doors import door

if TYPE_CHECKING:
    from ckptfmt._base.background import SaveFuture
    from ckptfmt._base.slices import SliceSpec
    from ckptfmt._core import DtypeInfo
    from ckptfmt.bundle.load import MatchReport
    from ckptfmt.bundle.reader import Header
    from ckptfmt.bundle.tensor import StoredSlice, TensorHandle
    from ckptfmt.bundle.verify import Finding, Report
    from ckptfmt.editing.averages import Average
    from ckptfmt.editing.edits import Edit
    from ckptfmt.formats.convert import Conversion
    from ckptfmt.manager.restoring import Rejected, Restored
    from ckptfmt.objects.nodes import TreeNode
    from ckptfmt.objects.status import InitializationOnlyStatus, LoadStatus, NameBasedSaverStatus

__all__ = [
    "Average",
    "Conversion",
    "DtypeInfo",
    "Edit",
    "Finding",
    "Header",
    "InitializationOnlyStatus",
    "LoadStatus",
    "MatchReport",
    "NameBasedSaverStatus",
    "Rejected",
    "Report",
    "Restored",
    "SaveFuture",
    "SliceSpec",
    "StoredSlice",
    "TensorHandle",
    "TreeNode",
]

if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__, __dir__ = door(
        __name__,
        {
            "_base.background": "SaveFuture",
            "_core": "DtypeInfo",
            "_base.slices": "SliceSpec",
            "bundle.load": "MatchReport",
            "bundle.reader": "Header",
            "bundle.tensor": "StoredSlice TensorHandle",
            "bundle.verify": "Finding Report",
            "editing.averages": "Average",
            "editing.edits": "Edit",
            "formats.convert": "Conversion",
            "manager.restoring": "Rejected Restored",
            "objects.nodes": "TreeNode",
            "objects.status": "InitializationOnlyStatus LoadStatus NameBasedSaverStatus",
        },
    )
