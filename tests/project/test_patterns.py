# SPDX-License-Identifier: Apache-2.0
"""Every regular expression of the package takes time in proportion to the text, also of a hostile
file."""

from __future__ import annotations

import ast
import contextlib
import importlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import ckptfmt

METHODS = ("search", "match", "fullmatch", "sub", "split", "finditer", "findall")
ROOT = Path(ckptfmt.__file__).parent
LENGTH, TEXTS, QUICK = 4000, 150, 0.002  # characters, tries of a pattern, seconds of a fast one


def _patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield where each pattern is, the pattern, and each method that is called."""
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        called = ast.walk(ast.parse(source))
        for node in called if "re." in source else ():
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("re"), str(method)), [ast.Constant(value=text), *_]
                ) if method in METHODS:
                    yield f"{path.name}:{node.lineno}", re.compile(text), method
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if "re.compile(" not in source or parts[-1] == "__main__":
            continue
        with contextlib.suppress(ImportError, ckptfmt.InvalidError):  # of optional packages
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            for name, one in vars(module).items():
                if isinstance(one, re.Pattern):
                    for method in METHODS:
                        if re.search(rf"\b{name}\.{method}\b", source):
                            yield f"{path.name}:{name}", one, method


def _text(tree: Any, chance: random.Random) -> str:
    """Return a text that about matches a part of a pattern, with what its assertions look for."""

    def one(code: Any, about: Any) -> str:
        if code is op.LITERAL:
            return chr(about)
        if code is op.NOT_LITERAL or code is op.ANY:
            return "a"
        if code is op.IN:
            return one(*chance.choice(about))
        if code is op.RANGE:
            return chr(chance.randint(*about))
        if code is op.CATEGORY:
            return {op.CATEGORY_DIGIT: "1", op.CATEGORY_SPACE: " "}.get(about, "a")
        if code is op.BRANCH:
            return _text(chance.choice(about[1]), chance)
        if code in (op.ASSERT, op.ASSERT_NOT):
            return _text(about[1], chance)
        if code in (op.SUBPATTERN, op.ATOMIC_GROUP):
            return _text(about[-1] if code is op.SUBPATTERN else about, chance)
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = about
            times = chance.randint(least, min(most, least + 2))
            return "".join(_text(inner, chance) for _ in range(times))
        return "a" if code is op.NEGATE else ""

    return "".join(one(*part) for part in tree)


def _seconds(use: Callable[[Any], Any], text: str | bytes, times: int) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        for _ in use(text) or ():
            pass
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize(
    "pattern, method", [pytest.param(*rest, id=f"{at} {rest[1]}") for at, *rest in _patterns()]
)
def test_twice_the_text_takes_twice_the_time(
    pattern: re.Pattern[Any], method: str, seed: int
) -> None:
    chance = random.Random(seed)
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    call = getattr(pattern, method)

    def use(text: Any) -> Any:
        if method == "sub":
            return iter(call(text[:0], text)[:0])
        found = call(text)
        return found if method == "finditer" else None

    for _ in range(TEXTS):
        part = _text(tree, chance) or "a"
        begin = chance.randrange(len(part))
        part = part[begin : chance.randint(begin + 1, len(part))]
        end = chance.choice(["", "\n", "!", "a"])

        def made(length: int, part: str = part, end: str = end) -> str | bytes:
            text = part * (length // len(part)) + end
            return text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")

        if _seconds(use, made(LENGTH), 1) > QUICK:
            once, twice = (_seconds(use, made(n * LENGTH), 3) for n in (1, 2))
            assert twice < max(3 * once, QUICK), f"{part!r} * n: {once:.4f} s and {twice:.4f} s"
