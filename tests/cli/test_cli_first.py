# SPDX-License-Identifier: Apache-2.0
"""What people type before they have read anything: it works, or the message has the command that
does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from support.files import contents

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
    "show model layer/*": "layer/a  float64 [3]\n[0. 1. 2.]\n\nlayer/b  ",
    "show model.npz layer/*": "layer/a  float64 [3]\n[0. 1. 2.]\n\nlayer/b  ",
    "show model /^l/[0]": "layer/a[0]  float64 [] of [3]\n0.\n\nlayer/b[0]  ",
    "show --json model st?p": '"name": "step"',
    "show model --stats layer/*": "\nlayer/b  float64 [3]\n",
    "report model": "wrote model.html\n",
    "report run -q": "",
}
# The words, and a text of the message; the command that it has to try then works.
REFUSED = {
    "": "ckptfmt help COMMAND",
    "ls model": "; try: ckptfmt inspect model",
    "ls -l model": "; try: ckptfmt inspect model",
    "info model": "; try: ckptfmt inspect model",
    "summary run": "; try: ckptfmt inspect run",
    "print 'a b'": "; try: ckptfmt inspect 'a b'",
    "cat model step": "; try: ckptfmt show model step",
    "dump model": "; try: ckptfmt show model",
    "check model": "; try: ckptfmt verify model",
    "fsck model.index": "; try: ckptfmt verify model.index",
    "compare model model": "; try: ckptfmt diff model model",
    "export model new": "; try: ckptfmt convert model new",
    "copy model new": "; try: ckptfmt cp model new",
    "rename model new": "; try: ckptfmt mv model new",
    "delete model": "; try: ckptfmt rm model",
    "sha256sum model": "; try: ckptfmt digest model",
    "version": "; try: ckptfmt --version",
    "inpsect --slices model": "; try: ckptfmt inspect --slices model",
    "Verify": "; try: ckptfmt help verify",
    "help ls": "; try: ckptfmt help inspect",
    "look model": "; try: ckptfmt help",
    "report --full --before model page": (
        "; try: ckptfmt report page --before model --full -o page.html"
    ),
    "inspect --filter ayer model": "'layer/a'; try: --filter '*ayer*'",
    "inspect --filter ? model": "--filter: in model: '?' matches none of the 3 tensors\n",
    "diff --filter nothing model model": "'nothing' matches no tensor",
    # what is not there
    "nowhere/model": "ckptfmt: in nowhere/model: ",
    "model.ckpt-2000": "ckptfmt: in model.ckpt-2000: ",
    "show model nothing*": "tensor 'nothing*': not found",
    "latest empty": "no complete checkpoint",
    "latest nowhere": "no such directory",
    "prune --keep 1 .": "`checkpoint` file",
    "prune --keep 1 nowhere": "in nowhere: ",
    # what cannot be together
    "show model --npy x.npy": "give the NAME of a tensor",
    "show model --npy x.npy layer/*": "matches several tensors",
    "show model.npz --raw layer/*": "matches several tensors",
    "inspect --tree --sort shard model": "use name or size",
    "report model --full --seconds=1": "usage: ckptfmt report",
    # wrong usage
    "-1 inspect model": "usage: ckptfmt",
    "--frobnicate inspect model": "usage: ckptfmt",
    "model show": "usage: ckptfmt inspect",
    "inspect": "usage: ckptfmt inspect",
    "inspect --frobnicate model": "usage: ckptfmt inspect",
    "inspect --sort color model": "usage: ckptfmt inspect",
    "inspect --limit -1 model": "usage: ckptfmt inspect",
    "inspect --limit many model": "usage: ckptfmt inspect",
    "inspect --filter /(/ model": "usage: ckptfmt inspect",
    "verify": "usage: ckptfmt verify",
    "verify --max-findings few model": "usage: ckptfmt verify",
    "show": "usage: ckptfmt show",
    "diff model": "usage: ckptfmt diff",
    "diff --rtol -1 model model": "usage: ckptfmt diff",
    "diff --atol nan model model": "usage: ckptfmt diff",
    "merge model": "usage: ckptfmt merge",
    "merge --durability some model new": "usage: ckptfmt merge",
    "completion tcsh": "usage: ckptfmt completion",
    # an error starts with its option
    "convert model new.npz --max-shard-size 5": "ckptfmt: --max-shard-size ",
    "convert model new --max-shard-size many": "ckptfmt: --max-shard-size: ",
    "convert model new --cast int8": "ckptfmt: --cast ",
    "convert model new --level v2 --compression zstd": "ckptfmt: --compression: ",
    "edit model new --cast none": "ckptfmt: --cast: ",
    "edit model new --drop /(/": "ckptfmt: --drop: ",
    "merge model new/": "ckptfmt: DESTINATION: ",
    "average model new": "ckptfmt: SOURCE: ",
    "prune --keep 0 .": "ckptfmt: --keep: ",
    "report model -o model.index": "ckptfmt: --output: ",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = {"layer/a": np.arange(3.0), "layer/b": np.ones(3), "step": np.int64(7)}
    np.savez("model.npz", **tensors)  # type: ignore[arg-type]
    for prefix in ("model", "page", "a b"):
        ckptfmt.save(prefix, tensors)
    ckptfmt.save("list", {"x": np.ones(2)})
    ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=np.ones(2)), "run", 1).save()
    Path("empty").mkdir()
    Path("page.html").write_text("<!DOCTYPE html>", encoding="utf-8")


@pytest.mark.parametrize("words", WORK)
def test_what_works(words: str, command: Command) -> None:
    ran = command(*words.split())
    assert (ran.status, ran.err) == (0, "")
    assert WORK[words] in ran.out


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words: str, command: Command, tmp_path: Path) -> None:
    before = contents(tmp_path)
    ran = command(*shlex.split(words))
    assert (ran.status, ran.out) == (2, "")
    assert REFUSED[words] in ran.err and "Traceback" not in ran.err
    assert contents(tmp_path) == before
    if found := re.search("; try: ckptfmt (.*)$", ran.err, re.M):
        assert found[0] == REFUSED[words]
        assert command(*shlex.split(found[1])).status == 0
