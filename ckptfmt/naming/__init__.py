# SPDX-License-Identifier: Apache-2.0
"""From stored names to what people call them, and back.

It reads checkpoints through `ckptfmt.bundle`, which does not import it: a Reader there knows stored
names only, `ckptfmt.Reader` here those that people use as well.

reader.py        `ckptfmt.Reader` and `ckptfmt.open`
tensor_names.py  all names of the tensors of a checkpoint
roles.py         which tensors are weights, and which the state of an optimizer
states.py        states of `ckptfmt.torch` as values
metadata.py      metadata that name tensors, after an edit
graphs.py        the object graph after an edit
"""
