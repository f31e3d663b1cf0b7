# SPDX-License-Identifier: Apache-2.0
"""Reports with pictures: one HTML file that needs nothing else."""

from ckptfmt.report.html import report

__all__ = ["report"]


def __dir__() -> list[str]:
    return __all__
