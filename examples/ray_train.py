# SPDX-License-Identifier: Apache-2.0
"""A Ray Train job whose workers write one checkpoint together, straight to shared storage.

    python examples/ray_train.py DIRECTORY [--workers 2] [--steps 4]

Each worker has some rows of a table and writes them as slices. Rank 0 merges the parts, which moves
no tensor bytes, and reports the result to Ray with NO_UPLOAD, because it is where it belongs. Ray
keeps the newest two. Run it again with more steps and another number of workers: Ray finds the
newest checkpoint, and each worker reads its own rows. (Workers of a TorchTrainer can use
ckptfmt.torch instead.)
"""

import argparse
import os

import numpy as np
import ray
import ray.train
import ray.train.collective
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import ckptfmt

RUN = "table"
SHAPE = (1000, 8)


def rows_of(rank: int, world_size: int) -> slice:
    """Return the rows of one worker."""
    return slice(SHAPE[0] * rank // world_size, SHAPE[0] * (rank + 1) // world_size)


def save(directory: str, step: int, mine: np.ndarray, rows: slice) -> None:
    """Write the rows of this worker; in rank 0, merge the parts. All workers call this."""
    context = ray.train.get_context()
    prefix = os.path.join(directory, f"step-{step}", "model")
    parts = [f"{prefix}.part-{rank}" for rank in range(context.get_world_size())]
    with ckptfmt.Writer(parts[context.get_world_rank()]) as writer:
        writer.add_slice("table", mine, shape=SHAPE, offset=(rows.start, 0))
        if context.get_world_rank() == 0:
            writer.add("step", np.array(step))
    ray.train.collective.barrier()
    checkpoint = None
    if context.get_world_rank() == 0:
        ckptfmt.merge(parts, prefix, inputs="consume")
        checkpoint = ray.train.Checkpoint.from_directory(os.path.dirname(prefix))
    mode = ray.train.CheckpointUploadMode.NO_UPLOAD
    ray.train.report({"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=mode)


def train(config: dict) -> None:
    """Train in one worker, from where the last checkpoint is."""
    context = ray.train.get_context()
    rows = rows_of(context.get_world_rank(), context.get_world_size())
    mine, start = np.zeros((rows.stop - rows.start, SHAPE[1])), 0
    newest = ray.train.get_checkpoint()
    if newest:
        with ckptfmt.open(os.path.join(newest.path, "model")) as checkpoint:
            mine = checkpoint["table"][rows]  # only these bytes are read
            start = int(checkpoint["step"].read()) + 1
    for step in range(start, config["steps"]):
        mine += 1  # the training
        save(config["directory"], step, mine, rows)


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="A Ray Train job with one checkpoint.")
    parser.add_argument("directory", help="shared storage: all workers see it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    directory = os.path.abspath(given.directory)
    ray.init(num_cpus=given.workers, include_dashboard=False)
    try:
        trainer = DataParallelTrainer(
            train,
            # With NO_UPLOAD, checkpoints must be below the directory of the run.
            train_loop_config={"directory": os.path.join(directory, RUN), "steps": given.steps},
            scaling_config=ray.train.ScalingConfig(num_workers=given.workers),
            run_config=ray.train.RunConfig(
                name=RUN,
                storage_path=directory,
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            ),
        )
        print("checkpoint", trainer.fit().checkpoint.path)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
