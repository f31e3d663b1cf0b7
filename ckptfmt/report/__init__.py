# SPDX-License-Identifier: Apache-2.0
"""Reports with pictures: one HTML file that needs nothing else.

html.py        report
collect.py     what a report shows, as JSON values
measuring.py   what is read of a checkpoint, within a limit
statistics.py  statistics and a histogram
"""

from ckptfmt.report.html import report

__all__ = ["report"]


def __dir__() -> list[str]:
    return __all__
