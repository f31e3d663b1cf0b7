# SPDX-License-Identifier: Apache-2.0
"""The datasets of HDF5 files, such as Keras's `.weights.h5`, read and written through h5py."""

from ckptfmt.formats.datasets import (
    Dataset,
    Datasets,
    is_variable_name,
    open_datasets,
    write_datasets,
)

__all__ = ["Dataset", "Datasets", "is_variable_name", "open_datasets", "write_datasets"]
