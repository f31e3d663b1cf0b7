# SPDX-License-Identifier: Apache-2.0
"""Which calls save and load an object of a framework, for the messages that refuse it elsewhere.
Frameworks are recognised by types in `sys.modules`, so that none is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from ckptfmt._base.arguments import invalid
from ckptfmt.errors import InvalidError


def _calls(what: str, save: str, load: str) -> str:
    return f"save {what} with {save} and load it with {load}"


_TORCH = _calls("it", "ckptfmt.torch.save(state, prefix)", "ckptfmt.torch.load_into(state, prefix)")
_KERAS = _calls(
    "the keras.Model",
    "ckptfmt.keras.save_weights(model, prefix)",
    "ckptfmt.keras.load_weights(model, prefix)",
)
_JAX_CALLS = "ckptfmt.jax.save(prefix, pytree)", "ckptfmt.jax.load(prefix, pytree)"
_JAX = _calls("it", *_JAX_CALLS)
_INIT = _calls("the pytree that its init returns", *_JAX_CALLS)
_NNX = _calls(
    "it",
    "ckptfmt.jax.save(prefix, nnx.state(it))",
    "nnx.update(it, ckptfmt.jax.load(prefix, nnx.state(it)))",
)
TENSORFLOW = "save and load it with tf.train.Checkpoint, whose checkpoints ckptfmt reads"
_TF_CHECKPOINT = (
    "save and load it with its own methods or a tf.train.CheckpointManager: ckptfmt reads its "
    "checkpoints and can continue that directory"
)

_SAVEABLES = "tensorflow.python.training.saving.saveable_object"

# Module, class, and the calls for its instances. Keras is first: its layers are
# modules of its backend as well.
_KNOWN = (
    ("keras", "Model", _KERAS),
    ("keras", "Layer", _KERAS),
    ("keras", "Optimizer", _KERAS),
    ("torch.nn", "Module", _TORCH),
    ("torch.optim", "Optimizer", _TORCH),
    ("torch.optim.lr_scheduler", "LRScheduler", _TORCH),
    ("torch.amp", "GradScaler", _TORCH),
    ("torch", "Tensor", _TORCH),
    ("flax.nnx", "Module", _NNX),
    ("flax.nnx", "Optimizer", _NNX),
    ("flax.linen", "Module", _INIT),
    ("haiku", "Module", _INIT),
    ("haiku", "Transformed", _INIT),
    ("haiku", "TransformedWithState", _INIT),
    ("optax", "GradientTransformation", _INIT),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", _TF_CHECKPOINT),
    ("tensorflow.python.trackable.base", "Trackable", TENSORFLOW),
    (_SAVEABLES, "SaveSpec", "pass ckptfmt.tf.SaveSpec(tensor, slice_spec, name)"),
    (_SAVEABLES, "SaveableObject", "save the object that makes it, or its tensors"),
)
# Classes with the methods of variables or of objects that give their own tensors, whose tensors
# mean nothing outside of TensorFlow.
_REFUSED = (
    ("tensorflow.python.data.ops.iterator_ops", "IteratorBase"),
    ("tensorflow.python.data.ops.iterator_ops", "Iterator"),
    ("tensorflow.dtensor.python.d_variable", "DVariable"),
)
_DEPTH = 8


def is_refused(kind: type) -> bool:
    """Return whether objects of this type are refused in spite of their methods."""
    return any(
        isinstance(one := getattr(sys.modules.get(module), name, None), type)
        and issubclass(kind, one)
        for module, name in _REFUSED
    )


def adapter_for(value: object) -> str | None:
    """Return the calls that save and load an object of PyTorch, JAX, Keras or TensorFlow, or a
    container of such objects: "save it with ... and load it with ...". None for other objects."""
    return _adapter(value, _DEPTH)


def _adapter(value: object, depth: int) -> str | None:
    for module, name, calls in _KNOWN:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return calls
    if _has_jax_array(value):
        return _JAX
    found = (_adapter(child, depth - 1) for child in _items(value)) if depth else iter(())
    return next((calls for calls in found if calls is not None), None)


def _has_jax_array(value: object) -> bool:
    """Return whether the value is a pytree with an array of JAX."""
    jax = sys.modules.get("jax")
    tree, kind = getattr(jax, "tree", None), getattr(jax, "Array", None)
    if tree is None or kind is None:
        return False
    try:
        return any(isinstance(leaf, kind) for leaf in tree.leaves(value))
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted
        return False


def _items(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value


def refused(what: str, given: object, argument: str | None = None) -> InvalidError:
    """Return the error for an object that is not `what`: "tensors must be ...". For an object of a
    framework it says which calls save and load it."""
    calls = adapter_for(given)
    return invalid(
        argument, f"{what}, not {type(given).__name__}" + (f": {calls}" if calls else "")
    )


def named_type(value: object) -> str:
    """Return the name of the type of an object, with its module unless it is a builtin."""
    kind = type(value)
    is_builtin = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
