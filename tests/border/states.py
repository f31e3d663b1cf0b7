# SPDX-License-Identifier: Apache-2.0
"""State files with pieces changed."""

from __future__ import annotations

from random import Random

STATES = [
    'model_checkpoint_path: "m"\n',
    'model_checkpoint_path: "m"\nall_model_checkpoint_paths: "m"\nall_model_checkpoint_paths: "s"\n'
    "all_model_checkpoint_timestamps: 1700000000.5\nlast_preserved_timestamp: 1e9\n",
]
PIECES = ['"', "'", "\\", "\n", ":", "{", "}", "<", ">", "[", "]", ",", ";", "#", "\\x41", "\\777"]
PIECES += ["nan", "-inf", "1e999", "0x10", "/etc/passwd", "../s", "..", "~", "*", "?", "m"]
PIECES += ["s", "-1", "99999999999999", "unknown"]
PIECES += ["\0", "\udcff", "\\u00e9", "\\U0010ffff", "\\ud800", '"m" "s"', "{" * 300, "a: <" * 150]
PIECES += ["all_model_checkpoint_paths", "model_checkpoint_path: 's'\n"]


def state_text(chance: Random) -> bytes:
    """A state file with a few pieces exchanged, dropped or put in."""
    text = chance.choice(STATES)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(text))
        end = at + chance.choice((0, 0, 1, 3, 12))
        text = text[:at] + chance.choice(PIECES) + text[end:]
    return text.encode("utf-8", "surrogateescape")
