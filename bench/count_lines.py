# SPDX-License-Identifier: Apache-2.0
"""Count what a user writes for the same job with each library.

    python bench/count_lines.py > bench/results/lines.md

The programs are the functions of bench/lines/with_*.py. Statements are counted, so that the style
of formatting does not matter: every statement of the function, those inside `with` and `for` as
well. Imports and the definitions are the same for all and not counted.
"""

from __future__ import annotations

import ast
from pathlib import Path

PROGRAMS = Path(__file__).parent / "lines"
JOBS = {
    "weights": "save the weights of a model, load them into another",
    "training": "save and resume a training: model, optimizer, step, random state, ...",
    "manager": "start or resume, keep the newest three and the best, save in the background",
    "one_tensor": "load one tensor, reading only that",
    "sharded": "save a sharded model, load it into another",
    "convert": "convert a file of another format",
}
SIDES = {
    "torch_save": "torch.save",
    "safetensors": "safetensors",
    "dcp": "DCP",
    "orbax": "orbax",
    "tf_train": "tf.train",
    "keras": "Keras",
    "lightning": "Lightning",
    "ckptfmt": "ckptfmt",
    "ckptfmt_torch": "ckptfmt.torch",
    "ckptfmt_dcp": "ckptfmt.torch.dcp",
    "ckptfmt_jax": "ckptfmt.jax",
    "ckptfmt_keras": "ckptfmt.keras",
}
HEAD = """\
# Statements that a user writes

Written by `python bench/count_lines.py` from the programs in `bench/lines/`.
Counted are statements, without imports; `-`: no program. Each program is the shortest that we know
and does the whole job: "one tensor" does not load the others, "sharded" restores tensors that
several processes or devices share, "start or resume" keeps the best of earlier runs too. The
callbacks of Keras save in the foreground.
"""


def counts(side: str) -> dict[str, int]:
    """Statements of each function of a side."""
    tree = ast.parse((PROGRAMS / f"with_{side}.py").read_text(encoding="utf-8"))
    return {
        function.name: sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
    }


def table() -> str:
    """The table, as Markdown."""
    sides = {title: counts(side) for side, title in SIDES.items()}
    lines = ["| job | " + " | ".join(sides) + " |", "| --- |" + " --- |" * len(sides)]
    for job, text in JOBS.items():
        cells = [str(count.get(job, "-")) for count in sides.values()]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(HEAD)
    print(table())
