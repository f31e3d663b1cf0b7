# SPDX-License-Identifier: Apache-2.0
"""The grammar of a state of `ckptfmt.torch`, and of a pytree of `ckptfmt.jax`: JSON in the
metadata, read without these.

A value of JSON stands for itself. Everything else is an object whose first key is a tag that begins
with "$", so that a dict with such a key, or with keys other than text, is one of the tagged dicts.
TAGS is the table of them. A node is of one of these kinds:

leaf   a tensor. The tag has its stored name, or `true` if that is the node's path; the other keys
       are its note: what the stored array does not say. Of a dtype that is stored as another one
       that is `dtype`, of a quantized tensor its quantizer as well, of which the PARTS are leaves.
list   the tag has its elements, whose keys are their positions
set    the same
dict   the tag has pairs of a key, itself a node, and a value
value  no other nodes; the tag has text

The path of a node is the keys above it, joined by dots, as torch.distributed.checkpoint joins them.
In a pytree it is the keys as `slashed` writes them, joined by slashes; all tags of leaves are true,
and the note of a Python scalar has its type as `dtype`. The metadata are not trusted.
"""

from __future__ import annotations

import base64
import io
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ckptfmt.errors import UnsupportedError

# The member of the metadata, and its version.
KEY, VERSION = "ckptfmt.torch", 1
# That of a pytree.
PYTREE = "ckptfmt.jax"
# Metadata of a checkpoint of a state dict that the planner of DCP did not flatten.
WHOLE = "ckptfmt.torch.dcp.whole"
# Beside the state: by path of an optimizer, the names of its parameters.
PARAMETERS = "parameters"
# Leaves in the note of a quantized tensor.
PARTS = ("scales", "zero_points")
# Keys of the state of an optimizer.
OPTIMIZER = {"state", "param_groups"}
# Dtypes of torch that are stored as they are: no note names them.
PLAIN_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
# What reading a damaged tree raises, besides UnsupportedError for one of a later version.
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
# Characters of all paths of a state: a key of a megabyte may have a million values below it.
PATHS_SIZE_MAX = 256 << 20

Kind = Literal["leaf", "list", "set", "dict", "value"]
Path = str | None  # None is the root


# ---- values --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Leaf:
    """A stored tensor, in the place of the value that it becomes.

    Attributes:
        name: its name in the checkpoint.
        kind: "tensor", "array" (of NumPy) or "scalar" (of NumPy).
        note: what its stored array does not say; the PARTS are leaves.
    """

    name: str
    kind: str = "tensor"
    note: dict[str, Any] = field(default_factory=dict)


class Size(tuple[Any, ...]):
    """A torch.Size, without torch."""

    def __repr__(self) -> str:
        return f"torch.Size({[*self]})"


class Dtype(str):
    """A dtype of torch, without torch."""

    __repr__ = str.__str__


class Device(str):
    """A device of torch, without torch."""

    def __repr__(self) -> str:
        kind, _, index = str(self).partition(":")
        return f"device(type={kind!r}{index and f', index={index}'})"


def _state_dict(pairs: list[Any], versions: dict[str, Any]) -> OrderedDict[Any, Any]:
    state = OrderedDict(pairs)
    known = {name: one for name, one in versions.items() if isinstance(one, dict)}
    state._metadata = known  # type: ignore[attr-defined]
    return state


def _defaultdict(pairs: list[Any], factory: str | None) -> defaultdict[Any, Any]:
    return defaultdict(FACTORIES[factory], pairs)


def _dtype(name: str) -> Dtype:
    return Dtype(f"torch.{name}")


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _buffer(text: str) -> io.BytesIO:
    return io.BytesIO(_bytes(text))


# Of a defaultdict, by name.
FACTORIES: dict[str | None, Any] = {
    None: None,
    **{
        one.__name__: one
        for one in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
    },
}


class Tag(NamedTuple):
    """A row of the grammar.

    Attributes:
        kind: of the node.
        make: makes the Python value of the content, and of what `more` names.
        type: of the value, where that says which tag it has.
        write: returns the text of a value.
        more: other keys that the node has.
    """

    kind: Kind
    make: Callable[..., Any]
    type: type | None = None
    write: Callable[[Any], str] = str
    more: tuple[str, ...] = ()


TAGS = {
    **dict.fromkeys(("$tensor", "$array", "$scalar"), Tag("leaf", Leaf)),
    "$dict": Tag("dict", dict, dict),
    "$ordered_dict": Tag("dict", OrderedDict, OrderedDict),
    "$counter": Tag("dict", lambda pairs: Counter(dict(pairs)), Counter),
    "$defaultdict": Tag("dict", _defaultdict, defaultdict, more=("factory",)),
    "$state_dict": Tag("dict", _state_dict, more=("versions",)),
    "$tuple": Tag("list", tuple, tuple),
    "$size": Tag("list", Size),
    "$deque": Tag("list", deque, deque, more=("maxlen",)),
    "$set": Tag("set", set, set),
    "$frozenset": Tag("set", frozenset, frozenset),
    "$float": Tag("value", float, float, repr),
    "$complex": Tag("value", complex, complex, repr),
    "$path": Tag("value", pathlib.Path, type(pathlib.Path())),
    "$bytes": Tag("value", _bytes, bytes, _text),
    "$bytesio": Tag("value", _buffer, io.BytesIO, lambda buffer: _text(buffer.getvalue())),
    "$dtype": Tag("value", _dtype, write=lambda dtype: str(dtype).removeprefix("torch.")),
    "$device": Tag("value", Device),
}
_DICT, _LIST, _ITSELF = Tag("dict", dict), Tag("list", list), Tag("value", lambda value: value)


# ---- nodes ---------------------------------------------------------------------------------------


def text_of(**whole: Any) -> str:
    """Return the member of the metadata with a state, and with what is beside it."""
    import json  # noqa: PLC0415 (reading a tensor needs none)

    return json.dumps({"version": VERSION, **whole}, separators=(",", ":"))


def parse(text: Any) -> dict[str, Any]:
    """Return the member of the metadata, with its "state".

    Raises:
        UnsupportedError: its version is not known.
        DAMAGED: it cannot be read. So do the functions below.
    """
    import json  # noqa: PLC0415 (as above)

    whole: dict[str, Any] = json.loads(text)
    if whole["version"] != VERSION:
        raise UnsupportedError(f"the state has version {whole['version']!r}, not {VERSION}")
    return whole


def dict_node(pairs: list[Any]) -> Any:
    """Return the node of a dict with these pairs of nodes."""
    is_plain = all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs)
    return dict(pairs) if is_plain else {"$dict": pairs}


def tag_of(node: Any, path: Path = None) -> tuple[str, Tag]:
    """Return the tag of a node, "" if it has none, and its row.

    Raises:
        UnsupportedError: the tag is unknown.
    """
    if not isinstance(node, dict):
        return "", _LIST if isinstance(node, list) else _ITSELF
    tag = next(iter(node), "")
    if not tag.startswith("$"):
        return "", _DICT
    if tag not in TAGS:
        raise UnsupportedError(
            f"the state has a value of kind {tag!r}, which this version does not know",
            tensor=path or None,
        )
    return tag, TAGS[tag]


def children(node: Any, path: Path = None) -> list[tuple[Any, Any]]:
    """Return the nodes below one, each with its key: text, a position, or a node."""
    tag, row = tag_of(node, path)
    if row.kind == "leaf":
        parts = [(part, node[part]) for part in PARTS if part in node]
        if any(tag_of(one)[1].kind != "leaf" for _, one in parts):
            raise ValueError("scales and zero_points must be tensors")
        return parts
    if row.kind == "value":
        return []
    if row is _DICT:
        return list(node.items())
    content = node[tag] if tag else node
    if not isinstance(content, list) or (row.more and not node.keys() >= {*row.more}):
        raise ValueError(" and ".join((f"{tag} must have a list", *row.more)))
    return [(key, one) for key, one in content] if row.kind == "dict" else [*enumerate(content)]


def path_key(key: Any) -> str:
    """Return the part of a path that a key is."""
    if isinstance(key, (dict, list)):
        key = decode(key, _no_key)
        hash(key)  # or TypeError
    return str(key)


def slashed(key: object) -> str:
    """Return the part of the name of a pytree's leaf that a key is: text without slashes, different
    for different texts."""
    return str(key).replace("%", "%25").replace("/", "%2F") or "%"


def _no_key(*_leaf: Any) -> Any:
    raise ValueError("a tensor is a key of a dict")


def below(path: Path, key: str) -> str:
    """Return the path of the node with this key below another one."""
    return key if path is None else f"{path}.{key}"


def _below_all() -> Callable[[Path, str], str]:
    """Return `below` for all nodes of a state, whose paths may not be far longer than the state."""
    left = PATHS_SIZE_MAX

    def checked(path: Path, key: str) -> str:
        nonlocal left
        found = below(path, key)
        left -= len(found)
        if left < 0:
            raise ValueError(f"the paths have more than {PATHS_SIZE_MAX} characters")
        return found

    return checked


def stored_name(node: Any, path: Path) -> str | None:
    """Return the name of the tensor of a leaf; None for other nodes."""
    tag, row = tag_of(node, path)
    if row.kind != "leaf":
        return None
    return (path or "") if node[tag] is True else str(node[tag])


class Place(NamedTuple):
    """A leaf in a state.

    Attributes:
        name: of the tensor.
        node: the leaf.
        is_part: whether it is in the note of another leaf.
        where: "state" of an optimizer, which learning rates and the like are as well; "" outside of
            optimizers; else "groups", "group" or "params".
        path: of the leaf.
    """

    name: str
    node: dict[str, Any]
    is_part: bool
    where: str
    path: str


def leaves(state: Any, unknown: list[str] | None = None) -> Iterator[Place]:
    """Yield the leaves of a state, in its order.

    Args:
        unknown: takes the paths of nodes with unknown tags, which are otherwise refused.
    """
    waiting: list[tuple[Path, Any, bool, str]] = [(None, state, False, "")]
    below = _below_all()
    while waiting:
        path, node, is_part, where = waiting.pop()
        try:
            pairs, name = children(node, path), stored_name(node, path)
        except UnsupportedError:
            if unknown is None:
                raise
            unknown.append(path or "")
            continue
        if name is not None:
            yield Place(name, node, is_part, where, path or "")
        for key, one in reversed(pairs):
            text = path_key(key)
            inside = _where(where, node, text, one)
            waiting.append((below(path, text), one, name is not None, inside))


def values(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the paths and Python values of a state, without its tensors, in its order. A list or
    set of values is one value. The indices of an optimizer's parameters are left out."""
    waiting: list[tuple[Path, Any, str]] = [(None, state, "")]
    below = _below_all()
    while waiting:
        path, node, where = waiting.pop()
        pairs, kind = children(node, path), tag_of(node, path)[1].kind
        is_plain = kind in ("list", "set") and all(
            tag_of(one)[1].kind == "value" for _, one in pairs
        )
        if where != "params" and (kind == "value" or is_plain):
            yield path or "", decode(node)
        for key, one in () if kind == "leaf" or is_plain else reversed(pairs):
            text = path_key(key)
            waiting.append((below(path, text), one, _where(where, node, text, one)))


def _where(where: str, node: Any, key: str, child: Any) -> str:
    """Return where a node is, of which the one above has `where`."""
    if where == "groups":
        return "group"
    if where == "group":
        return "params" if key == "params" or next(iter(node), "").startswith("$") else "state"
    if key not in OPTIMIZER or not (isinstance(node, dict) and node.keys() >= OPTIMIZER):
        return where
    is_list = isinstance(child, list) and all(isinstance(one, dict) for one in child)
    return "state" if key == "state" else "groups" if is_list else "params"


def decode(
    node: Any,
    leaf: Callable[[str, str, dict[str, Any]], Any] = Leaf,
    make: Mapping[str, Callable[..., Any]] | None = None,
    path: Path = None,
) -> Any:
    """Return the Python value of a node.

    Args:
        node: the node.
        leaf: makes what is in the place of a tensor, of its name, kind and note.
        make: makes the values of these tags instead.
        path: of the node.
    """
    tag, row = tag_of(node, path)
    if row is _ITSELF:
        return node
    pairs = [(key, path_key(key), one) for key, one in children(node, path)]
    found = [(key, decode(one, leaf, make, below(path, text))) for key, text, one in pairs]
    if row.kind == "leaf":
        note = {key: one for key, one in node.items() if key != tag} | dict(found)
        if note and not isinstance(note["dtype"], str):
            raise TypeError("a dtype must be text")
        if not all(type(size) is int and size >= 0 for size in note.get("shape", ())):
            raise ValueError("a shape must have sizes")
        return leaf(stored_name(node, path) or "", tag.removeprefix("$"), note)
    content: Any = [one for _, one in found]
    if row.kind == "dict":
        content = [(decode(key, _no_key, make), one) for key, one in found]
    elif row.kind == "value":
        content = node[tag]
    more = [decode(node[key], leaf, make, path) for key in row.more]
    return (make or {}).get(tag, row.make)(content, *more)
