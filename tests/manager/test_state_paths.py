# SPDX-License-Identifier: Apache-2.0
"""What the paths of a state file name: one answer for everybody that reads it."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from support.dict_client import mount

import ckptfmt
from ckptfmt import tf
from ckptfmt.files.locate import locate
from ckptfmt.files.state_file import CheckpointState, format_state
from ckptfmt.manager.pruning import prune

# Checkpoints below the directory of the test; the number is their content.
HERE = {"run/ckpt-1": 1, "run/ckpt-2": 2, "run/model-7": 3, "run/s/ckpt-1": 4, "run/a\\b": 5}
ELSEWHERE = {"out/ckpt-1": 11, "out/only": 12, "runs/ckpt-1": 13, "ckpt-1": 14}
FOUND = "ckpt-2"  # without a state file: the youngest index

# The newest path of a state file, others, and the checkpoint that it names.
PATHS: list[tuple[str, list[str], str | None]] = [
    ("ckpt-1", [], "ckpt-1"),
    ("./ckpt-1", [], "ckpt-1"),
    ("s/../ckpt-1", [], "ckpt-1"),
    ("../run/ckpt-1", [], "ckpt-1"),
    ("{t}/run/ckpt-1", [], "ckpt-1"),
    ("{t}/link/ckpt-1", [], "ckpt-1"),
    ("s/ckpt-1", [], "s/ckpt-1"),
    ("{t}/link/s/ckpt-1", [], "s/ckpt-1"),
    ("a\\b", [], "a\\b"),
    # Elsewhere, though a checkpoint is there.
    ("{t}/out/ckpt-1", [], "ckpt-1"),
    ("../out/ckpt-1", [], "ckpt-1"),
    ("to/ckpt-1", [], "ckpt-1"),
    ("../ckpt-1", [], "ckpt-1"),
    ("{t}/runs/ckpt-1", [], "ckpt-1"),
    ("/none/model-7", ["/none/model-6"], "model-7"),
    ("C:\\Users\\me\\run\\model-7", [], "model-7"),
    ("C:/Users/me/run/model-7", [], "model-7"),
    (".\\run\\model-7", [], "model-7"),
    ("{t}/out/only", [], None),
    ("{t}/out/ckpt-1", ["/none/ckpt-1"], None),
    ("../only", [], None),
    # URLs.
    ("file://{t}/out/ckpt-1", [], "ckpt-1"),
    ("file://{t}/out/only", [], None),
    ("{http}/ckpt-1", [], "ckpt-1"),
    ("{http}/only", [], None),
    ("memory://out/only", [], None),
    ("s3://none/run/only", [], None),
    # Out of the directory, and by a detour.
    ("../out/only", [], None),
    ("s/../../out/only", [], None),
    ("{t}/run/../out/only", [], None),
    ("{t}/run/s/../../out/only", [], None),
    # No names.
    (".", [], None),
    ("..", [], None),
    ("s/", [], None),
    ("/", [], None),
    ("a\0b", [], None),
    ("../\0", [], None),
]


@pytest.fixture
def http(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of what is elsewhere, that nobody may ask."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "out"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
    assert asked == []


def save(path: Path, value: int, at: int = 0) -> None:
    path.parent.mkdir(exist_ok=True)
    ckptfmt.save(path, {"x": np.array(value)}, level="v2", durability="rename")
    os.utime(f"{path}.index", (at, at))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for at, (name, value) in enumerate((HERE | ELSEWHERE).items(), 1000):
        save(tmp_path / name, value, at if name != f"run/{FOUND}" else 9999)
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "run/to").symlink_to("../out")
    return tmp_path / "run"


def answers(run: Path | str) -> dict[str, str | type[Exception]]:
    """The checkpoint that each way to open a directory takes, relative to it, or its error."""
    checkpoint = ckptfmt.Checkpoint()

    def manager() -> str | None:
        return ckptfmt.CheckpointManager(checkpoint, run, 2).restore_or_initialize()

    ways: dict[str, Callable[[], str | None]] = {
        "latest_checkpoint": lambda: ckptfmt.latest_checkpoint(run),
        "manager": manager,
        "restore_latest": lambda: (
            ckptfmt.CheckpointManager(checkpoint, run, 2).restore_latest().path
        ),
        "locate": lambda: locate(str(run)),
        "load": lambda: prefix_with(run, int(ckptfmt.load(run)["x"])),
        "tf": lambda: prefix_with(run, int(tf.load_checkpoint(run).get_tensor("x"))),
        "verify": lambda: ckptfmt.verify(run).prefix,
    }
    found: dict[str, str | type[Exception]] = {}
    for name, way in ways.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            try:
                path = way()
                assert path is not None
                found[name] = os.path.relpath(path, run)
            except ckptfmt.CkptfmtError as error:
                found[name] = type(error)
    return found


def prefix_with(run: Path | str, value: int) -> str:
    """The checkpoint of this content."""
    (name,) = (name for name, content in (HERE | ELSEWHERE).items() if content == value)
    return os.path.join(os.path.dirname(run), name)


SEARCH = ("latest_checkpoint", "manager", "restore_latest")
OPEN = ("locate", "load", "tf", "verify")


@pytest.mark.parametrize(("named", "others", "expected"), PATHS)
def test_one_answer(
    run: Path,
    http: str,
    named: str,
    others: list[str],
    expected: str | None,
) -> None:
    named = named.format(t=run.parent, http=http)
    (run / "checkpoint").write_bytes(format_state(CheckpointState(named, (*others, named))))
    if expected is not None:
        assert answers(run) == dict.fromkeys((*SEARCH, *OPEN), expected)
    else:
        assert answers(run) == {
            **dict.fromkeys(SEARCH, FOUND),
            **dict.fromkeys(OPEN, ckptfmt.InvalidError),
        }


@pytest.mark.parametrize(("named", "others"), [row[:2] for row in PATHS if row[2] is None])
def test_a_store_is_not_left_either(
    run: Path, http: str, monkeypatch: pytest.MonkeyPatch, named: str, others: list[str]
) -> None:
    client, out = mount(monkeypatch), run.parent
    for path in (path for path in out.rglob("*") if path.is_file() and "\\" not in path.name):
        client.set(path.relative_to(out).as_posix(), path.read_bytes())
    path = named.format(t="dict://bucket", http=http)
    client.set("run/checkpoint", format_state(CheckpointState(path, (*others, path))))
    found = answers("dict://bucket/run")
    assert found == {
        **dict.fromkeys(SEARCH, FOUND),
        **dict.fromkeys(OPEN, ckptfmt.InvalidError),
    }
    # "run" could be a prefix too.
    assert {key.partition("/")[0] for _, key in client.requests} == {"run", "run.index"}


@pytest.mark.parametrize("directory", [".", "", "../run", "../link", "{t}/link/"])
def test_by_other_names_of_the_directory(
    run: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    directory = directory.format(t=run.parent)
    (run / "checkpoint").write_text(f'model_checkpoint_path: "{run}/ckpt-1"')
    monkeypatch.chdir(run)
    assert ckptfmt.latest_checkpoint(directory) == os.path.join(directory, "ckpt-1")
    assert locate(directory or ".") == os.path.join(directory or ".", "ckpt-1")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_text_of_other_editors(run: Path, mark: bytes, end: bytes) -> None:
    line = b'%s: "ckpt-1"' + end
    text = mark + line % b"model_checkpoint_path" + line % b"all_model_checkpoint_paths"
    (run / "checkpoint").write_bytes(text)
    assert answers(run) == dict.fromkeys((*SEARCH, *OPEN), "ckpt-1")


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff", b'model_checkpoint_path: "ck'])
def test_a_damaged_state_file(run: Path, content: bytes) -> None:
    (run / "checkpoint").write_bytes(content)
    assert answers(run) == {
        **dict.fromkeys(SEARCH, FOUND),
        **dict.fromkeys(OPEN, ckptfmt.CorruptError),
    }


# Paths of a state file, and which of the checkpoints may be removed.
OURS: list[tuple[list[str], list[str]]] = [
    (["ckpt-1", "./ckpt-2", "{t}/link/model-7"], ["ckpt-1", "ckpt-2", "model-7"]),
    (["/old/run/ckpt-1", "/old/run/ckpt-2", "/old/run/model-7"], ["ckpt-1", "ckpt-2", "model-7"]),
    (["C:\\run\\ckpt-1", "C:\\run\\ckpt-2"], ["ckpt-1", "ckpt-2"]),
    (["{t}/out/ckpt-1", "/old/ckpt-2", "model-7"], ["model-7"]),
    (["{t}/out/ckpt-1", "/old/ckpt-1", "model-7"], ["model-7"]),
    (["s/ckpt-1", "ckpt-1", "model-7"], ["ckpt-1", "model-7"]),
    (["file://{t}/out/ckpt-1", "ckpt-2"], ["ckpt-2"]),
]


@pytest.mark.parametrize("timeless", [False, True])
@pytest.mark.parametrize("case", range(len(OURS)))
def test_what_may_be_removed(run: Path, case: int, timeless: bool) -> None:
    """By a manager, and by `prune`, which leaves the newest."""
    given, ours = OURS[case]
    paths = tuple(path.format(t=run.parent) for path in given)
    times = () if timeless else tuple(map(float, range(1, len(paths) + 1)))
    (run / "checkpoint").write_bytes(format_state(CheckpointState(paths[-1], paths, times, 0.5)))
    if not timeless:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(), run, 9)
        assert list(map(os.path.basename, manager.checkpoints)) == ours
    before = set(run.parent.rglob("*"))
    done = prune(str(run), 1, by_order=timeless)
    assert list(map(os.path.basename, done.removed)) == ours[:-1]
    gone = before - set(run.parent.rglob("*"))
    assert {path.parent / path.name.partition(".")[0] for path in gone} == {
        run / name for name in ours[:-1]
    }
