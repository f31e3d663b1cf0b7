# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt convert`: write a checkpoint in another format, or at another level."""

from __future__ import annotations

import argparse
import glob
import os
import re

import ckptfmt
from ckptfmt import InvalidError, huggingface
from ckptfmt._base.arguments import invalid
from ckptfmt._base.hints import some
from ckptfmt._base.renaming import Rename
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_cast, add_level, add_result_options, add_selection, cast
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.renaming import renames
from ckptfmt.cli.results import changed, listed, print_result
from ckptfmt.files.locate import locate
from ckptfmt.files.outputs import checkpoint_files
from ckptfmt.formats.safetensors import INDEX, base_of
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import open_tensors
from ckptfmt.recipe.sources import Format, format_of

# Tables of ckptfmt.huggingface.
TABLES = {
    "albert": huggingface.ALBERT,
    "bert": huggingface.BERT,
    "electra": huggingface.ELECTRA,
    "electra-generator": huggingface.ELECTRA_GENERATOR,
    "t5": huggingface.T5,
}


EPILOG = f"""
SOURCE is a path as for `ckptfmt inspect`, or a safetensors file, its index, a .npz or .h5 file, or
a directory of torch.distributed.checkpoint. DESTINATION is the prefix of a TensorFlow checkpoint,
or a file whose extension names its format (.safetensors, .npz, .h5; a .weights.h5
file of Keras only if the names in SOURCE are those of such files). The source is verified while
it is read, and the result is read back before it becomes visible. Other formats have no place for
TensorFlow's object graph. What the result lacks, and tensors that the object graph of SOURCE refers
to and that are missing, are named on standard error.

A FILTER, and OLD=NEW or /REGEX/=NEW, are those of `ckptfmt edit`, and mean the names in SOURCE. A
TABLE has the names and layouts of Hugging Face's PyTorch models; it is one of
{", ".join(TABLES)}.
Between TensorFlow checkpoints, `ckptfmt edit` drops, keeps and casts.

levels of TensorFlow checkpoints:
  v2       byte for byte what TensorFlow writes
  v2+      with chunk checksums and metadata, which TensorFlow skips
  ckptfmt  compressed tensors; TensorFlow refuses the checkpoint

examples:
  ckptfmt convert model.ckpt-1000 model.safetensors --cast float32
  ckptfmt convert model.safetensors.index.json ckpt/model
  ckptfmt convert bert_model.ckpt model.safetensors --rename bert
  ckptfmt convert run w.safetensors --keep 'net.*' --rename 'net.*=*'
  ckptfmt convert --level ckptfmt model.ckpt-1000 archive/model
  ckptfmt convert --level v2 archive/model for-tensorflow/model
  ckptfmt convert --shards 8 model.ckpt-1000 divided/model

exit status:
  0  converted
  1  the source is damaged; nothing has changed
  2  wrong usage, no checkpoint at SOURCE, or the result could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint, or a file of another format")
    add("destination", metavar="DESTINATION", help="prefix or file of the result")
    add(
        "--to",
        choices=["tensorflow", "safetensors", "npz", "hdf5"],
        help="format of the result (default: by the extension of DESTINATION)",
    )
    add_cast(parser)
    add_selection(parser, "OLD=NEW|TABLE", "other names; a TABLE also layouts")
    add(
        "--max-shard-size",
        dest="max_shard_bytes",
        metavar="SIZE",
        help="divide a safetensors result into files of at most SIZE (such as 5GB), with an index",
    )
    add("--shards", metavar="N", type=int, default=1, help="data files of a TensorFlow checkpoint")
    add_level(parser, "v2+", "")
    add(
        "--expansion-max",
        metavar="N",
        type=int,
        help="allow N times the bytes of a file of another format, if the file is trusted",
    )
    add(
        "--drop-metadata",
        action="store_true",
        help="leave the metadata out, damaged ones as well",
    )
    add(
        "--no-verify",
        dest="check_result",
        action="store_false",
        help="do not read the result back",
    )
    add_result_options(parser)


def run(options: argparse.Namespace) -> int:
    """Convert and return the exit status.

    Raises:
        CkptfmtError: nothing was converted (after a DurabilityUnknownError: it was).
    """
    source = options.source
    kind = format_of(source, exists=True)
    if kind == "tensorflow":
        source = locate(source)
    result = options.to or format_of(options.destination, exists=False)
    if result == "tensorflow":
        check_destination(options.destination, overwrite=options.overwrite)
    elif not options.overwrite:
        check_new(options.destination, in_several=options.max_shard_bytes is not None)
    most = options.expansion_max
    with Progress("converting", quiet=options.quiet) as progress:
        done = ckptfmt.convert(
            source,
            options.destination,
            to=result,
            cast=cast(options.cast),
            allow_loss=options.allow_loss,
            rename=rename_of(options.rename, kind, source),
            drop=options.drop or None,
            keep=options.keep or None,
            max_shard_bytes=_size(options.max_shard_bytes),
            level=options.level,
            shards=options.shards,
            compression=options.compression,
            drop_metadata=options.drop_metadata,
            check_result=options.check_result,
            progress=progress.update,
            limits=None if most is None else {"expansion_max": most},
        )
    files = (
        some(list(map(os.path.basename, checkpoint_files(done.path))), "")
        if result == "tensorflow"
        else ""
    )
    lines = [
        *listed("cast {}", done.casts.items(), changed),
        *listed("stored the bits of {}", done.bits.items(), changed),
        f"converted {text.path(source)} into {text.path(done.path)}"
        + (f": {text.printable(files)}" if files else ""),
    ]
    print_result(done, options, lines, missing=done.missing)
    return 0


def rename_of(given: list[str], kind: Format, source: str) -> Rename | None:
    """Return the `rename` argument of `ckptfmt.convert`."""
    for one in given:
        if "=" in one:
            continue
        if one not in TABLES:
            raise InvalidError(
                f"--rename {one!r}: expected OLD=NEW, /REGEX/=NEW, or one of the tables "
                f"{', '.join(TABLES)}"
            )
        if len(given) > 1:
            raise InvalidError(f"--rename {one!r}: a table can be given once, and with no other")
        return TABLES[one]
    if not given:
        return None
    if kind == "tensorflow":
        with ckptfmt.open(source) as reader:
            return renames(given, list(reader), reader.prefix, TensorNames(reader).shown)
    with open_tensors(kind, source) as (tensors, _):
        return renames(given, list(tensors), source)


def check_new(destination: str, *, in_several: bool) -> None:
    """Refuse a result in another format whose file, index or shards exist."""
    paths = [destination]
    if in_several:
        base = base_of(destination)
        number = "[0-9]" * 5
        shards = glob.glob(f"{glob.escape(base)}-{number}-of-{number}.safetensors")
        paths += [base + INDEX, *sorted(shards)]
    for path in paths:
        if os.path.lexists(path):
            raise InvalidError("DESTINATION exists (--overwrite replaces it)", path=path)


def _size(given: str | None) -> int | None:
    """Parse a number of bytes."""
    if given is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", given.strip(), re.IGNORECASE)
    if match is None:
        raise invalid("max_shard_bytes", f"{given!r} is not a size such as 5GB or 500MiB")
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
