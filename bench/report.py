# SPDX-License-Identifier: Apache-2.0
"""What a run came to: the targets, everything, a picture, and the samples."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import picture
import stats
from cases import BEFORE, OURS, PEAK_MIB, PEAK_ROWS, PEERS, TARGETS, TENSORFLOW, Row, Target
from limits import TEXT, Limits
from measure import Entry, Plan

MIB = 1 << 20
# Memory that the guest gave back to the host during a sample; the next touch of it is dear.
POLLUTED_SHARE, POLLUTED_LEAST = 0.05, 16 * MIB


def duration(seconds: float) -> str:
    """In the unit that reads best."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def told(found: stats.Ratio | None) -> str:
    if found is None:
        return "-"
    return f"{times(found.value)} ({times(found.low)} to {times(found.high)})"


def _as_long(found: stats.Ratio | None) -> str:
    return "-" if found is None else f"{times(found.value)} x"


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def head(*cells: str) -> list[str]:
    return [line(*cells), line(*["---"] * len(cells))]


def polluted(sample: dict[str, Any], size: int) -> bool:
    return bool(sample.get("reported_kib", 0) << 10 > max(POLLUTED_LEAST, POLLUTED_SHARE * size))


class Result:
    """One row of the report: a row of samples, or another number of them."""

    def __init__(self, row: Row, entries: list[Entry], key: str, title: str, measure: str) -> None:
        self.row, self.entries, self.key, self.title, self.measure = (
            row,
            entries,
            key,
            title,
            measure,
        )
        self.ours = entries[0]

    def times(self, entry: Entry) -> list[float]:
        return entry.seconds(self.measure)

    def of(self, side: str, tuned: bool) -> Entry | None:
        """The first with samples."""
        for entry in self.entries:
            part = entry.part
            if entry.samples and part.side == side and part.tuned == tuned:
                return entry
        return None

    def best_peer(self) -> Entry | None:
        found = [e for e in self.entries if e.samples and e.part.side in PEERS]
        return min(found, key=lambda e: stats.median(self.times(e)), default=None)

    def ratio(self, entry: Entry | None, seed: int) -> stats.Ratio | None:
        """By how much ours is faster than another, of samples taken in turn with it."""
        if entry is None or not self.ours.samples:
            return None
        ours = [
            time
            for time, sample in zip(self.times(self.ours), self.ours.samples, strict=True)
            if entry is self.ours or sample["group"] == entry.samples[0]["group"]
        ]
        return stats.ratio(self.times(entry), ours or self.times(self.ours), seed)

    def cpu_ratio(self, entry: Entry | None) -> float | None:
        """The same of processor time, which a busy machine does not change as much."""
        if entry is None or self.measure != "seconds":
            return None
        found = [
            [sample["cpu"] for sample in side.samples if "cpu" in sample]
            for side in (entry, self.ours)
        ]
        if not all(found):
            return None
        theirs, ours = map(stats.median, found)
        return theirs / ours if ours > 0 else None

    def of_limit(self, entry: Entry, rates: dict[str, float]) -> float | None:
        """Bytes a second as a share of what the machine can."""
        rate = rates.get(self.row.limit) if self.measure == "seconds" else None
        if not rate or not entry.samples:
            return None
        whole = entry.size / entry.part.share
        return whole / max(stats.median(self.times(entry)), 1e-9) / rate

    def notes(self, entry: Entry) -> str:
        found = []
        if entry.part.share != 1:
            scale = ", time scaled up" if entry.part.scaled else ""
            found.append(f"{entry.count:,} tensors{scale}")
        bad = sum(polluted(sample, entry.size) for sample in entry.samples)
        if bad:
            found.append(f"{bad} of {len(entry.samples)} while memory went back to the host")
        stayed = max((sample.get("resident", 0.0) for sample in entry.samples), default=0.0)
        if stayed > 0.001:
            found.append(f"{stayed:.1%} still cached")
        if self.row.verb == "save_changed" and entry.samples:
            wrote = stats.median([sample["written"] for sample in entry.samples])
            found.append(f"{wrote / MIB:.1f} MiB written")
        if self.row.verb == "stall":
            first = entry.first.get(self.measure)
            found.append(f"first call {duration(first)}" if first is not None else "")
        return "; ".join(filter(None, found))


class Run:
    """All that one run found."""

    def __init__(self, plan: Plan, limits: Limits, folder: Path) -> None:
        self.plan, self.limits = plan, limits
        self.machine = machine(folder)
        self.results: dict[str, Result] = {}
        self.versions: dict[str, str] = {}
        self.wrong: list[str] = []

    def add(self, row: Row, entries: list[Entry]) -> None:
        self.results[row.key] = Result(row, entries, row.key, row.title, "seconds")
        for key, (measure, title) in row.also.items():
            self.results[key] = Result(row, entries, key, title, measure)

    def complete(self) -> bool:
        """Whether ours did all that it was asked for."""
        return all(result.ours.samples for result in self.results.values())

    def brief(self, key: str) -> str:
        """A progress line."""
        result = self.results[key]
        if not result.ours.samples:
            return result.ours.word
        found = [duration(stats.median(result.times(result.ours)))]
        rival, peer = result.of(TENSORFLOW, False), result.best_peer()
        if rival:
            found.append(f"TensorFlow x {told(result.ratio(rival, self.plan.seed))}")
        if before := result.of(BEFORE, False):
            found.append(f"before x {told(result.ratio(before, self.plan.seed))}")
        if peer:
            found.append(f"{peer.part.name()} x {told(result.ratio(peer, self.plan.seed))}")
        return ", ".join(found)

    # ---- tables

    def _target(self, target: Target) -> str:
        result = self.results[target.key]
        seed, ours = self.plan.seed, result.ours
        plain = result.ratio(result.of(TENSORFLOW, False), seed)
        tuned = result.ratio(result.of(TENSORFLOW, True), seed)
        cpu = result.cpu_ratio(result.of(TENSORFLOW, False))
        peer = result.best_peer()
        beside = result.ratio(peer, seed)
        share = result.of_limit(ours, self.limits.rates)
        if plain is None:
            met = "?"
        else:
            met = (
                "moonshot"
                if plain.value >= target.moonshot
                else ("yes" if plain.value >= target.must else "no")
            )
            met += "" if plain.low >= target.must or met == "no" else ", not sure"
        return line(
            target.key,
            result.title,
            duration(stats.median(result.times(ours))) if ours.samples else ours.word,
            told(plain),
            told(tuned),
            "-" if cpu is None else times(cpu),
            f"{target.must:g} / {target.moonshot:g}" + (f" ({target.note})" if target.note else ""),
            met,
            f"{peer.part.name()}: {told(beside)}" if peer else "-",
            f"{share:.0%}" if share is not None else "-",
        )

    def summary(self) -> str:
        """The rows that have a target."""
        lines = head(
            *("row", "case", "ours", "x TensorFlow (95%)", "x TensorFlow tuned", "x its CPU"),
            *("must / moonshot", "met", "best other peer: x", "of the limit"),
        )
        lines += [self._target(target) for target in TARGETS if target.key in self.results]
        return "\n".join(lines)

    def short(self) -> str:
        """What README quotes: the same rows in few columns."""
        lines = head("case", "ours", "TensorFlow takes", "the best other takes", "of the limit")
        for target in TARGETS:
            result = self.results.get(target.key)
            if result is None or not result.ours.samples:
                continue
            plain, peer = result.of(TENSORFLOW, False), result.best_peer()
            beside = result.ratio(peer, self.plan.seed)
            share = result.of_limit(result.ours, self.limits.rates)
            # What it does instead, where it has no way to do the same.
            other = f" ({plain.part.label})" if plain and plain.part.label else ""
            lines.append(
                line(
                    result.title,
                    duration(stats.median(result.times(result.ours))),
                    _as_long(result.ratio(plain, self.plan.seed)) + other,
                    f"{_as_long(beside)} ({peer.part.name()})" if peer else "-",
                    f"{share:.0%}" if share is not None else "-",
                )
            )
        return "\n".join(lines)

    def _peaks(self) -> Iterator[str]:
        yield from head("row", "side", "MiB above the arrays", f"at most {PEAK_MIB}")
        for key in PEAK_ROWS:
            if key not in self.results:
                continue
            result = self.results[key]
            for entry in result.entries:
                if not entry.samples:
                    continue
                peak = max(s["peak_kib"] for s in [entry.first, *entry.samples]) / 1024
                peak -= entry.size / MIB if result.row.verb == "load" else 0
                met = ("yes" if peak <= PEAK_MIB else "no") if entry.part.side == OURS else ""
                if peak < -1:  # the process had kept memory of an earlier row
                    yield line(key, entry.part.name(), "not seen", "?" if met else "")
                else:
                    yield line(key, entry.part.name(), f"{peak:.0f}", met)

    def _everything(self) -> Iterator[str]:
        yield from head(
            *("row", "side", "median", "least to most", "n", "of ours (95%)", "of the limit"),
            *("CPU", "faults", "notes"),
        )
        for result in self.results.values():
            yield line(f"**{result.key}**", f"**{result.title}**", *[""] * 8)
            for entry in result.entries:
                if not entry.samples:
                    yield line(result.key, entry.part.name(), entry.word, *[""] * 7)
                    continue
                found, samples = result.times(entry), entry.samples
                share = result.of_limit(entry, self.limits.rates)
                ratio = None if entry is result.ours else result.ratio(entry, self.plan.seed)
                yield line(
                    result.key,
                    entry.part.name(),
                    duration(stats.median(found)),
                    f"{duration(min(found))} to {duration(max(found))}",
                    str(len(found)),
                    told(ratio),
                    f"{share:.0%}" if share is not None else "",
                    duration(stats.median([s["cpu"] for s in samples]))
                    if "cpu" in samples[0]
                    else "",
                    f"{stats.median([s['minor'] for s in samples]):.0f}"
                    if "minor" in samples[0]
                    else "",
                    result.notes(entry),
                )

    def markdown(self) -> str:
        """The report."""
        about = [f"{key}: {value}" for key, value in self.machine.items()]
        sides = [f"{side} {version or 'not installed'}" for side, version in self.versions.items()]
        rates = self.limits.rates
        lines = [
            "# Benchmark",
            "",
            f"{self.plan.profile} run with seed {self.plan.seed}; {'; '.join(about)}.",
            f"Sides: {'; '.join(sides)}.",
            "",
            "Ratios of medians, of samples taken in turn, with their 95% interval; more than 1 is",
            "faster than the other. Loads verify checksums where the side has any (ours and",
            "TensorFlow do, unless a row says that nothing is read).",
            "",
            self.summary(),
            "",
            "## In short",
            "",
            self.short(),
            "",
            "![bars against the limit](latest.svg)",
            "",
            "## Limits of the machine",
            "",
            *head("limit", "what", "GB/s", "least"),
            *(
                line(name, TEXT[name], f"{rates[name] / 1e9:.1f}", f"{min(found) / 1e9:.1f}")
                for name, found in self.limits.all.items()
            ),
            "",
            "## Peak memory",
            "",
            *self._peaks(),
            "",
            "## Everything",
            "",
            *self._everything(),
            "",
        ]
        if self.plan.profile == "smoke":
            lines.insert(
                2, "Everything is tiny here, whatever titles say: the figures mean nothing.\n"
            )
        lines += [f"OTHER VALUES: {wrong}" for wrong in self.wrong]
        return "\n".join(lines)

    # ---- files

    def bars(self) -> list[picture.Group]:
        """For the picture: rows that have a limit."""
        found = []
        for result in self.results.values():
            chosen = [result.ours, result.of(TENSORFLOW, False), result.best_peer()]
            bars = []
            for entry in chosen:
                share = result.of_limit(entry, self.limits.rates) if entry else None
                if entry and share is not None:
                    bars.append(picture.Bar(entry.part.name(), share))
            if bars:
                found.append(picture.Group(f"{result.key}: {result.title}", bars))
        return found

    def samples(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "profile": self.plan.profile,
            "seed": self.plan.seed,
            "machine": self.machine,
            "versions": self.versions,
            "limits": self.limits.all,
            "wrong": self.wrong,
            "rows": {
                key: [
                    {
                        "side": entry.part.name(),
                        "tensors": entry.count,
                        "bytes": entry.size,
                        "share": entry.part.share,
                        "word": entry.word,
                        "first": entry.first,
                        "samples": entry.samples,
                    }
                    for entry in result.entries
                ]
                for key, result in self.results.items()
                if result.measure == "seconds"
            },
        }

    def write(self, folder: Path) -> None:
        """latest.md, latest.svg and latest.json."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "latest.md").write_text(self.markdown())
        (folder / "latest.svg").write_text(picture.svg(self.bars()))
        text = json.dumps(self.samples()).replace('{"side"', '\n{"side"')
        (folder / "latest.json").write_text(text + "\n")


def machine(folder: Path) -> dict[str, str]:
    """What the figures depend on, without a name or a path."""
    processor = platform.machine()
    with open("/proc/cpuinfo") as file:
        for text in file:
            if text.startswith("model name"):
                processor = text.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / (1 << 20)
    kind, longest = "?", -1
    with open("/proc/self/mountinfo") as file:
        for text in file:
            before, after = text.split(" - ", 1)
            point = before.split()[4]
            inside = Path(os.path.realpath(folder)).is_relative_to(point)
            if inside and len(point) >= longest:
                kind, longest = after.split()[0], len(point)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "CPU": processor,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release().split("-")[0],
        "file system": kind,
        "Python": platform.python_version(),
    }
