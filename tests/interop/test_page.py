# SPDX-License-Identifier: Apache-2.0
"""TensorFlow has the names and the words of errors in docs/coming-from-tensorflow.md.

tests/project has our side.
"""

from __future__ import annotations

from pathlib import Path

from support.page import NAMES, in_backticks, quoted_words, sections

from .workers import ask


def test_names_and_words_of_tensorflow(tmp_path: Path) -> None:
    names = [name for row in sections()[NAMES] for name in in_backticks(row.first)]
    words = quoted_words()
    # The bundles are not read again: some are damaged on purpose.
    answer = ask("tf_page.py", str(tmp_path), question={"names": names, "words": words})
    assert answer["missing"] == []
    assert {title: why for title, why in answer["rows"].items() if why is not None} == {}
    assert words.keys() <= answer["rows"].keys()
