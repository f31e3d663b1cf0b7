# SPDX-License-Identifier: Apache-2.0
import torch.distributed.checkpoint as dcp

from ckptfmt.torch.dcp import StorageReader, StorageWriter


def sharded(state, other):
    dcp.save(state, storage_writer=StorageWriter("sharded"))
    dcp.load(other, storage_reader=StorageReader("sharded"))
