# SPDX-License-Identifier: Apache-2.0
"""torch's distributed checkpoint in one process. No checksums. Tuned is two threads with a file
each, as its documentation has it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from sides import Call, Side, then_synced

logging.getLogger("torch.distributed").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


def version() -> str:
    return str(torch.__version__)


class Here(Side):
    def hold(self, arrays: dict[str, Any]) -> Any:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self, result: Any) -> Any:
        return {name: tensor.numpy() for name, tensor in result.items()}

    def _writer(self, folder: str, durable: bool) -> Any:
        tuned = {"thread_count": 2, "single_file_per_rank": False} if self.tuned else {}
        return dcp.FileSystemWriter(folder, sync_files=durable, **tuned)

    def save(self, folder: str, durable: bool) -> Call:
        def call() -> None:
            dcp.save(self.data, storage_writer=self._writer(folder, durable), no_dist=True)

        return then_synced(call, folder, durable)

    def load(self, folder: str) -> Call:
        def call() -> dict[str, Any]:
            found = {name: torch.empty(self.shape) for name in self.names}
            dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
            return found

        return call

    def load_out(self, folder: str) -> Call:
        found = {name: torch.ones(self.shape) for name in self.names}

        def call() -> dict[str, Any]:
            dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
            return found

        return call

    def loop(self, folder: str, mode: str, durable: bool) -> dict[str, Any]:
        if mode != "async":
            raise NotImplementedError
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        ones = torch.ones(self.shape)

        def update() -> None:
            for tensor in self.data.values():
                tensor.add_(ones)

        def finish(result: Any) -> None:
            with contextlib.suppress(AttributeError):
                result = result.upload_completion
            result.result()

        return {
            "update": update,
            "save": lambda: dcp.async_save(self.data, storage_writer=self._writer(folder, durable)),
            "in_place": lambda result: getattr(result, "upload_completion", result).done(),
            "finish": finish,
        }
