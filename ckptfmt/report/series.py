# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a series of checkpoints, as JSON values: how the layers change with the
steps.

Two passes over the checkpoints, of which one is open at a time. The first reads their indexes: the
steps, and the tensors that all of them have. The second samples the same elements of these in each,
within a limit; only the samples of one checkpoint are kept, for the change to the next.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.casting import kind_of as kind_of_numbers
from ckptfmt._base.names import (
    OBJECT_GRAPH_KEY,
    VALUE_SUFFIX,
    in_order,
    parse_data_name,
    printable,
)
from ckptfmt.bundle.comparing import ratio
from ckptfmt.bundle.completeness import proves_damage
from ckptfmt.bundle.meanings import has_values, meant
from ckptfmt.bundle.reader import open as open_checkpoint
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import (
    CkptfmtError,
    GenerationGoneError,
    TensorNotFoundError,
    UnsupportedError,
    masked,
)
from ckptfmt.files.folder import folder_of
from ckptfmt.naming.roles import ModelRole
from ckptfmt.naming.states import state_of
from ckptfmt.recipe.opening import Opened, kind_of, open_any
from ckptfmt.recipe.sources import opened
from ckptfmt.report.layers import Layers, short
from ckptfmt.report.measuring import SAMPLES, Budget, Progress, sample_boxes

# Checkpoints that are read, elements that are sampled of a tensor, and bytes of all, and names of
# tensors that not all checkpoints have.
STEPS_MAX, SAMPLED_MAX, BYTES_MAX, MISSING_MAX = 50, 4096, 64 << 20, 200
# `NAME-N`, which extensions may follow; but not the file of a model in several.
_NUMBERED = re.compile(r"(?s).*(?<!-of)-([0-9]{1,15})(\.[A-Za-z][A-Za-z0-9]*)*")
_STEPS = ("global_step", "step")
# Of more tensors the boxes are fewer: most of the time is that of a read.
MANY = 1000
# The largest integer that JavaScript does not round.
STEP_MAX = (1 << 53) - 1

# Dtype and shape of a tensor.
Kind = tuple[np.dtype[Any], tuple[int, ...]]


class _Open(NamedTuple):
    """An open checkpoint or file of another format, which is read without a conversion.

    Attributes:
        path: of the file.
        metadata: what it has beside tensors.
        tensors: by name.
    """

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]

    def tensor(self, name: str) -> Any:
        """Return a tensor; raise TensorNotFoundError if it is missing."""
        try:
            return _meant(self.tensors[name])
        except KeyError as error:
            why = "not found in the file"
            raise TensorNotFoundError(why, path=self.path, tensor=name) from error

    def kinds(self) -> dict[str, Kind | None]:
        """Return the dtype and shape of all tensors by name; None of those without numbers."""
        kinds: dict[str, Kind | None] = {}
        for name, stored in self.tensors.items():
            kinds[name] = None
            try:
                tensor = _meant(stored)
                if tensor.dtype is not None and has_values(tensor):
                    kinds[name] = tensor.dtype, tensor.shape
            except CkptfmtError:
                continue
        kinds.pop(OBJECT_GRAPH_KEY, None)
        return kinds


def _meant(tensor: Any) -> Any:
    return meant(tensor) if isinstance(tensor, TensorHandle) else tensor


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_Open]:
    kind = kind_of(path)
    if kind == "tensorflow":
        with open_checkpoint(path) as reader:
            yield _Open(reader.prefix, reader.metadata, reader._by_stored_names())
    else:
        with opened(kind, path, None, keeps=True, as_state=True) as taken:
            yield _Open(path, taken.metadata, taken.tensors)


def checkpoints_in(directory: str) -> list[str]:
    """Return the prefixes of the checkpoints in a directory: those with a number by number, then
    the others by name; none if there is no directory.

    Raises:
        StorageError: it cannot be listed now.
    """
    names = [name for name, _ in folder_of(directory).indexed()]
    numbers = {name: _number(name) for name in names}
    ranks = {names[at]: rank for rank, at in enumerate(in_order(names))}
    names.sort(key=lambda name: (numbers[name] is None, numbers[name] or 0, ranks[name]))
    return [os.path.join(directory, name) for name in names]


def _number(path: str) -> int | None:
    """Return the number of `NAME-N`."""
    data = parse_data_name(path)
    name = os.path.basename(path.rstrip("/") if data is None else data.prefix)
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


def _step(path: str, one: _Open) -> int | None:
    """Return the step of a checkpoint: the number of `NAME-N`, else the value, or the scalar
    tensor, that is named as a step; None if not known."""
    if (number := _number(path)) is not None:
        return number
    state = state_of(one.metadata)
    for values in (state.values if state is not None else {}, one.metadata):
        for name in _STEPS:
            value = values.get(name)
            if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value):
                value = int(value)  # metadata of safetensors are texts
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= STEP_MAX:
                return value
    for name in (key + end for key in _STEPS for end in ("", VALUE_SUFFIX)):
        with contextlib.suppress(TensorNotFoundError):
            tensor = one.tensor(name)
            if tensor.shape == () and tensor.dtype and kind_of_numbers(tensor.dtype) == "i":
                number = int(tensor.read())
                return number if 0 <= number <= STEP_MAX else None
    return None


def _reason(error: CkptfmtError) -> str:
    """Return why a checkpoint is a gap in the series; raise what may be transient."""
    if not proves_damage(error) and not isinstance(error, (UnsupportedError, TensorNotFoundError)):
        raise error
    return str(error)


class _Part(NamedTuple):
    """A tensor that is sampled."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Series:
    """Checkpoints in the order of their steps, or as they were given if a step is not known.

    Args:
        paths: any paths that `open_any` takes.
        progress: called with the checkpoints done, and of all.

    Attributes:
        paths: of those that are read: at most STEPS_MAX, the first and the last among them.
        steps: of the same, None where not known.
        errors: by path, why a checkpoint cannot be read.

    Raises:
        CkptfmtError: a checkpoint cannot be read now, or none can.
    """

    def __init__(self, paths: Sequence[str], progress: Progress | None = None) -> None:
        self.paths = list(paths)
        numbers = {path: _number(path) for path in paths}
        if None not in numbers.values():
            self.paths.sort(key=lambda path: numbers[path] or 0)
        most = min(len(paths), STEPS_MAX)
        places = [at * (len(paths) - 1) // max(most - 1, 1) for at in range(most)]
        self.paths = [self.paths[place] for place in places]
        self.errors: dict[str, str] = {}
        self._skipped = len(paths) - most
        self._progress = progress if progress is not None else lambda done, total: None
        self._common: dict[str, Kind | None] | None = None
        self._missing: set[str] = set()
        found = [(self._look(place), path) for place, path in enumerate(self.paths)]
        self._by_step = all(step is not None for step, _ in found)
        if self._by_step:
            found.sort(key=lambda one: one[0] or 0)
        self.steps, self.paths = [step for step, _ in found], [path for _, path in found]

    def _look(self, place: int) -> int | None:
        """Read the index of a checkpoint; return its step."""
        path = self.paths[place]
        self._progress(place, len(self.paths))
        try:
            with _opened(path) as one:
                kinds, step = one.kinds(), None
                try:
                    step = _step(path, one)
                except CkptfmtError as error:  # the sampling reports it
                    _reason(error)
        except CkptfmtError as error:
            self.errors[path] = _reason(error)
            return _number(path)
        common = kinds if self._common is None else self._common
        if common != kinds:
            self._common = dict(common.items() & kinds.items())
            self._missing |= (common.keys() | kinds.keys()) - self._common.keys()
        else:
            self._common = kinds
        return step

    @contextlib.contextmanager
    def last(self) -> Iterator[Opened]:
        """Open the last checkpoint that can be opened.

        Raises:
            CkptfmtError: none can be, or one cannot be read now.
        """
        with contextlib.ExitStack() as stack:
            # If none can be, that of the last says why.
            readable = [path for path in self.paths if path not in self.errors] or self.paths[-1:]
            while True:
                path = readable.pop()
                try:
                    found = stack.enter_context(open_any(path))
                    break
                except CkptfmtError as error:
                    self.errors[path] = _reason(error)
                    if not readable:
                        raise
            yield found

    def data(self, names: Layers, budget: Budget) -> dict[str, Any]:
        """Return the data of the series.

        Args:
            names: the layers of the last checkpoint, which are those of the series.
            budget: how much may be read of all checkpoints, each of which has an equal share.
        """
        layers = self._layers(names)
        count, previous = len(self.paths), dict[str, NDArray[Any]]()
        rows: list[dict[str, Any]] = [
            {"name": short(name), "role": role}
            | {field: [None] * count for field in ("norm", "ratio", "zeros", "bad")}
            for name, role, _ in layers
        ]
        boxes = _Boxes([one for *_, parts in layers for one in parts])
        steps: list[dict[str, Any]] = [
            {"path": printable(masked(path)), "step": step, "error": self.errors.get(path)}
            for path, step in zip(self.paths, self.steps, strict=True)
        ]
        for place, path in enumerate(self.paths):
            self._progress(place, count)
            if path in self.errors:
                continue
            left, nbytes = max(budget.left(), 0.0), budget.nbytes
            share = Budget(
                None if math.isinf(left) else left / (count - place),
                None if nbytes is None else nbytes // count,
            )
            try:
                with _opened(path) as one:
                    for row, (*_, parts) in zip(rows, layers, strict=True):
                        try:
                            found = boxes.sampled(one, parts, share)
                        except CkptfmtError as error:  # of other layers there may be values
                            self.errors.setdefault(path, _reason(error))
                            continue
                        if found is None:
                            steps[place]["partial"] = True
                            break
                        for field, value in _numbers(parts, found, previous).items():
                            row[field][place] = value
                        previous.update(zip((part.name for part in parts), found, strict=True))
            except CkptfmtError as error:
                self.errors[path] = _reason(error)
            steps[place]["error"] = self.errors.get(path)
        self._progress(count, count)
        missing = sorted(self._missing)
        return {
            "axis": "step" if self._by_step else "place",
            "steps": steps,
            "skipped": self._skipped,
            "layers": rows,
            "missing": [printable(names.people.shown(name)) for name in missing[:MISSING_MAX]],
            "missing_count": len(missing),
        }

    def _layers(self, names: Layers) -> list[tuple[str, ModelRole, list[_Part]]]:
        """Return name, role and tensors of the layers that have numbers in all checkpoints."""
        parts: list[list[_Part]] = [[] for _ in names.layers]
        for name, layer in zip(names.stored, names.of, strict=True):
            kind = (self._common or {}).get(name)
            if layer is None or kind is None or 0 in kind[1]:
                continue
            if kind_of_numbers(kind[0]) in ("f", "c"):
                parts[layer].append(_Part(name, *kind))
        return [(*layer, some) for layer, some in zip(names.layers, parts, strict=True) if some]


class _Boxes:
    """Which elements are sampled: the same of a tensor in all checkpoints.

    Args:
        parts: all that are sampled; of many tensors, fewer elements in fewer boxes.
    """

    def __init__(self, parts: Sequence[_Part]) -> None:
        sizes = np.array([math.prod(part.shape) for part in parts], np.float64)
        itemsizes = np.array([part.dtype.itemsize for part in parts], np.float64)
        self._count = SAMPLES if len(parts) <= MANY else 2
        self._most = SAMPLED_MAX
        while self._most > SAMPLES and np.minimum(sizes, self._most) @ itemsizes > BYTES_MAX:
            self._most //= 2

    def sampled(
        self, one: _Open, parts: Sequence[_Part], budget: Budget
    ) -> list[NDArray[Any]] | None:
        """Return the samples of the tensors of a layer; None if the budget is used up.

        Raises:
            CkptfmtError: one cannot be read, or is not what it was.
        """
        found = []
        for part in parts:
            size = math.prod(part.shape)
            limit = self._most * part.dtype.itemsize
            if not budget.allows(min(size * part.dtype.itemsize, limit)):
                return None
            tensor = one.tensor(part.name)
            if (tensor.dtype, tensor.shape) != (part.dtype, part.shape):
                why = "it was replaced while the report was made"
                raise GenerationGoneError(why, path=one.path, tensor=part.name)
            if size <= self._most:
                found.append(tensor.read().reshape(-1))
                continue
            boxes = sample_boxes(tensor, limit, self._count)
            is_ours = isinstance(tensor, TensorHandle)
            pieces = [tensor[box] if is_ours else tensor.read(box) for box in boxes]
            found.append(np.concatenate([piece.reshape(-1) for piece in pieces]))
        return found


def _numbers(
    parts: Sequence[_Part], samples: Sequence[NDArray[Any]], previous: Mapping[str, NDArray[Any]]
) -> dict[str, float | None]:
    """Return the numbers of a layer. What was sampled stands for the whole tensor."""
    norm, change, before = list[float](), list[float](), list[float]()
    zeros, elements, bad = 0.0, 0, 0
    for part, sample in zip(parts, samples, strict=True):
        size = math.prod(part.shape)
        values = _wide(sample)
        is_finite = np.isfinite(values)
        elements += size
        zeros += size * (int((values == 0).sum()) / values.size)
        bad += values.size - int(is_finite.sum())
        norm += _norms(values[is_finite], size)
        if part.name in previous:
            old = _wide(previous[part.name])
            both = is_finite & np.isfinite(old)
            with np.errstate(over="ignore"):
                change += _norms(values[both] - old[both], size)
            before += _norms(old[both], size)
    whole, moved = math.hypot(*before), math.hypot(*change)
    return {
        "norm": _finite(math.hypot(*norm)) if norm else None,
        "ratio": _finite(ratio(moved, whole)) if before else None,
        "zeros": zeros / elements,
        "bad": bad,
    }


def _wide(sample: NDArray[Any]) -> NDArray[Any]:
    return sample.astype(np.complex128 if sample.dtype.kind == "c" else np.float64)


def _norms(values: NDArray[Any], size: int) -> list[float]:
    """Return the norm of so many elements of which these are some, or nothing without any."""
    if not values.size:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        absolute = np.abs(values)
        largest = float(absolute.max())
        if not largest or math.isinf(largest):
            return [largest]
        scaled = absolute / largest  # whose squares do not overflow
        return [largest * math.sqrt(float(scaled @ scaled) / values.size * size)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
