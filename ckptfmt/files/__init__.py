# SPDX-License-Identifier: Apache-2.0
"""One seam for paths and URLs: the files of checkpoints, those beside them, and their places.

places.py       files by path or URL
folder.py       a directory by path or URL: `folder_of`
local_folder.py one of the file system: descriptor, lock, sweep
store_folder.py one of an object store
temporary.py    temporary files and directories, locked while their writer is alive
orphans.py      which checkpoints of a manager have files in a directory
outputs.py      plain files written beside checkpoints
state_file.py   the `checkpoint` file of a directory
state_paths.py  which checkpoints its paths name
locate.py       the checkpoint that a path means
"""
