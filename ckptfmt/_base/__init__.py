# SPDX-License-Identifier: Apache-2.0
"""What needs no file: names, dtypes, slices, arguments, arrays, threads.

names.py       paths as users give them, names of files and of tensors
patterns.py    which names a glob, regular expression or function means
renaming.py    the forms of `rename`
hints.py       names in messages, and those nearest to a missing one
arguments.py   checks of arguments
save_options.py  how a checkpoint is written: SaveOptions
dtypes.py      TensorFlow's codes and names, numpy's dtypes
casting.py     what a cast may change, and what it loses
values.py      values of arrays as text and as JSON
slices.py      slices of tensors as text
arrays.py      the array seam of saving: what an array is
targets.py     the array seam of loading: which memory may be written
adapters.py    which calls save and load an object of a framework
foreign.py     how other formats are recognised
untrusted.py   files, JSON, messages and pickles from outside, within bounds
threads.py     work shared among threads
background.py  the queue of background saves
progress.py    progress, reported to the caller
doors.py       the public names, each imported when it is first used
"""
