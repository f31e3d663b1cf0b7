# SPDX-License-Identifier: Apache-2.0
"""Other checkpoint formats, as conversions read and write them.

The module of a format has `open_tensors(path, damaged=False)`, a context manager that gives its
tensors and text metadata, and `holds(dtype)`; one that is written has `write(path, kinds, metadata,
read)` as well. `tensors` says what these are.

tensors.py      tensors that are read box by box, and files of bytes
safetensors.py  safetensors, and models of several such files
torch_state.py  a state of torch in safetensors: tied names
npz.py          NumPy's .npz
hdf5.py         HDF5
datasets.py     the datasets of HDF5 files
dcp.py          directories of torch.distributed.checkpoint
"""
