# SPDX-License-Identifier: Apache-2.0
"""What importing the package loads, and that its names are the same whatever is imported first."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt


def run(code: str) -> str:
    """What a fresh process prints that runs this."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(code: str) -> set[str]:
    """The modules that this loads in a fresh process."""
    return set(
        run(f"import sys; before = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)")
        .strip()
        .split()
    )


# ---- what is loaded ------------------------------------------------------------------------------


def test_importing_loads_next_to_nothing() -> None:
    loaded = loaded_by("import ckptfmt")
    assert {name for name in loaded if name.startswith("ckptfmt.")} == {
        "ckptfmt._base",
        "ckptfmt._base.doors",
    }
    heavy = "numpy ml_dtypes inspect logging hashlib socket dataclasses json threading tempfile"
    assert not loaded & {*heavy.split(), "concurrent.futures", "_cffi_backend"}


def test_reading_a_tensor_loads_what_reads(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(5)})
    prefix = str(tmp_path / "ck")
    loaded = loaded_by(
        f"import numpy, ckptfmt\nassert ckptfmt.open({prefix!r})['x'].read()[4] == 4"
    )
    ours = {name for name in loaded if name.startswith("ckptfmt.")}
    assert "ckptfmt.bundle.tensor" in ours
    parts = ("objects", "manager", "saving", "sharded", "tf", "cli")
    assert not [name for name in ours if name.split(".")[1] in parts]
    assert not ours & {f"ckptfmt.bundle.{name}" for name in ("writer", "merge", "graph")}
    assert {name for name in ours if name.split(".")[1] in ("naming", "recipe")} == {
        "ckptfmt.naming",
        "ckptfmt.naming.reader",
    }
    assert "ckptfmt._base.background" not in ours
    assert not loaded & {"hashlib", "logging", "socket", "tempfile", "zstandard"}
    assert not loaded & {"concurrent.futures", "compression.zstd", "shutil", "random", "selectors"}
    assert not loaded & {"json", "ml_dtypes", "threading", "ckptfmt.files.state_file"}


READS = """
ckptfmt.load(prefix)
ckptfmt.load_into(prefix, {"x": np.zeros(5000)}, cast=True, strict=False)
ckptfmt.restore_v2(prefix, ["x"], [""])
ckptfmt.verify(prefix, strict=True)
with ckptfmt.open(prefix) as reader:
    reader.read("x"), reader["x"].read(), reader["x"][3:5]
    dict(reader), list(reader.keys(glob="x*")), reader.table(), reader.level
"""


@pytest.mark.parametrize(
    ("contents", "needed"),
    [
        *(("plain", set()), ("partitioned", set())),
        # What only some checkpoints need is imported for these.
        *(("compressed", {"zstandard"}), ("bfloat16", {"ml_dtypes"})),
    ],
)
def test_a_read_imports_nothing(tmp_path: Path, contents: str, needed: set[str]) -> None:
    """What reads is imported when its name is looked up. A child that is forked while another
    thread imports a module waits forever if it needs that module, because no thread of the child
    finishes the import."""
    value = np.zeros(5000, ckptfmt._base.dtypes.numpy_dtype(14) if contents == "bfloat16" else "f8")
    compression: Any = "zstd" if contents == "compressed" else None
    with ckptfmt.Writer(tmp_path / "ck", compression=compression) as writer:
        writer.add("matrix", np.zeros((2, 3), np.int8))
        writer.add("text", ["a", "b"])
        if contents == "partitioned":
            for start in (0, 2500):
                writer.add_slice("x", value[:2500], (5000,), (start,))
        else:
            writer.add("x", value)
    loaded = run(f"""
import sys, numpy as np, ckptfmt
ckptfmt.load, ckptfmt.load_into, ckptfmt.restore_v2, ckptfmt.verify, ckptfmt.open
before, prefix = set(sys.modules), {str(tmp_path / "ck")!r}
{READS}
print(*{{name.partition(".")[0] for name in set(sys.modules) - before}})
""")
    assert set(loaded.split()) == needed


def test_narrow_dtypes_are_there_when_asked_for(tmp_path: Path) -> None:
    """In any way of asking first, though nothing has loaded what has them."""
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(5).astype(ckptfmt._base.dtypes.numpy_dtype(14))})
    prefix = str(tmp_path / "ck")
    asks = (
        f"ckptfmt.open({prefix!r})['x'].dtype.name",
        f"ckptfmt.open({prefix!r})['x'].read().dtype.name",
        f"ckptfmt.open({prefix!r})['x'][1:2].dtype.name",
        f"ckptfmt.load({prefix!r})['x'].dtype.name",
        "{code: dtype.name for dtype, code in dtypes.CODES.items()}[14]",
        "dtypes.numpy_dtype(dtypes.code_of('bfloat16')).name",
        "dtypes.numpy_dtype(14).name",
        "hasattr(dtypes, 'CODE')",
    )
    code = f"""
import os, numpy, ckptfmt
from ckptfmt._base import dtypes
for ask in {asks!r}:
    if os.fork() == 0:
        print(eval(ask), flush=True)
        os._exit(0)
    os.wait()
"""
    assert run(code).split() == ["bfloat16"] * 7 + ["False"]


@pytest.mark.parametrize(
    ("module", "package"),
    [
        *(("torch", "torch"), ("torch.dcp", "torch"), ("jax", "jax"), ("keras", "keras")),
        *(("mpi", "mpi4py"), ("hdf5", "h5py")),
    ],
)
def test_what_an_adapter_needs(module: str, package: str) -> None:
    """Without the package, one line says what to install."""
    code = f"""
import sys
sys.modules[{package!r}] = None
try:
    import ckptfmt.{module}
except ImportError as error:
    print(error)
"""
    printed = run(code)
    assert f"pip install {package}" in printed and "\n" not in printed


def test_a_sub_interpreter_is_refused() -> None:
    """Whether the main interpreter has imported the package or not."""
    for first in ("", "import ckptfmt; ckptfmt.save"):
        code = f"""
{first}
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
run = getattr(interpreters, "exec", None) or interpreters.run_string
run(interpreters.create(), '''
try:
    import ckptfmt.bundle.saving
except ImportError as error:
    print(error)
''')
"""
        assert run(code).startswith("ckptfmt works only in the main interpreter of a process")


# ---- names ---------------------------------------------------------------------------------------


DOORS = [
    *("editing", "errors", "hdf5", "huggingface", "jax", "keras", "mpi", "report", "safetensors"),
    *("sharded", "stores", "tf", "torch", "types"),
]
# The names of the doors that only lead elsewhere.
BEHIND = {
    "types": """
        TensorHandle StoredSlice Header SliceSpec DtypeInfo TreeNode SaveFuture Finding Report
        MatchReport Restored Rejected Conversion Edit Average Rescue
        InitializationOnlyStatus LoadStatus NameBasedSaverStatus
    """,
    "sharded": "save save_async restore Mesh Layout Coordinator SingleProcess",
    "editing": "edit average rescue",
    "tf": """
        save_v2 restore_v2 merge_v2_checkpoints sharded_filename SaveSpec SaveSliceInfo Saver
        Checkpoint CheckpointManager CheckpointReader load_checkpoint list_variables load_variable
        latest_checkpoint checkpoints_iterator checkpoint_exists get_checkpoint_state
        update_checkpoint_state get_checkpoint_mtimes remove_checkpoint CheckpointState
        CheckpointOptions SaveableObject DSaveSpec ShardableTensor ShardingCallback
        ShardByTaskPolicy ShardByDevicePolicy MaxShardSizePolicy BalancedPolicy validate_shards
        register_checkpoint_saver unregister_checkpoint_saver TrainingState ParallelVariable
        independent_buffers parse_spec
    """,
}
# And those of the package, by what a user wants to do.
NAMES = {
    "": """
        open Reader load load_into latest_checkpoint verify save save_async Writer merge convert
        save_tree save_tree_async load_tree load_tree_into Checkpoint CheckpointManager KeepBest
        Trackable save_v2 restore_v2 merge_v2_checkpoints sharded_filename SaveSpec SaveSliceInfo
        Saver CkptfmtError CkptfmtWarning CorruptError InvalidError StorageError
        CheckpointNotFoundError TensorNotFoundError UnsupportedError
    """,
    **BEHIND,
}
TOP = NAMES[""].split()


def test_every_name_is_there() -> None:
    assert len(TOP) == 34
    assert ckptfmt.__all__ == sorted(TOP), "`import *` loads no framework"
    needing = {"hdf5", "jax", "keras", "mpi", "torch"}  # other packages, which `help` would load
    assert dir(ckptfmt) == sorted([*TOP, *({*DOORS} - needing), "__version__"])
    assert isinstance(ckptfmt.__version__, str)
    for name in TOP:
        assert callable(getattr(ckptfmt, name))
    for door, names in BEHIND.items():
        module = importlib.import_module(f"ckptfmt.{door}")
        assert sorted(module.__all__) == sorted(names.split())
        assert {*names.split()} <= {*dir(module)}
        for name in names.split():
            assert callable(getattr(module, name))
            if name in TOP and door == "tf" and name != "latest_checkpoint":
                assert getattr(module, name) is getattr(ckptfmt, name)


def test_every_name_is_explained() -> None:
    """Each public name stands on a page or in the README."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = " ".join(NAMES.values()).split()
    missing = sorted({name for name in named if not re.search(rf"\b{name}\b", text)})
    assert missing == []


def test_help_names_what_is_there() -> None:
    """The text of the package, which begins its help and its reference, names each name and each
    module."""
    words = set(re.findall(r"\w+", ckptfmt.__doc__ or ""))
    assert {*TOP, *DOORS} <= words


def test_stubs_are_those_of_the_table() -> None:
    """Type checkers read stubs, which name what Python finds and nothing else."""
    tools = Path(__file__).parents[2] / "tools"
    code = (
        f"import sys; sys.path.insert(0, {str(tools)!r}); import stubs\n"
        "print([d for d in stubs.NAMES if stubs.path_of(d).read_text() != stubs.stub(d)])"
    )
    assert run(code) == "[]"


@pytest.mark.parametrize(
    "door", ["errors", "huggingface", "report", "safetensors", "stores", *BEHIND]
)
def test_doors_show_their_names_and_no_others(door: str) -> None:
    module = importlib.import_module(f"ckptfmt.{door}")
    assert dir(module) == sorted(module.__all__)


def test_classes_say_their_door() -> None:
    """`repr`, `help` and pickles name the module that users import a class from, so that files may
    move and pickles stay."""
    for door, names in NAMES.items():
        module = importlib.import_module(f"ckptfmt.{door}".rstrip("."))
        for name in names.split():
            value = getattr(module, name)
            if isinstance(value, type) and not issubclass(value, BaseException | Warning):
                wanted = "ckptfmt" if name in TOP else module.__name__
                assert f"{value.__module__}.{value.__qualname__}" == f"{wanted}.{name}"
    for name in importlib.import_module("ckptfmt.errors").__all__:
        assert getattr(ckptfmt.errors, name).__module__ == "ckptfmt.errors"


def test_what_is_not_there() -> None:
    nothing = "nothing"
    for name in (nothing, "_nothing", "__path_", "__wrapped__", "", "a.b", "errors.b", "a\0b"):
        assert not hasattr(ckptfmt, name)
    with pytest.raises(AttributeError, match=r"^module 'ckptfmt' has no attribute 'nothing'$"):
        getattr(ckptfmt, nothing)
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'ckptfmt'"):
        exec("from ckptfmt import nothing")


def test_modules_are_attributes() -> None:
    code = "import ckptfmt; print(ckptfmt.errors.__name__, ckptfmt.types.__name__)"
    assert run(code) == "ckptfmt.errors ckptfmt.types"
    code = "import ckptfmt; print(hasattr(ckptfmt, 'manager'), hasattr(ckptfmt, 'names'))"
    assert run(code) == "False False"


def test_names_pickle() -> None:
    for door, names in NAMES.items():
        module = importlib.import_module(f"ckptfmt.{door}".rstrip("."))
        for name in names.split():
            value = getattr(module, name)
            assert pickle.loads(pickle.dumps(value)) is value
    code = f"import pickle; print(pickle.loads({pickle.dumps(ckptfmt.Reader)!r}).__name__)"
    assert run(code) == "Reader"


def test_many_threads_ask_at_once() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import threading, ckptfmt\n"
        "begun = threading.Barrier(8)\n"
        "def ask(number):\n"
        "    begun.wait()\n"
        "    names = [name for name in ckptfmt.__all__ if name[0].isupper()]\n"
        "    names = names[number:] + names[:number]\n"
        "    return [(name, getattr(ckptfmt, name)) for name in names]\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(ask, range(8)))\n"
        "print(all(dict(one) == dict(found[0]) for one in found))"
    )
    assert run(code) == "True"
