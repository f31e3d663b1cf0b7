# SPDX-License-Identifier: Apache-2.0
"""What to take of a checkpoint, under which names, as what, and where to.

changes.py     which tensors are taken, under what names, as what dtypes
plan.py        what changes make of the tensors of a file
load.py        load, load_into, restore_v2
edit.py        edit
average.py     average
rescue.py      rescue
convert.py     convert
sources.py     what changes take of a checkpoint or a file of another format
checkpoint.py  into a checkpoint: values are linked, copied or made
export.py      into files of another format
values.py      values that are read, changed and written one after the other
opening.py     a checkpoint or a file of another format, to read only
"""
