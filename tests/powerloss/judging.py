# SPDX-License-Identifier: Apache-2.0
"""Images of a scenario, laid out and judged."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import ckptfmt
from powerloss.disk import Call, Image, images, lay_out
from powerloss.scenarios import Moment, Scenario

__all__ = ["judged", "look"]

# A sample of N images is drawn from DRAWN_FROM * N, or from DRAWN_FROM_LEAST if that is more.
DRAWN_FROM, DRAWN_FROM_LEAST = 100, 8000


def judged(scenario: Scenario, calls: list[Call], model: str, limit: int) -> Iterator[str | None]:
    """Yield what is wrong with each of at most `limit` images; None for those that are right."""
    chance = random.Random(f"{os.environ['CKPTFMT_TEST_SEED']} {model}")
    sample: list[tuple[int, Image]] = []
    for seen, one in enumerate(images(calls, model, chance, breadth=max(40, limit // 1000))):
        if len(sample) < limit:
            sample.append(one)
        elif (place := chance.randrange(seen + 1)) < limit:
            sample[place] = one
        if seen > max(DRAWN_FROM * limit, DRAWN_FROM_LEAST):
            break
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for number, (made, image) in enumerate(sample):
            root = Path(folder) / str(number)
            root.mkdir()
            lay_out(image, root)
            yield _wrong(scenario, root, calls[:made], image)
            shutil.rmtree(root)


def moment_of(made: list[Call]) -> Moment:
    """Return how far a scenario was after these calls."""
    marks = [call.path.split() for call in made if call.kind == "mark"]
    steps = {
        word: max((int(step) for which, step in marks if which == word), default=0)
        for word in ("begin", "done")
    }
    return Moment(steps["begin"], steps["done"])


def look(scenario: Scenario, root: Path, moment: Moment) -> Exception | None:
    """What is wrong with what a power cut left; that of a lost save the library warns is right."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            scenario.judge(root, moment)
    except Exception as error:  # whatever it is, it is a finding
        return error
    return None


def _wrong(scenario: Scenario, root: Path, made: list[Call], image: Image) -> str | None:
    error = look(scenario, root, moment_of(made))
    if error is None:
        return None
    names = sorted(path for path, _ in image)
    return f"after call {len(made)}: {type(error).__name__}: {error}; files: {names}"
