# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's side of docs/coming-from-tensorflow.md, for test_page.py: names, errors, paths,
saving, sharding callbacks."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from typing import Any

from tf_rows import WORDS, fails, row, run

del sys.path[0]  # the folder of this file: its module names are not for TensorFlow's imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402
from tensorflow.core.protobuf import trackable_object_graph_pb2  # noqa: E402
from tensorflow.python.checkpoint import functional_saver  # noqa: E402
from tensorflow.python.checkpoint.sharding import sharding_util  # noqa: E402
from tensorflow.python.framework import device as device_lib  # noqa: E402
from tensorflow.python.saved_model import registration  # noqa: E402
from tensorflow.python.training.saving import saveable_object  # noqa: E402

import ckptfmt  # noqa: E402

errors = tf.errors
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def vector(*values: float, dtype: Any = tf.float32) -> Any:
    return tf.constant(values, dtype)


def variable(*values: float) -> Any:
    return tf.Variable(vector(*values))


def save(prefix: str, **tensors: Any) -> None:
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=list(tensors.values()),
    )


def restore(prefix: str, name: str, spec: str = "", dtype: Any = tf.float32) -> Any:
    return tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=[name], shape_and_slices=[spec], dtypes=[dtype]
    )


def there(start: str) -> list[str]:
    return sorted(name for name in os.listdir() if name.startswith(start))


def options(**given: Any) -> Any:
    return tf.train.CheckpointOptions(
        **{f"experimental_{name}": value for name, value in given.items()}
    )


class Object(tf.Module):
    """Receives what a saver restores."""

    got: Any = None

    def _restore_from_tensors(self, tensors: Any) -> None:
        self.got = tensors


def saver(tensors: dict[str, Any], owner: Any = None) -> Any:
    return functional_saver.MultiDeviceSaver({owner: tensors})


# ---- errors --------------------------------------------------------------------------------------


@row("a tensor is missing")
def _missing_tensor() -> None:
    save("missing", x=vector(1))
    words = WORDS["a tensor is missing"]
    fails(errors.NotFoundError, lambda: restore("missing", "y"), words)
    fails(errors.NotFoundError, lambda: tf.train.load_variable("missing", "y"), words)


@row("a checkpoint is missing")
def _missing_checkpoint() -> None:
    words = WORDS["a checkpoint is missing"]
    fails(errors.NotFoundError, lambda: restore("nowhere", "y"), words)
    fails(errors.NotFoundError, lambda: tf.train.load_checkpoint("nowhere"), words)
    fails(errors.NotFoundError, lambda: tf.train.Checkpoint().restore("nowhere"), words)


@row("a directory has no state file")
def _no_state_file() -> None:
    os.mkdir("empty")
    words = WORDS["a directory has no state file"]
    fails(ValueError, lambda: tf.train.load_checkpoint("empty"), words)


@row("the dtype differs")
def _dtype() -> None:
    save("dtype", x=vector(1))
    words = WORDS["the dtype differs"]
    fails(errors.InvalidArgumentError, lambda: restore("dtype", "x", "", tf.int32), words)


@row("the shape differs")
def _shape() -> None:
    save("shape", x=vector(1, 2))
    words = WORDS["the shape differs"]
    fails(errors.InvalidArgumentError, lambda: restore("shape", "x", "4 0,2"), words)


@row("the bytes are damaged")
def _damage() -> None:
    save("damage", x=vector(1, 2))
    with open("damage.data-00000-of-00001", "wb") as file:
        file.write(b"?" * 8)
    fails(errors.DataLossError, lambda: restore("damage", "x"), WORDS["the bytes are damaged"])


def merge(*prefixes: str, allow_missing_files: bool = False) -> None:
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes,
        destination_prefix="merged",
        delete_old_dirs=False,
        allow_missing_files=allow_missing_files,
    )


@row("two inputs of a merge have one tensor")
def _merge_twice() -> None:
    for name in ("twice-a", "twice-b"):
        save(name, x=vector(1))
    text = WORDS["two inputs of a merge have one tensor"]
    fails(errors.InvalidArgumentError, lambda: merge("twice-a", "twice-b"), text)


@row("an input of a merge is missing")
def _merge_missing() -> None:
    save("missing-a", x=vector(1))
    text = WORDS["an input of a merge is missing"]
    fails(errors.InvalidArgumentError, lambda: merge("missing-a", "gone"), text)


@row("all inputs of a merge are missing")
def _merge_nothing() -> None:
    text = WORDS["all inputs of a merge are missing"]
    call = functools.partial(merge, "gone", "too", allow_missing_files=True)
    fails(errors.InvalidArgumentError, call, text)


@row("a status assertion fails")
def _assertion() -> None:
    prefix = tf.train.Checkpoint(x=variable(1), y=variable(1)).write("assertion")
    status = tf.train.Checkpoint(x=variable(1)).read(prefix)
    fails(AssertionError, status.assert_consumed)


@row("two tensors have one name")
def _one_name() -> None:
    tensors = {Object(): {"x": vector(1)}, None: {"x": vector(1)}}
    fails(ValueError, lambda: functional_saver.MultiDeviceSaver(tensors))


@row("a registered saver is unknown")
def _unknown_saver() -> None:
    tensors = {None: {"x": vector(1)}}
    fails(LookupError, lambda: functional_saver.MultiDeviceSaver(tensors, {"package.unknown": {}}))


@row("an argument has the wrong type")
def _wrong_type() -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    fails(AttributeError, lambda: checkpoint.write("wrong", options=3))
    fails(TypeError, lambda: options(write_callbacks=[3]))
    fails(AssertionError, lambda: saveable_object.SaveSpec(lambda: vector(1), "", "x"))


@row("a SaveableObject that cannot be restored")
def _abstract() -> None:
    saveable = saveable_object.SaveableObject(None, [], "x")
    words = WORDS["a SaveableObject that cannot be restored"]
    fails(ValueError, lambda: saveable.restore([], None), words)


@row("the save path is that of the state file")
def _state_path() -> None:
    words = WORDS["the save path is that of the state file"]
    here = os.getcwd()
    update = tf.compat.v1.train.update_checkpoint_state
    fails(RuntimeError, lambda: update(here, f"{here}/checkpoint"), words)


# ---- paths ---------------------------------------------------------------------------------------


def named_checkpoint(prefix: str, place: str, latest: str) -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    assert checkpoint.save(prefix) == f"{prefix}-1"
    with open(f"{place}/checkpoint") as file:
        assert file.read().startswith('model_checkpoint_path: "checkpoint-1"\n')
    assert tf.train.latest_checkpoint(place) == latest
    checkpoint.restore(latest).assert_consumed()


@row("a prefix named `checkpoint`, absolute")
def _absolute() -> None:
    place = os.path.abspath("absolute")
    named_checkpoint(f"{place}/checkpoint", place, f"{place}/checkpoint-1")


@row("a prefix named `checkpoint`, relative")
def _relative() -> None:
    named_checkpoint("checkpoint", ".", "./checkpoint-1")


@row("`file://` URLs")
def _file_urls() -> None:
    url = f"file://{os.path.abspath('urls')}"
    saved = tf.train.Checkpoint(x=variable(1)).save(f"{url}/ck")
    assert saved == tf.train.latest_checkpoint(url) == f"{url}/ck-1"
    plain = os.path.abspath("urls/ck-1")
    assert len(tf.train.list_variables(f"file://localhost{plain}")) == 3


@row("other URLs")
def _other_urls() -> None:
    save("hosts", x=vector(1))
    assert tf.train.list_variables(f"file://host{os.path.abspath('hosts')}") == [("x", [1])]
    fails(errors.UnimplementedError, lambda: save("s3://bucket/ck", x=vector(1)))


@row("patterns")
def _patterns() -> None:
    save("pattern-1", x=vector(1))
    assert tf.compat.v1.train.checkpoint_exists("pattern*")


@row("a directory for a checkpoint")
def _directory() -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    checkpoint.save("directory/ck")
    fails(errors.DataLossError, lambda: checkpoint.restore("directory"))


@row("a prefix that ends with `/` or `.index`")
def _prefix_ends() -> None:
    os.mkdir("hidden")
    save("hidden/", x=vector(1))
    assert sorted(os.listdir("hidden")) == [".data-00000-of-00001", ".index"]
    save("ends.index", x=vector(1))
    assert os.path.exists("ends.index.index")


@row("a directory that does not exist")
def _no_directory() -> None:
    fails(errors.NotFoundError, lambda: save("new/deep/x", x=vector(1)))
    fails(errors.NotFoundError, lambda: saver({"x": vector(1)}).save("new/deep/x"))


@row("overwriting a prefix")
def _overwrite() -> None:
    save("over", x=vector(1, 2))
    save("over", y=vector(3, 4))
    assert tf.train.list_variables("over") == [("y", [2])]
    assert there("over") == ["over.data-00000-of-00001", "over.index"]


@row("`debug_string`")
def _debug_string() -> None:
    parts = [saveable_object.SaveSpec(vector(1), spec, "x") for spec in ("2 0,1", "2 1,1")]
    saver({"x": {part.slice_spec: part for part in parts}, "y": vector(1)}).save("debug")
    text = tf.train.load_checkpoint("debug").debug_string()
    assert text.endswith(b"\ny (DT_FLOAT) [1]\n") and text.count(b"\0x\0") == 2


# ---- saving and restoring ------------------------------------------------------------------------


@row("the level of the files")
def _level() -> None:
    save("level", x=tf.zeros(100_000))
    assert os.path.getsize("level.data-00000-of-00001") == 400_000
    assert os.path.getsize("level.index") < 200  # no checksums of chunks


@row("bytes of the object graph")
def _graph() -> None:
    prefix = tf.train.Checkpoint(v=variable(1), l=[variable(1)]).write("graph")
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_variable(prefix, "_CHECKPOINTABLE_OBJECT_GRAPH"))
    children = [[(one.local_name, one.node_id) for one in node.children] for node in graph.nodes]
    assert children == [[("l", 1), ("v", 2)], [("0", 3)], [], []]
    (attribute,) = graph.nodes[3].attributes
    assert attribute.full_name == "Variable"
    assert attribute.checkpoint_key == "l/0/.ATTRIBUTES/VARIABLE_VALUE"


@row("`experimental_io_device`")
def _io_device() -> None:
    unknown = options(io_device="/job:nowhere")
    call = saver({"x": vector(1)}).save
    fails(errors.InvalidArgumentError, lambda: call("io", unknown))


@row("`experimental_write_callbacks`")
def _write_callbacks() -> None:
    seen: list[object] = []
    calls = [seen.append, lambda: seen.append("none")]
    tf.train.Checkpoint(x=variable(1)).save("called", options(write_callbacks=calls))
    assert seen == ["called-1", "none"]


@row("options without their names")
def _positional_options() -> None:
    assert tf.train.CheckpointOptions("/cpu:0").experimental_io_device == "/cpu:0"


@row("options of `tf.train.CheckpointOptions`")
def _options_of_tensorflow() -> None:
    seen: list[str] = []
    given = options(skip_slot_variables=True, io_device="/cpu:0", write_callbacks=[seen.append])
    ours = ckptfmt.tf.CheckpointOptions.of(given)
    assert (ours.skip_slot_variables, ours.io_device) == (True, "/cpu:0")
    assert ours.write_callbacks == (seen.append,) and not ours.enable_async
    for name in ("enable_async", "experimental_enable_async_checkpoint"):
        asked = ckptfmt.tf.CheckpointOptions.of(tf.train.CheckpointOptions(**{name: True}))
        assert asked.enable_async
    ckptfmt.Checkpoint(x=1).save("options-of-theirs", given)
    assert seen == ["options-of-theirs-1"]


@row("changing options")
def _changing_options() -> None:
    given = options()
    given.experimental_io_device = "x"
    assert given.experimental_io_device == "x"


@row("the order of shards")
def _order_of_tasks() -> None:
    places = [f"/job:{job}/task:{task}/device:CPU:0" for job, task in (("worker", 1), ("ps", 0))]
    specs = {p: saveable_object.SaveSpec(vector(1), "", p, device=p) for p in places}
    found = [task.to_string() for task in saver(specs)._shardable_tensors_by_task]
    assert found == places


@row("the order of devices")
def _order_of_devices() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, number in (("x", 1), ("y", 0)):
            with tf.device(f"/cpu:{number}"):
                tf.compat.v1.get_variable(name, initializer=[float(number)])
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(sharded=True).save(
            session, "devices", write_meta_graph=False, write_state=False
        )
    for number in (0, 1):
        with open(f"devices.data-0000{number}-of-00002", "rb") as file:
            assert file.read() == vector(number).numpy().tobytes()


@row("keys that `restore` of an object receives")
def _restore_keys() -> None:
    owner = Object()
    both = saver({"model/.ATTRIBUTES/w": vector(1)}, owner)
    both.save("keys")
    both.restore("keys")
    assert list(owner.got) == ["w"]


@row("a SaveSpec under a key that is not its name")
def _other_name() -> None:
    saver({"key": saveable_object.SaveSpec(vector(1), "", "name")}).save("named")
    assert tf.train.list_variables("named") == [("key", [1])]


@row("`initialize_or_restore` and `run_restore_ops` of a status")
def _graph_mode() -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    status = checkpoint.read(checkpoint.write("status"))
    assert status.initialize_or_restore() is status.run_restore_ops() is None
    nothing = checkpoint.restore(None)
    assert nothing.initialize_or_restore() is None
    fails(AssertionError, nothing.run_restore_ops)


@row("device names")
def _device_names() -> None:
    spec = saveable_object.SaveSpec(vector(1), "", "x", device="nonsense")
    fails(ValueError, lambda: saver({"x": spec}), "nonsense")
    # Our side takes what TensorFlow parses, a DeviceSpec too.
    for name in ("/gpu:1", "/job:a/replica:0/task:1/device:GPU:3", "/cpu:*"):
        device = device_lib.DeviceSpec.from_string(name)
        ours = ckptfmt.SaveSpec(1.0, "", "x", device=device)
        assert ours.device == device.to_string()


@row("what a registered saver returns")
def _returned() -> None:
    def save_fn(trackables: Any, file_prefix: Any) -> Any:
        name = file_prefix.numpy().decode() if hasattr(file_prefix, "numpy") else file_prefix
        save(name, x=vector(1))
        return [tf.constant(name)]

    for library, register in (
        (tf, registration.register_checkpoint_saver),
        (ckptfmt, ckptfmt.tf.register_checkpoint_saver),
    ):
        register(
            package="page",
            name="eager",
            predicate=lambda _: False,
            save_fn=save_fn,
            restore_fn=lambda **_: None,
        )
        kind: Any = functional_saver.MultiDeviceSaver if library is tf else ckptfmt.Saver
        prefix = f"registered-{library.__name__}"
        kind({None: {"y": vector(1)}}, {"page.eager": {}}).save(prefix)
        assert tf.train.list_variables(prefix) == [("x", [1]), ("y", [1])]


@row("temporary files")
def _temporary_files() -> None:
    seen: list[str] = []
    real = functional_saver.gen_io_ops.merge_v2_checkpoints

    def merged(prefixes: Any, *arguments: Any, **more: Any) -> Any:
        seen.extend(prefix.numpy().decode() for prefix in prefixes)
        return real(prefixes, *arguments, **more)

    functional_saver.gen_io_ops.merge_v2_checkpoints = merged
    try:
        saver({"x": vector(1)}).save("temporary")
    finally:
        functional_saver.gen_io_ops.merge_v2_checkpoints = real
    assert seen == ["temporary_temp/part-00000-of-00001"]


@row("graphs and `tf.function`")
def _graphs() -> None:
    with tf.Graph().as_default():
        assert saver({"x": tf.constant(1.0)}).to_proto().restore_op_name


@row("metrics of saves")
def _metrics() -> None:
    assert callable(functional_saver.metrics.AddNumCheckpointShardsWritten)


@row("nothing to save")
def _nothing() -> None:
    nothing = {"x": saveable_object.SaveSpec(lambda: None, "", "x", tf.float32, "CPU:0")}
    fails(errors.InvalidArgumentError, lambda: saver(nothing).save("nothing"))
    fails(IndexError, lambda: functional_saver.MultiDeviceSaver({}).save("nothing"))


@row("`save_counter`")
def _save_counter() -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    checkpoint.save_counter.assign(3)
    assert isinstance(checkpoint.save_counter, tf.Variable)
    assert checkpoint.save("counted") == "counted-4"


@row("background saves")
def _background() -> None:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    checkpoint.save("background", options(enable_async_checkpoint=True))
    checkpoint.sync()
    assert os.path.exists("background-1.index")


@row("restoring an object from a checkpoint with another shape")
def _all_or_nothing() -> None:
    prefix = tf.train.Checkpoint(a=variable(1), b=variable(1)).write("other")
    a = variable(0)
    fails(ValueError, lambda: tf.train.Checkpoint(a=a, b=variable(0, 0)).read(prefix))
    assert a.numpy().tolist() == [1]


# ---- managers ------------------------------------------------------------------------------------


def manager(directory: str, **more: Any) -> Any:
    checkpoint = tf.train.Checkpoint(x=variable(1))
    return tf.train.CheckpointManager(checkpoint, directory, **{"max_to_keep": 3, **more})


@row("numbers of checkpoints")
def _numbers() -> None:
    one = manager("m1")
    saved = [one.save(), one.save(checkpoint_number=7), one.save()]
    assert saved == one.checkpoints == ["m1/ckpt-1", "m1/ckpt-7", "m1/ckpt-3"]


@row("a `max_to_keep` of 0")
def _max_to_keep() -> None:
    fails(ValueError, lambda: manager("m2", max_to_keep=0), WORDS["a `max_to_keep` of 0"])


@row("a manager whose `checkpoint_name` is `checkpoint`")
def _manager_of_checkpoint() -> None:
    manager("m3", checkpoint_name="checkpoint").save()
    one = manager("m3", checkpoint_name="checkpoint")
    assert one.latest_checkpoint == one.restore_or_initialize() == "m3/checkpoint-1"


@row("files of the newest checkpoint are gone")
def _newest_gone() -> None:
    one = manager("m4")
    one.save()
    one.save()
    os.unlink("m4/ckpt-2.index")
    fails(errors.NotFoundError, manager("m4").restore_or_initialize)


@row("a directory that was moved")
def _moved() -> None:
    manager("m5").save()
    os.rename("m5", "moved")
    assert manager("moved").restore_or_initialize() == "moved/ckpt-1"


# ---- sharding callbacks --------------------------------------------------------------------------


def shardable(value: Any, key: str = "x", device: str = CPU) -> Any:
    tensor = tf.convert_to_tensor(value)
    return sharding_util.ShardableTensor(
        _tensor_save_spec=None,
        tensor=tensor,
        dtype=tensor.dtype,
        device=device_lib.DeviceSpec.from_string(device),
        name=key,
        shape=tensor.shape,
        slice_spec="",
        checkpoint_key=key,
        trackable=None,
    )


def cut(size: Any, *arrays: Any) -> list[list[list[int]]]:
    policy = tf.train.experimental.MaxShardSizePolicy(size)
    shards = policy([shardable(array, f"x{number}") for number, array in enumerate(arrays)])
    return [
        [list(part.shape) for key in shard.values() for part in key.values()] for shard in shards
    ]


def validate(given: dict[str, Any], *shards: dict[str, dict[str, Any]]) -> None:
    tensors = [shardable(tensor, key) for key, tensor in given.items()]
    sharding_util.validate_shards(shards, tensors, "a description")


@row("a callback that loses a tensor")
def _loses() -> None:
    class Loses(tf.train.experimental.ShardingCallback):
        description = "loses"

        def __call__(self, tensors: Any) -> Any:
            return [{"x": {"": tensors[0].tensor}}]

    tensors = {"x": vector(1), "y": vector(1)}
    saver(tensors).save("loses", options(sharding_callback=Loses()))
    assert tf.train.list_variables("loses") == [("x", [1])]
    fails(RuntimeError, lambda: validate(tensors, {"x": {"": tensors["x"]}}))


@row("a callback that cuts tensors")
def _cuts() -> None:
    whole = vector(1, 2)
    fails(KeyError, lambda: validate({"x": whole}, {"x": {"2 0,1": whole[:1], "2 1,1": whole[1:]}}))


@row("a callback that exchanges two tensors")
def _exchanges() -> None:
    x, y = vector(1), vector(2)
    validate({"x": x, "y": y}, {"x": {"": y}, "y": {"": x}})


@row("arguments of `validate_shards`")
def _validate_shards() -> None:
    known = list(inspect.signature(sharding_util.validate_shards).parameters)
    assert f"({', '.join(known)})" == WORDS["arguments of `validate_shards`"]


@row("an empty tensor under MaxShardSizePolicy")
def _empty() -> None:
    assert cut(16, tf.zeros((0, 2)), vector(1, 2)) == [[[2]]]


@row("strings of rank two under MaxShardSizePolicy")
def _strings() -> None:
    fails(ValueError, lambda: cut(4, [[b"ab", b"cd"], [b"e", b"f"]]))


@row("a negative `max_shard_size`, or a fraction")
def _wrong_size() -> None:
    assert cut(-1, 1.0) == [[[]]]
    assert cut(16.5, vector(1, 2)) == [[[2]]]


@row("restoring a cut tensor of half precision")
def _half() -> None:
    half = tf.Variable(tf.ones((8, 2), tf.float16))
    checkpoint = tf.train.Checkpoint(x=half)
    policy = tf.train.experimental.MaxShardSizePolicy(8)
    prefix = checkpoint.write("half", options(sharding_callback=policy))
    words = WORDS["restoring a cut tensor of half precision"]
    fails(errors.InvalidArgumentError, lambda: checkpoint.read(prefix), words)


@row("tensors of two tasks for ShardByTaskPolicy")
def _two_tasks() -> None:
    tensors = [shardable(1.0, f"x{task}", f"/job:worker/task:{task}") for task in (0, 1)]
    assert len(tf.train.experimental.ShardByTaskPolicy()(tensors)) == 1


@row("what `max_shard_size` counts")
def _counted() -> None:
    tensors = {f"x{number:03}": tf.ones(4) for number in range(200)}
    policy = tf.train.experimental.MaxShardSizePolicy(1024)
    saver(tensors).save("counts", options(sharding_callback=policy))
    assert {os.path.getsize(name) for name in there("counts.data-")} == {1024, 128}


@row("the save spec of a ShardableTensor")
def _save_spec() -> None:
    assert shardable(1.0)._tensor_save_spec is None


@row("ShardableTensors with equal fields")
def _hashes() -> None:
    assert hash(shardable(1.0)) == hash(shardable(1.0)) != hash(shardable(1.0, "y"))


@row("`repr` of a ShardableTensor")
def _repr() -> None:
    lines = repr(shardable(1.0)).strip().splitlines()
    assert lines[0] == "ShardableTensor:" and len(lines) == 10


@row("`validate_shards` of None")
def _validate_none() -> None:
    fails(TypeError, lambda: sharding_util.validate_shards(None, [], "a description"))


@row("a callback that writes into a tensor's memory")
def _writes() -> None:
    class Writes(tf.train.experimental.ShardingCallback):
        description = "writes"

        def __call__(self, tensors: Any) -> Any:
            tensors[0].tensor.numpy()[...] = 9
            return tf.train.experimental.ShardByTaskPolicy()(tensors)

    saver({"x": vector(1, 2)}).save("writes", options(sharding_callback=Writes()))
    assert tf.train.load_variable("writes", "x").tolist() == [1, 2]


# ---- names ---------------------------------------------------------------------------------------


def is_there(name: str) -> bool:
    """Whether TensorFlow has this public name, or a module this class or function."""
    if not name.startswith("tf."):
        module, _, last = name.rpartition(".")
        return hasattr(importlib.import_module(module), last)
    found: Any = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


if __name__ == "__main__":
    logging.set_verbosity(logging.ERROR)
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    run(is_there)
