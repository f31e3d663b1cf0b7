# SPDX-License-Identifier: Apache-2.0
"""What is measured: the rows of the table, who takes part in each, and what it must show.

A row is one verb on one kind of data in one state of the cache. Ours comes first among those who
take part; TensorFlow is what the targets are about. `share` is the part of the tensors that a side
gets whose time is known to grow with their number and would fill the run: its time is scaled up,
and the table says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

OURS, TENSORFLOW = "ckptfmt", "tensorflow"
BEFORE = "before"  # ours from another tree, that a change is measured against
PEERS = ("numpy", "safetensors", "torch", "dcp", "h5py", "tensorstore")

# Kinds of data: number of tensors and shape of each, by profile.
KINDS: dict[str, dict[str, tuple[int, tuple[int, ...]]]] = {
    "small": {"smoke": (200, (256,)), "quick": (100_000, (256,)), "full": (100_000, (256,))},
    "large": {"smoke": (4, (512, 256)), "quick": (4, (65536, 1024)), "full": (4, (65536, 1024))},
    "keys": {"smoke": (2000, (1,)), "quick": (1_000_000, (1,)), "full": (1_000_000, (1,))},
    "few": {"smoke": (20, (16, 16)), "quick": (20, (128, 128)), "full": (20, (128, 128))},
    "step": {"smoke": (10, (64, 64)), "quick": (100, (2621, 1024)), "full": (100, (2621, 1024))},
    "layers": {"smoke": (50, (64, 64)), "quick": (1000, (256, 1024)), "full": (1000, (256, 1024))},
}
MERGE = {"smoke": (20, 20), "quick": (1000, 1000), "full": (1000, 1000)}
GETS = {"smoke": 50, "quick": 2000, "full": 2000}


@dataclass(frozen=True)
class Part:
    """Who takes part, and how."""

    side: str
    tuned: bool = False
    label: str = ""  # of another way of the same side
    verb: str = ""  # where it is not that of the row
    arguments: dict[str, Any] = field(default_factory=dict)
    share: float = 1.0
    scaled: bool = True  # whether the time is scaled up by the share

    def name(self) -> str:
        words = [
            self.side,
            *([self.label] if self.label else []),
            *(["tuned"] if self.tuned else []),
        ]
        return ", ".join(words)


@dataclass(frozen=True)
class Row:
    """One line of the report.

    `files` says what the verb finds: "new" an empty folder that it saves into, "own" what the side
    saved itself, "keys" the same but TensorFlow what we saved, "shards" the inputs of a merge.
    With `new_process` every sample is the first call of a process that has imported its library.
    `limit` is the one of `limits.TEXT` that applies. `also` are rows made of other numbers of the
    same samples. `extra` ones are for a full run, and for who names them.
    """

    key: str
    title: str
    verb: str
    kind: str
    parts: tuple[Part, ...]
    files: str = "own"
    arguments: dict[str, Any] = field(default_factory=dict)
    cold: bool = False
    new_process: bool = False
    limit: str = ""
    also: dict[str, tuple[str, str]] = field(default_factory=dict)
    extra: bool = False

    @property
    def case(self) -> str:
        return self.key.split("-")[0]


@dataclass(frozen=True)
class Target:
    """How many times as fast as TensorFlow a row must be, and what would be a wonder."""

    key: str
    must: float
    moonshot: float
    note: str = ""


TARGETS = (
    Target("B1-P", 8, 12),
    Target("B2-P", 3, 6, "and not slower than np.save"),
    Target("B3-D", 3, 9),
    Target("B4-W", 12, 38),
    Target("B5-first", 1.5, 1.9, "memory is new for both"),
    Target("B5-fresh", 1.5, 1.9, "TensorFlow uses its freed memory again"),
    Target("B5-out", 1.8, 2.6),
    Target("B5-map", 3.5, 5.5),
    Target("B6-C", 1.25, 1.4),
    Target("B7-rows", 300, 1500),
    Target("B8-gets", 30, 150),
    Target("B9-list", 20, 40),
    Target("B9-one", 300, 1500),
    Target("B10-blocked", 5, 18),
    Target("B10-interleaved", 5, 18),
    Target("B12-blocked", 10, 20, "than TensorFlow's save that waits"),
    Target("B14-first", 20, 40),
)
# MiB above the arrays, while saving and restoring.
PEAK_MIB = 64
PEAK_ROWS = ("B1-P", "B2-P", "B3-D", "B4-W", "B5-first", "B6-C")


def parts(
    profile: str,
    shares: dict[str, float] | None = None,
    tuned: tuple[str, ...] = ("tensorflow",),
    scaled: bool = True,
) -> tuple[Part, ...]:
    """All sides; those that have advice to follow, or in a full run all, a second time with it."""
    shares = {} if profile == "smoke" else shares or {}
    found = []
    for side in (OURS, TENSORFLOW, *PEERS):
        share = shares.get(side, 1.0)
        label = "" if scaled or share == 1 else f"{share:.0%} of them"
        found.append(Part(side, share=share, label=label, scaled=scaled))
        if side in tuned or (profile == "full" and side != OURS):
            found.append(Part(side, tuned=True, share=share))
    return tuple(found)


def only(row: Row, sides: set[str]) -> Row:
    """The row with some of its sides; those that are tuned if `sides` has "tuned"."""
    kept = [part for part in row.parts if part.side in sides]
    return replace(row, parts=tuple(p for p in kept if "tuned" in sides or not p.tuned))


def with_before(row: Row) -> Row:
    """The row with ours of another tree beside ours."""
    extra = tuple(replace(part, side=BEFORE) for part in row.parts if part.side == OURS)
    return replace(row, parts=(row.parts[0], *extra, *row.parts[1:]))


def rows(profile: str) -> list[Row]:
    """All rows, those with the same data together."""
    scaled = profile == "quick"
    small = {"dcp": 0.02, "tensorstore": 0.02, "h5py": 0.04, "torch": 0.1, "numpy": 0.15}
    many = {"safetensors": 0.2, "h5py": 0.02}
    if not scaled:
        small, many = {"dcp": 0.2, "tensorstore": 0.05}, {"h5py": 0.1}
    # What loads in some way of its own, and TensorFlow in the only one that it has.
    only = Part(TENSORFLOW, label="loads all into tensors of its own", verb="load")
    tuned_only = replace(only, tuned=True)
    count, shape = KINDS["large"][profile]
    name = f"layer_00000.variable_{count - 2:02d}"
    start, middle = shape[0] // 3, shape[1] // 2
    columns = middle + shape[1] // 16
    box = {
        "rows": [[start, start + 8, 1], [0, shape[1], 1]],
        "columns": [[0, shape[0], 1], [middle, columns, 1]],
        "strided": [[0, shape[0], 64], [0, shape[1], 1]],
    }
    inputs, each = MERGE[profile]
    gets = {"number": GETS[profile]}
    everyone, large_tuned = parts(profile), ("tensorflow", "safetensors", "torch", "dcp")
    return [
        Row(
            "B1-P",
            "save 100,000 x 1 KiB, page cache",
            "save",
            "small",
            parts(profile, small, ()),
            "new",
            {"durable": False},
            limit="write",
        ),
        Row(
            "B1-D",
            "save 100,000 x 1 KiB, durable",
            "save",
            "small",
            parts(profile, small, ()),
            "new",
            {"durable": True},
            limit="direct write",
            extra=True,
        ),
        Row(
            "B4-W",
            "restore 100,000 x 1 KiB, new arrays",
            "load",
            "small",
            parts(profile, small, ()),
            limit="pread fresh",
        ),
        Row(
            "B8-gets",
            "2,000 random tensors of 100,000, open reader",
            "gets",
            "small",
            parts(profile, small, scaled=False),
            arguments={"together": False, **gets},
        ),
        Row(
            "B8-together",
            "the same 2,000 in one call, open included",
            "gets",
            "small",
            parts(profile, small, scaled=False),
            arguments={"together": True, **gets},
            extra=True,
        ),
        Row(
            "B2-P",
            "save 4 x 256 MiB, page cache",
            "save",
            "large",
            parts(profile, tuned=("tensorflow", "dcp")),
            "new",
            {"durable": False},
            limit="write",
        ),
        Row(
            "B3-D",
            "save 4 x 256 MiB, durable",
            "save",
            "large",
            parts(profile, tuned=("tensorflow", "dcp")),
            "new",
            {"durable": True},
            limit="direct write",
        ),
        Row(
            "B5-first",
            "restore 4 x 256 MiB, the first load of a process, fresh memory",
            "load",
            "large",
            tuple(map(Part, (OURS, TENSORFLOW, "numpy", "safetensors", "torch"))),
            new_process=True,
            limit="pread fresh",
        ),
        Row(
            "B5-fresh",
            "restore 4 x 256 MiB, new arrays in fresh memory",
            "load",
            "large",
            parts(profile, tuned=large_tuned),
            limit="pread fresh",
        ),
        Row(
            "B5-out",
            "restore 4 x 256 MiB into the caller's memory, used before",
            "load_out",
            "large",
            (Part(OURS), only, tuned_only, Part("dcp"), Part("h5py")),
            limit="pread reused",
        ),
        Row(
            "B5-map",
            "map 4 x 256 MiB, verified",
            "load_map",
            "large",
            (Part(OURS), only, tuned_only),
            limit="crc",
        ),
        Row(
            "B5-lazy",
            "map 4 x 256 MiB, nothing read",
            "load_lazy",
            "large",
            (Part(OURS), only, Part("numpy"), Part("safetensors"), Part("torch")),
        ),
        Row(
            "B5-cast",
            "restore 4 x 256 MiB of float32 as bfloat16",
            "load_cast",
            "large",
            (
                Part(OURS),
                Part(OURS, label="load, then astype", verb="load_astype"),
                *(
                    Part(side, label="load, then astype", verb="load_astype")
                    for side in ("numpy", "safetensors")
                ),
            ),
        ),
        Row(
            "B6-C",
            "restore 4 x 256 MiB, cold, new arrays",
            "load",
            "large",
            parts(profile, tuned=("tensorflow",)),
            cold=True,
            limit="direct read",
        ),
        Row(
            "B6-out",
            "restore 4 x 256 MiB, cold, the caller's memory",
            "load_out",
            "large",
            (Part(OURS), only, Part("dcp"), Part("h5py")),
            cold=True,
            limit="direct read",
            extra=True,
        ),
        *(
            Row(
                f"B7-{which}",
                f"{text} of a 256 MiB tensor, open included",
                "box",
                "large",
                everyone,
                arguments={"name": name, "box": box[which], "opened": False},
                extra=which != "rows",
            )
            for which, text in (
                ("rows", "8 rows"),
                ("columns", "64 columns"),
                ("strided", "every 64th row"),
            )
        ),
        Row(
            "B7-opened",
            "8 rows of a 256 MiB tensor, already open",
            "box",
            "large",
            (
                Part(OURS),
                Part(TENSORFLOW, label="opens it every time", arguments={"opened": False}),
                *map(Part, PEERS),
            ),
            arguments={"name": name, "box": box["rows"], "opened": True},
            extra=True,
        ),
        Row(
            "B9-list",
            "open and list 1,000,000 names",
            "list_names",
            "keys",
            parts(profile, many),
            "keys",
        ),
        Row(
            "B9-table",
            "open, list names, shapes and dtypes",
            "list_shapes",
            "keys",
            (Part(OURS), Part(TENSORFLOW)),
            "keys",
            extra=True,
        ),
        Row(
            "B9-one",
            "open 1,000,000 names and read one",
            "one",
            "keys",
            parts(profile, many, scaled=False),
            "keys",
        ),
        Row(
            "B9-prefix",
            "open and list the 100 names of 1,000,000 with a prefix",
            "list_prefix",
            "keys",
            parts(profile, many),
            "keys",
            extra=True,
        ),
        *(
            Row(
                f"B10-{order}",
                f"merge {inputs:,} shards x {each:,} keys, {order} names",
                "merge",
                "few",
                (
                    Part(OURS),
                    Part(TENSORFLOW),
                    Part(OURS, label="durable", arguments={"durable": True}),
                ),
                "shards",
                {"inputs": inputs, "durable": False},
            )
            for order in ("blocked", "interleaved")
        ),
        Row(
            "B14-first",
            "import and first tensor in a new process",
            "first",
            "few",
            tuple(map(Part, (OURS, TENSORFLOW, *(side for side in PEERS if side != "dcp")))),
        ),
        Row(
            "B12-blocked",
            "time blocked by an async save of 1 GiB",
            "stall",
            "step",
            (
                Part(OURS, arguments={"durable": True}),
                Part(TENSORFLOW, label="waits", arguments={"mode": "sync"}),
                Part(TENSORFLOW, label="async"),
                Part(OURS, label="async, not synced"),
                Part(OURS, label="waits", arguments={"mode": "sync"}),
                Part("dcp", label="async"),
            ),
            "new",
            {"mode": "async", "durable": False},
            limit="memcpy",
            also={
                "B12-lost": ("lost", "time that the training loop lost by it"),
                "B12-in-place": ("in_place", "time until it is in place"),
            },
        ),
        *(
            Row(
                f"B13-{key}",
                f"save 1 GiB of which 1% has changed, {text}",
                "save_changed",
                "layers",
                (
                    Part(OURS, label="upon the base", arguments={"base": "base"}),
                    Part(TENSORFLOW, label="all"),
                    Part(OURS, label="all"),
                ),
                "new",
                {"durable": durable, "changed": 100},
                cold=cold,
                extra=key != "P",
            )
            for key, text, durable, cold in (
                ("P", "page cache", False, False),
                ("D", "durable", True, False),
                ("DC", "durable, base not cached", True, True),
            )
        ),
    ]
