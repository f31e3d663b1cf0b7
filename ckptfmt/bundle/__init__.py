# SPDX-License-Identifier: Apache-2.0
"""Read and write one checkpoint.

The object graph is here as bytes and keys, because a checkpoint is verified with it; what its names
mean is in `ckptfmt.naming`, which this package does not import.

reader.py        open, Reader
tensor.py        TensorHandle: one tensor, read on demand
state_tree.py    the grammar of a torch state in the metadata
meanings.py      what stored bits stand for: dtypes of torch that the format lacks
indexing.py      numpy indexing as a box to read
batch.py         many tensors in one batch
notebook.py      readers and handles in notebooks
writer.py        Writer
saving.py        save, save_async, save_v2
snapshot.py      copies of arrays that may change
incremental.py   what a save shares with its base
codec.py         compressed values
merge.py         merge: one checkpoint from the indexes of many
staging.py       parts in a temporary directory, then a merge
verify.py        verify: all values, and the object graph
findings.py      findings for people
completeness.py  whether a checkpoint is complete, and sound
comparing.py     two checkpoints compared tensor by tensor
graph.py         the object graph as bytes, keys and escaped names
graph_keys.py    which tensors the object graph names, and which are missing
"""
