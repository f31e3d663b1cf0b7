# SPDX-License-Identifier: Apache-2.0
"""What people type before they have read anything: it works, or the message has the command that
does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from cli.commands import Command

# The words, and a text that is printed.
WORK = {
    "model": "3 tensors",
    "model.index": "3 tensors",
    "run/ckpt-1": "elements: weights 2\n",
    "run --tree": "elements: weights 2\n",
    "--json model": '"problems": []',
    "list": "1 tensor,",  # a checkpoint of this name
    "-V": f"ckptfmt {ckptfmt.__version__}\n",
    "help": "\n    inspect ",
    "help show": "usage: ckptfmt show ",
    "show model": "layer/a\nlayer/b\nstep\n",
    "show model.npz": "layer/a\nlayer/b\nstep\n",
    "show run": "save_counter\nx\n",
    "show model layer/*": "layer/a  double [3]\n[0. 1. 2.]\n\nlayer/b  ",
    "show model.npz layer/*": "layer/a  double [3]\n[0. 1. 2.]\n\nlayer/b  ",
    "show model /^l/[0]": "layer/a[0]  double [] of [3]\n0.\n\nlayer/b[0]  ",
    "show --json model st?p": '"name": "step"',
    "show model --stats layer/*": "\nlayer/b  double [3]\n",
    "report model": "wrote model.html\n",
    "report run -q": "",
}
# The words, and the command of the message.
REFUSED = {
    "": "help",
    "ls model": "inspect model",
    "ls -l model": "inspect model",
    "info model": "inspect model",
    "summary run": "inspect run",
    "cat model step": "show model step",
    "dump model": "show model",
    "print 'no such' model": "inspect 'no such' model",
    "check model": "verify model",
    "fsck model.index": "verify model.index",
    "compare model model": "diff model model",
    "export model new": "convert model new",
    "copy model new": "cp model new",
    "rename model new": "mv model new",
    "delete model": "rm model",
    "sha256sum model": "digest model",
    "version": "--version",
    "inpsect --slices model": "inspect --slices model",
    "Verify": "help verify",
    "help ls": "help inspect",
    "look model": "help",
    "report page": "report page -o page.html",
    "nowhere/model": None,
    "model.ckpt-2000": None,
    "model show": None,
    "show model nothing*": None,
    "show model --npy x.npy": None,
    "show model --npy x.npy layer/*": None,
    "show model.npz --raw layer/*": None,
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = {"layer/a": np.arange(3.0), "layer/b": np.ones(3), "step": np.int64(7)}
    np.savez("model.npz", **tensors)  # type: ignore[arg-type]
    for prefix in ("model", "page"):
        ckptfmt.save(prefix, tensors)
    ckptfmt.save("list", {"x": np.ones(2)})
    ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=np.ones(2)), "run", 1).save()
    Path("page.html").write_text("<!DOCTYPE html>", encoding="utf-8")


@pytest.mark.parametrize("words", WORK)
def test_what_works(words: str, command: Command) -> None:
    ran = command(*words.split())
    assert (ran.status, ran.err) == (0, "")
    assert WORK[words] in ran.out


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words: str, command: Command) -> None:
    ran = command(*shlex.split(words))
    assert (ran.status, ran.out) == (2, "")
    found = re.search("; try: ckptfmt (.*)$", ran.err, re.M)
    suggested = found[1] if found else None
    if words == "":
        suggested = "help"
        assert "ckptfmt help COMMAND" in ran.err
    assert suggested == REFUSED[words]
    if suggested is not None and "no such" not in words:
        assert command(*shlex.split(suggested)).status == 0
