# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs.py.

from ckptfmt._base.background import SaveFuture as SaveFuture
from ckptfmt._base.slices import SliceSpec as SliceSpec
from ckptfmt._core import DtypeInfo as DtypeInfo
from ckptfmt.bundle.reader import Header as Header
from ckptfmt.bundle.tensor import StoredSlice as StoredSlice
from ckptfmt.bundle.tensor import TensorHandle as TensorHandle
from ckptfmt.bundle.verify import Finding as Finding
from ckptfmt.bundle.verify import Report as Report
from ckptfmt.manager.restoring import Rejected as Rejected
from ckptfmt.manager.restoring import Restored as Restored
from ckptfmt.objects.nodes import TreeNode as TreeNode
from ckptfmt.objects.status import InitializationOnlyStatus as InitializationOnlyStatus
from ckptfmt.objects.status import LoadStatus as LoadStatus
from ckptfmt.objects.status import NameBasedSaverStatus as NameBasedSaverStatus
from ckptfmt.recipe.average import Average as Average
from ckptfmt.recipe.convert import Conversion as Conversion
from ckptfmt.recipe.edit import Edit as Edit
from ckptfmt.recipe.load import MatchReport as MatchReport
from ckptfmt.recipe.rescue import Rescue as Rescue

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
    "Rescue",
    "Restored",
    "SaveFuture",
    "SliceSpec",
    "StoredSlice",
    "TensorHandle",
    "TreeNode",
]
