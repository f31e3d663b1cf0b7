# SPDX-License-Identifier: Apache-2.0
"""A process that runs TensorFlow's checkpoint operations for oracle.py: bad input can kill it.

Both directions carry frames: one line of JSON, whose field "blob" counts the raw bytes after it.
Names and slice texts are bytes, written in JSON as latin-1. The file descriptor that was standard
output carries the frames; what TensorFlow itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, BinaryIO

import values

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Without a block cache TensorFlow reads a 256 KiB index block anew for each name looked up.
os.environ.setdefault("TF_TABLE_INDEX_CACHE_SIZE_IN_MB", "16")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

Reply = tuple[dict[str, Any], bytes]
CHILD_SECONDS = 60


def send(stream: BinaryIO, reply: Reply) -> None:
    head, blob = reply
    head["blob"] = len(blob)
    stream.write(json.dumps(head).encode() + b"\n" + blob)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    blob = stream.read(head["blob"])
    return (head, blob) if len(blob) == head["blob"] else None


def encode_bytes(items: list[str]) -> list[bytes]:
    return [item.encode("latin-1") for item in items]


def take_values(descriptions: list[dict], blob: bytes) -> list[values.Value]:
    taken = []
    position = 0
    for description in descriptions:
        taken.append(values.unpacked(description, blob[position : position + description["size"]]))
        position += description["size"]
    return taken


def to_tensor(value: values.Value) -> tf.Tensor:
    if value.code == values.STRING and not value.shape:
        return tf.constant(value.content[0])
    tensor = tf.convert_to_tensor(value.array(), dtype=tf.dtypes.as_dtype(value.code))
    assert tensor.dtype.as_datatype_enum == value.code
    return tensor


def from_tensor(tensor: tf.Tensor) -> values.Value:
    return from_numpy(tensor.dtype.as_datatype_enum, tensor.numpy())


def from_numpy(code: int, found: Any) -> values.Value:
    if code == values.STRING and isinstance(found, bytes):
        # numpy would cut the zero bytes at the end of a lone string.
        return values.Value(code, (), (found,))
    return values.from_array(code, np.asarray(found))


def reply_values(found: list[values.Value]) -> Reply:
    return {"values": [value.describe() for value in found]}, b"".join(
        value.packed() for value in found
    )


def save_v2(request: dict, blob: bytes) -> Reply:
    tf.raw_ops.SaveV2(
        prefix=request["prefix"],
        tensor_names=tf.constant(encode_bytes(request["names"]), tf.string),
        shape_and_slices=tf.constant(encode_bytes(request["specs"]), tf.string),
        tensors=[to_tensor(value) for value in take_values(request["values"], blob)],
    )
    return {}, b""


def restore(request: dict) -> list[values.Value]:
    tensors = tf.raw_ops.RestoreV2(
        prefix=request["prefix"],
        tensor_names=tf.constant(encode_bytes(request["names"]), tf.string),
        shape_and_slices=tf.constant(encode_bytes(request["specs"]), tf.string),
        dtypes=[tf.dtypes.as_dtype(code) for code in request["dtypes"]],
    )
    return [from_tensor(tensor) for tensor in tensors]


def restore_v2(request: dict, blob: bytes) -> Reply:
    return reply_values(restore(request))


def merge_v2_checkpoints(request: dict, blob: bytes) -> Reply:
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=tf.constant(request["prefixes"], tf.string),
        destination_prefix=request["destination"],
        delete_old_dirs=request["delete_old_dirs"],
        allow_missing_files=request["allow_missing_files"],
    )
    return {}, b""


def list_variables(request: dict, blob: bytes) -> Reply:
    reader = tf.train.load_checkpoint(request["prefix"])
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    return {
        "variables": [
            [
                name.encode("utf-8", "surrogateescape").decode("latin-1"),
                dtypes[name].as_datatype_enum,
                list(shapes[name]),
            ]
            for name in sorted(shapes)
        ]
    }, b""


def get_tensor(request: dict, blob: bytes) -> Reply:
    reader = tf.train.load_checkpoint(request["prefix"])
    name = request["name"].encode("latin-1").decode("utf-8")
    code = reader.get_variable_to_dtype_map()[name].as_datatype_enum
    return reply_values([from_numpy(code, reader.get_tensor(name))])


def save_checkpoint(request: dict, blob: bytes) -> Reply:
    """An object-based checkpoint, as tf.train.Checkpoint.write makes it."""
    names = request["names"]
    items = take_values(request["values"], blob)
    objects = {name: tf.Variable(to_tensor(item)) for name, item in zip(names, items, strict=True)}
    tf.train.Checkpoint(**objects).write(request["prefix"])
    return {}, b""


def failure(error: BaseException) -> Reply:
    return {"error": type(error).__name__, "message": str(error)}, b""


def perform(request: dict, blob: bytes) -> Reply:
    try:
        return OPERATIONS[request["op"]](request, blob)
    except (tf.errors.OpError, RuntimeError, ValueError, UnicodeDecodeError) as error:
        return failure(error)


def fork_child(job: Any, seconds: float) -> tuple[int, BinaryIO]:
    """Runs `job(stream)` in a forked child; its process id and the other end of its stream."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            signal.alarm(int(seconds) + 1)
            with os.fdopen(writing, "wb") as stream:
                job(stream)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return child, os.fdopen(reading, "rb")


def reap(child: int) -> dict[str, Any]:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"died": -code if code < 0 else 256 + code}


def isolated(request: dict, blob: bytes) -> Reply:
    """Performs the request in a child of its own, whose death is the answer if it dies."""
    child, stream = fork_child(lambda out: send(out, perform(request, blob)), CHILD_SECONDS)
    with stream:
        reply = receive(stream)
    outcome = reap(child)
    return reply if reply is not None else (outcome, b"")


def damage(request: dict, blob: bytes) -> Reply:
    """Restores with one file changed, by each mutation: a list of [offset, hexadecimal bytes].

    Null instead of bytes cuts the file there. An outcome is "same", "different:DIGEST" of all
    values, "error:CLASS" or "died:SIGNAL". Children take the mutations in batches; one that dies or
    hangs is replaced after the mutation that did it.
    """
    mutations = request["mutations"]
    expected = take_values(request["values"], blob)
    with open(request["file"], "rb") as file:
        sound = file.read()
    outcomes: list[str] = []

    def attempt(patches: list[tuple[int, str | None]]) -> str:
        damaged = bytearray(sound)
        for offset, patch in patches:
            content = b"" if patch is None else bytes.fromhex(patch)
            damaged[offset : offset + len(content) if content else None] = content
        with open(request["file"], "r+b") as file:
            file.write(damaged)
            file.truncate()
        try:
            found = restore(request)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            return f"error:{type(error).__name__}"
        return "same" if found == expected else f"different:{values.digest_of(found)}"

    def batch(stream: BinaryIO) -> None:
        for patches in mutations[len(outcomes) :]:
            stream.write(attempt(patches).encode() + b"\n")
            stream.flush()

    try:
        while len(outcomes) < len(mutations):
            child, stream = fork_child(batch, 600)
            with stream:
                while True:
                    ready, _, _ = select.select([stream], [], [], CHILD_SECONDS)
                    line = stream.readline() if ready else b""
                    if not line:
                        break
                    outcomes.append(line.decode().rstrip("\n"))
            if not ready:
                os.kill(child, signal.SIGKILL)
            died = reap(child)["died"]
            if len(outcomes) < len(mutations):
                outcomes.append(f"died:{died}")
    finally:
        with open(request["file"], "wb") as file:
            file.write(sound)
    return {"outcomes": outcomes}, b""


def version(request: dict, blob: bytes) -> Reply:
    return {"version": tf.__version__}, b""


OPERATIONS = {
    "version": version,
    "save_v2": save_v2,
    "restore_v2": restore_v2,
    "merge_v2_checkpoints": merge_v2_checkpoints,
    "list_variables": list_variables,
    "get_tensor": get_tensor,
    "save_checkpoint": save_checkpoint,
    "damage": damage,
}


def main() -> None:
    memory_limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    while True:
        received = receive(sys.stdin.buffer)
        if received is None:
            return
        request, blob = received
        begun = time.monotonic()
        head, answer = (isolated if request.get("isolated") else perform)(request, blob)
        head["seconds"] = time.monotonic() - begun
        send(replies, (head, answer))


if __name__ == "__main__":
    main()
