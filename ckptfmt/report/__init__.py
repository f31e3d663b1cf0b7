# SPDX-License-Identifier: Apache-2.0
"""Reports with pictures: one HTML file that needs nothing else.

about.py       what a checkpoint is
html.py        report, report_series
collect.py     what a report shows of a checkpoint, as JSON values
comparison.py  what it shows of two
health.py      what is wrong, the most serious first
layers.py      by which modules tensors are summed up
measuring.py   what is read of a checkpoint, within a limit
places.py      where NaN, infinities and zeros are
series.py      what it shows of several, in the order of their steps
statistics.py  statistics and a histogram
"""

from ckptfmt.report.html import report, report_series

__all__ = ["report", "report_series"]


def __dir__() -> list[str]:
    return __all__
