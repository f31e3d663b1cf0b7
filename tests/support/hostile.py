# SPDX-License-Identifier: Apache-2.0
"""Everything that Python opens from outside, and everything hostile that may be there instead."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import time
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ckptfmt
import ckptfmt.report
from ckptfmt.errors import CkptfmtError, CorruptError

from . import index as ix
from .forking import in_child
from .process import memory_limit
from .strategies import LONG

# Limits: bytes of address space, beyond which an allocation fails; seconds of processor time, and
# of wall time, after which the process is killed.
ADDRESS_SPACE, SECONDS, HANGS = 2 << 30, 20, 300
# Bytes that opening may take beyond the file, and how often the file itself.
PEAK_FLOOR, PEAK_FACTOR = 64 << 20, 8


class Opener(NamedTuple):
    """What is opened.

    Attributes:
        make: makes a sound one in a directory and returns the file that is attacked.
        use: opens it; called with the directory.
        bombs: named contents that are small and claim or become much.
    """

    make: Callable[[Path], Path]
    use: Callable[[Path], Any]
    bombs: Callable[[], dict[str, bytes]] = dict


def _saved(directory: Path) -> Path:
    ckptfmt.save(directory / "m", {"x": np.arange(300.0), "s": np.array([b"ab"], object)})
    return directory / "m"


def _load(path: str) -> Any:
    return ckptfmt.load(path)


# ---- files of other formats ----------------------------------------------------------------------


def zip_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def _npz(directory: Path) -> Path:
    np.savez(directory / "a.npz", x=np.arange(300.0), y=np.ones((2, 3), np.int16))
    return directory / "a.npz"


def npy(shape: str, size: int = 8, dtype: str = "<f4") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(size)


def _npz_bombs() -> dict[str, bytes]:
    shapes = {
        "negative": "(-1, -2)",
        "empty and large": f"(0, {2**62})",
        "beyond 64 bits": f"(0, {2**70})",
        "rank 70": "(" + "1," * 70 + ")",
        "rank 300": "(" + "1," * 300 + ")",
        "bool": "(True, 2)",
        "signs": "(" + "-" * 8000 + "1,)",
        "parentheses": "(" * 4000,
        "digits": "(" + "9" * 9000 + ",)",
        "large": f"({2**40},)",
    }
    found = {name: zip_of(**{"x.npy": npy(shape)}) for name, shape in shapes.items()}
    found["deflated zeros"] = zip_of(**{"x.npy": npy(f"({1 << 21},)", 4 << 21)})
    found["many members"] = zip_of(**{f"{i}.npy": b"" for i in range(3000)})
    return found


def _convert(name: str) -> Callable[[Path], Any]:
    def use(directory: Path) -> Any:
        return ckptfmt.convert(directory / name, directory / "out", durability="none")

    return use


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _safetensors(directory: Path) -> Path:
    about = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    path = directory / "a.safetensors"
    path.write_bytes(safetensors(json.dumps({"x": about}).encode(), bytes(24)))
    return path


def _safetensors_bombs() -> dict[str, bytes]:
    def shaped(shape: Any) -> bytes:
        about = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        return safetensors(json.dumps({"x": about}).encode())

    return {
        "claims 2^60": struct.pack("<Q", 1 << 60),
        "deep": safetensors(b"[" * 100_000),
        "digits": safetensors(b'{"x":' + b"9" * 100_000 + b"}"),
        "infinity": safetensors(b'{"x":1e999}'),
        "empty and large": shaped([2**62, 4, 0]),
        "beyond 64 bits": shaped([2**70, 0]),
        "rank 300": shaped([1] * 300),
        "float": shaped([1.5]),
        "text": shaped("2"),
        "empty lists": safetensors(b'{"x":[' + b"[]," * 3_000_000 + b"0]}"),
        "empty dicts": safetensors(b'{"x":[' + b"{}," * 3_000_000 + b"0]}"),
        "dtype": safetensors(b'{"x":{"dtype":[],"shape":[],"data_offsets":[0,0]}}'),
        "lists": safetensors(b'{"x":' + b"[" * 500 + b"]" * 500 + b"}"),
    }


def _safetensors_index(directory: Path) -> Path:
    _safetensors(directory)
    path = directory / "m.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    return path


def _safetensors_slices(directory: Path) -> Path:
    about = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    (directory / "slices").mkdir(exist_ok=True)
    for row in (2, 0):
        sharding = {"DCP_SHARDING_INFO": json.dumps({"x": {"saved_offsets": [row, 0]}})}
        path = directory / "slices" / f"{row}.safetensors"
        header = json.dumps({"__metadata__": sharding, "x": about})
        path.write_bytes(safetensors(header.encode(), bytes(24)))
    return path


def _json_bombs() -> dict[str, bytes]:
    return {
        "deep": b"[" * 100_000,
        "digits": b"9" * 100_000,
        "names": b'{"weight_map":{' + b",".join(b'"%d":"../../x"' % i for i in range(1000)) + b"}}",
        "not UTF-8": b'{"weight_map": "\xff"}',
    }


# ---- torch.distributed.checkpoint ----------------------------------------------------------------


def _dcp(directory: Path) -> Path:
    """A directory with one value."""
    value = zip_value(pickle.dumps([1, "a", {"b": 2.5}], 2))
    (directory / "dcp").mkdir()
    (directory / "dcp/__0_0.distcp").write_bytes(value)
    (directory / "dcp/.metadata").write_bytes(dcp_metadata(len(value)))
    return directory / "dcp/.metadata"


def dcp_metadata(
    length: int,
    shape: tuple[int, ...] | None = None,
    path: str = "__0_0.distcp",
    offset: int = 0,
    names: tuple[str, ...] = ("v",),
    step: int = 0,
) -> bytes:
    """The metadata of a value of so many bytes, or of a tensor of float32 in one chunk, under these
    names, each so many bytes after the one before; made with stand-ins for torch's classes."""
    base = "torch.distributed.checkpoint"
    stand_ins = ("torch", "torch.distributed", base, f"{base}.metadata", f"{base}.filesystem")
    known = {name: sys.modules.get(name) for name in stand_ins}
    try:
        for name in known:
            sys.modules[name] = types.ModuleType(name)

        class Record:
            def __init__(self, **fields: Any) -> None:
                vars(self).update(fields)

        def kind(module: str, name: str, **fields: Any) -> Any:
            where = sys.modules[f"{base}.{module}"]
            if not hasattr(where, name):
                setattr(where, name, type(name, (Record,), {"__module__": where.__name__}))
            return getattr(where, name)(**fields)

        start = None if shape is None else (0,) * len(shape)
        indexes = [
            kind("metadata", "MetadataIndex", fqn=name, offset=start, index=None) for name in names
        ]
        places = [
            kind("filesystem", "_StorageInfo", relative_path=path, offset=at, length=length)
            for at in (offset + number * step for number in range(len(names)))
        ]
        if shape is None:
            about = kind("metadata", "BytesStorageMetadata")
        else:
            float32 = type("float32", (), {"__module__": "torch"})
            sys.modules["torch"].float32 = float32  # type: ignore[attr-defined]
            about = kind(
                "metadata",
                "TensorStorageMetadata",
                properties=kind("metadata", "TensorProperties", dtype=float32),
                size=shape,
                chunks=[kind("metadata", "ChunkStorageMetadata", offsets=start, sizes=shape)],
            )
        whole = kind(
            "metadata",
            "Metadata",
            state_dict_metadata=dict.fromkeys(names, about),
            planner_data=None,
            storage_data=dict(zip(indexes, places, strict=True)),
        )
        return pickle.dumps(whole, 2)
    finally:
        for name, module in known.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def dcp(
    directory: Path,
    data: bytes,
    shape: tuple[int, ...] | None,
    path: str = "d",
    names: tuple[str, ...] = ("v",),
    **place: int,
) -> Path:
    """A directory of torch.distributed.checkpoint whose data file `d` has these bytes, once for
    each name."""
    found = directory / "dcp"
    found.mkdir(exist_ok=True)
    (found / "d").write_bytes(data * len(names))
    length = place.pop("length", len(data))
    (found / ".metadata").write_bytes(
        dcp_metadata(length, shape, path, names=names, step=len(data), **place)
    )
    return found


def zip_value(content: bytes, **storages: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for key, stored in storages.items():
            archive.writestr(f"archive/data/{key}", stored)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def zip_tensor(
    shape: tuple[int, ...], values: bytes, strides: tuple[int, ...] | None = None
) -> bytes:
    """A tensor of float32 as torch.save writes it."""

    def numbers(*found: int) -> bytes:
        return b"(" + b"".join(b"I%d\n" % one for one in found) + b"t"

    strides = strides or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    storage = b"((S'storage'\nctorch\nFloatStorage\nS's'\nS'cpu'\nI%d\ntQ"
    code = b"ctorch._utils\n_rebuild_tensor_v2\n" + storage % (len(values) // 4) + b"I0\n"
    code += numbers(*shape) + numbers(*strides) + b"I00\nNtR."
    return zip_value(b"\x80\x02" + code, s=values)


def nested(levels: int) -> bytes:
    """A pickle of lists of ten times the list before."""
    code = b"\x80\x02](" + b"K\x00" * 10 + b"eq\x00"
    for level in range(1, levels):
        code += b"0](" + (b"h" + bytes([level - 1])) * 10 + b"eq" + bytes([level])
    return code


def tuples(levels: int) -> bytes:
    """A pickle of tuples of ten times the tuple before."""
    code = b"\x80\x02(" + b"K\x00" * 10 + b"tq\x00"
    for level in range(1, levels):
        code += b"0(" + (b"h" + bytes([level - 1])) * 10 + b"tq" + bytes([level])
    return code


def ordered(count: int) -> bytes:
    """A pickle of many copies of one dict."""
    code = b"\x80\x02}q\x00(" + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(count))
    code += b"uccollections\nOrderedDict\nq\x010]q\x02("
    return code + b"h\x01h\x00\x85R" * count + b"e."


def repeated(call: bytes, count: int = 4000) -> bytes:
    """A pickle of many calls that all have one text of a megabyte, or of the text alone."""
    text = b"\x80\x02X" + struct.pack("<I", 1 << 20) + b"t" * (1 << 20) + b"q\x000"
    return text + call + b"q\x010](" + (b"h\x01h\x00\x85R" if call else b"h\x00") * count + b"e."


def _pickle_bombs() -> dict[str, bytes]:
    many = (b"}", b"]", b"\x8f", b"N\x85", b"}K\0Ns", b"N") if LONG else (b"}",)
    calls = {
        f"{named} of one text": repeated(b"c" + named.replace(".", "\n").encode() + b"\n")
        for named in ("pathlib.PosixPath", "_codecs.encode", "__builtin__.set", "torch.device")
    }
    return calls | {
        "one text many times": repeated(b"").replace(b"q\x010](", b"](", 1),
        "key of tuples": tuples(12).replace(b"\x80\x02", b"\x80\x02}", 1) + b"Ns.",
        "size of lists": nested(9).replace(b"\x80\x02", b"\x80\x02ctorch\nSize\n", 1) + b"\x85R.",
        "copies of a dict": ordered(3000),
        **{
            f"many {code!r}": b"\x80\x04](" + code * (1_500_000 // len(code)) + b"e."
            for code in many
        },
        "keys that collide": b"\x80\x02}("
        + b"".join(
            b"\x8a\x0c" + (i * (2**61 - 1)).to_bytes(12, "little") + b"N" for i in range(1, 80_000)
        )
        + b"u.",
        "memo of 2^26": b"\x80\x02Nr" + struct.pack("<I", 1 << 26) + b".",
        "memo in text": b"\x80\x02Np999999999\n.",
        "nested": nested(9) + b".",
        "path of lists": nested(9).replace(b"\x80\x02", b"\x80\x02cpathlib\nPosixPath\n(", 1)
        + b"tR.",
        "bytearray of 2^40": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        "digits": b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
        "deep": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        "in itself": b"\x80\x02]q\x00h\x00a.",
    }


def _dcp_value(directory: Path) -> Path:
    _dcp(directory)
    return directory / "dcp/__0_0.distcp"


def _dcp_tensor(directory: Path) -> Path:
    path = _dcp_value(directory)
    path.write_bytes(zip_tensor((2, 3), np.arange(6, dtype="<f4").tobytes()))
    return path


def _use_dcp_file(shape: tuple[int, ...] | None) -> Callable[[Path], Any]:
    """With metadata that give the value or tensor all bytes of its file."""

    def use(directory: Path) -> Any:
        path = directory / "dcp/__0_0.distcp"
        size = path.lstat().st_size if os.path.lexists(path) else 1
        (directory / "dcp/.metadata").write_bytes(dcp_metadata(size, shape))
        return _convert("dcp")(directory)

    return use


# ---- what belongs to a checkpoint ----------------------------------------------------------------


def _state(directory: Path) -> Path:
    ckptfmt.Checkpoint(x=np.arange(3.0)).save(directory / "ckpt")
    return directory / "checkpoint"


def _state_bombs() -> dict[str, bytes]:
    return {
        "many paths": b"\n".join(b'all_model_checkpoint_paths: "%d"' % i for i in range(100_000)),
        "long line": b'model_checkpoint_path: "' + b"a" * 1_000_000,
        "escapes": b'model_checkpoint_path: "' + b"\\377" * 10_000 + b'"',
        "digits": b"all_model_checkpoint_timestamps: " + b"9" * 100_000,
    }


def _use_state(directory: Path) -> Any:
    ckptfmt.tf.get_checkpoint_state(directory)
    return ckptfmt.tf.latest_checkpoint(directory)


def _metrics(directory: Path) -> Path:
    manager = ckptfmt.CheckpointManager(
        ckptfmt.Checkpoint(x=np.arange(3.0)),
        directory,
        1,
        keep_best=ckptfmt.KeepBest("loss", mode="min"),
    )
    manager.save(metrics={"loss": 0.5})
    found = [p for p in directory.iterdir() if b"ckptfmt_metrics" in p.read_bytes()]
    return found[0]


def _use_metrics(directory: Path) -> Any:
    return ckptfmt.CheckpointManager(
        ckptfmt.Checkpoint(x=np.arange(3.0)),
        directory,
        1,
        keep_best=ckptfmt.KeepBest("loss", mode="min"),
    ).checkpoints


def with_metadata(prefix: Path, text: bytes) -> None:
    value, masked = ix.string_value([text])
    entry = ix.entry(ix.STRING, [], size=len(value), masked_crc=masked)
    ix.write(prefix, ix.index_of([(b"", ix.header()), (b"_CKPTFMT_METADATA", entry)]), value)


def _metadata(directory: Path) -> Path:
    (directory / "text").write_bytes(b'{"step": 7, "a": [1.5, "b"]}')
    return directory / "text"


def _use_metadata(directory: Path) -> Any:
    with_metadata(directory / "m", (directory / "text").read_bytes())
    with ckptfmt.open(directory / "m") as reader:
        metadata = reader.metadata
    ckptfmt.report.report(directory / "m", directory / "page.html")
    return metadata


OPENERS = {
    "index": Opener(lambda d: _saved(d).with_suffix(".index"), lambda d: _load(str(d / "m"))),
    "data": Opener(
        lambda d: Path(f"{_saved(d)}.data-00000-of-00001"), lambda d: _load(str(d / "m"))
    ),
    "npz": Opener(_npz, _convert("a.npz"), _npz_bombs),
    "safetensors": Opener(_safetensors, _convert("a.safetensors"), _safetensors_bombs),
    "safetensors index": Opener(
        _safetensors_index, _convert("m.safetensors.index.json"), _json_bombs
    ),
    "safetensors slices": Opener(_safetensors_slices, _convert("slices"), _safetensors_bombs),
    "DCP metadata": Opener(_dcp, _convert("dcp"), _pickle_bombs),
    "DCP value": Opener(
        _dcp_value,
        _use_dcp_file(None),
        # All pickles are counted as `.metadata` are.
        lambda: {k: zip_value(v) for k, v in _pickle_bombs().items() if not k.startswith("many")},
    ),
    "DCP tensor": Opener(_dcp_tensor, _use_dcp_file((2, 3))),
    "state file": Opener(_state, _use_state, _state_bombs),
    "metrics": Opener(_metrics, _use_metrics, _json_bombs),
    "metadata": Opener(_metadata, _use_metadata, _json_bombs),
}


def _h5(directory: Path) -> Path:
    import h5py  # noqa: PLC0415

    with h5py.File(directory / "a.h5", "w") as file:
        file["layers/x"] = np.arange(300.0)
        file["y"] = np.ones((2, 3), np.int16)
    return directory / "a.h5"


def _h5_bombs() -> dict[str, bytes]:
    import h5py  # noqa: PLC0415

    out = io.BytesIO()
    with h5py.File(out, "w", libver="latest") as file:
        file["x"] = 1.0
        for number in range(12_000):
            file[f"x{number}"] = file["x"]
    return {"hard links": out.getvalue()}


# What needs packages of `make peers`.
PEERS = {"HDF5": Opener(_h5, _convert("a.h5"), _h5_bombs)}


# ---- hostile things ------------------------------------------------------------------------------


def _replaced(path: Path, make: Callable[[], Any]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make()


def things(
    path: Path, sound: bytes, opener: Opener, chance: random.Random, mutants: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield name and maker of each hostile thing in the place of the file."""
    if opener.use is not _use_metadata:  # what is attacked there is a text, not a file
        yield "FIFO", lambda: os.mkfifo(path)
        yield "device", lambda: path.symlink_to("/dev/zero")
        yield "directory", path.mkdir
        yield "missing", lambda: None
        yield "link to nothing", lambda: path.symlink_to("nowhere")
        yield "link to itself", lambda: path.symlink_to(path)
    for end in range(0, len(sound), 13 * max(1, len(sound) // 1300)):
        yield f"cut at {end}", lambda end=end: path.write_bytes(sound[:end])
    for _ in range(mutants):
        changed = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
            )
        yield f"mutant {bytes(changed).hex()}", lambda c=bytes(changed): path.write_bytes(c)
    for name, content in opener.bombs().items():
        yield name, lambda content=content: path.write_bytes(content)


def peak() -> int:
    """Bytes of memory that the process had at most since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def attack(opener: Opener, chance: random.Random, mutants: int, directory: Path) -> Any:
    """Make a sound file, open it, and then each hostile thing in its place. Returns how many were
    opened and refused, what was wrong, and the slowest."""
    path = opener.make(directory)
    opener.use(directory)
    sound = path.read_bytes()
    opened = refused = 0
    wrong: list[str] = []
    slowest = (0.0, "")
    # The process is killed then.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for thing, make in things(path, sound, opener, chance, mutants):
        _replaced(path, make)
        size = path.stat().st_size if path.is_file() else 0
        forget_peak()
        before, thing = peak(), thing[:200]  # noqa: PLW2901
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(HANGS)
        try:
            opener.use(directory)
            opened += 1
        except CkptfmtError as error:
            refused += 1
            if thing in ("FIFO", "device", "directory") and isinstance(error, CorruptError):
                wrong.append(f"{thing}: taken for damage: {error}")
        except BaseException as error:
            wrong.append(f"{thing}: {type(error).__name__}: {error!s:.200}")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        slowest = max(slowest, (time.process_time() - began, thing))
        grown = peak() - before
        if grown > PEAK_FLOOR + PEAK_FACTOR * size:
            wrong.append(f"{thing}: {grown >> 20} MiB for {size} bytes")
        shutil.rmtree(directory / "out", ignore_errors=True)
    return opened, refused, wrong, slowest


def check_opener(opener: str, directory: Path, seed: int, mutants: int) -> None:
    """Attack one opener in a child, and check what it found."""
    result = directory.with_suffix(".json")

    def work() -> None:
        warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
        with memory_limit(ADDRESS_SPACE):
            chance = random.Random(seed)
            found = attack({**OPENERS, **PEERS}[opener], chance, mutants, directory)
        result.write_text(json.dumps(found))

    status = in_child(work)
    assert status == 0, f"status {status}"
    opened, refused, wrong, (seconds, slowest) = json.loads(result.read_text())
    print(f"{opener}: opened {opened}, refused {refused}, slowest {seconds:.2f} s ({slowest:.40})")
    assert wrong == []
    assert opened + refused > 30
