# SPDX-License-Identifier: Apache-2.0
"""A training loop that survives being killed at any moment: kill it, start it again, and it goes on
where it was, with the result that it would have had.

    python examples/training.py DIRECTORY
    python examples/training.py DIRECTORY --rank 0 --world-size 3 --run-id first   (and 1, and 2)

A linear model is fitted by gradient descent with momentum. Each of several workers has a part of
the rows, and the coordinator adds up the gradients. (A real model uses the network of its framework
for gradients and has a coordinator over that, such as ckptfmt.torch's; this one is for the
processes of one machine.) All workers of one start have the same run id, a new one for each start.
"""

import argparse
import contextlib
import os
import time
from dataclasses import dataclass, field
from pipes import PipeCoordinator

import numpy as np

import ckptfmt

ROWS, FEATURES, BATCHES = 240, 5, 4
RATE, MOMENTUM = 0.05, 0.9


@dataclass
class Model:
    """What must survive: the weights, and the state of the optimizer."""

    weights: np.ndarray = field(default_factory=lambda: np.zeros(FEATURES))
    momentum: np.ndarray = field(default_factory=lambda: np.zeros(FEATURES))


def rows_of(rank: int, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of one worker."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(ROWS, FEATURES))
    targets = inputs @ np.arange(1.0, FEATURES + 1) + random.normal(scale=0.01, size=ROWS)
    return inputs[rank::world_size], targets[rank::world_size]


def add_up(values: np.ndarray, coordinator: ckptfmt.sharded.Coordinator) -> np.ndarray:
    """Return the sum over all workers, bit for bit the same in all of them."""
    gathered = coordinator.gather(values.tobytes())
    total = None
    if gathered is not None:
        total = sum(np.frombuffer(one) for one in gathered).tobytes()
    return np.frombuffer(coordinator.broadcast(total))


def train(
    directory: str, coordinator: ckptfmt.sharded.Coordinator, epochs: int, pause: float
) -> None:
    """Train from where the last run stopped, and back up after each batch."""
    inputs, targets = rows_of(coordinator.rank, coordinator.world_size)
    model = Model()
    state = ckptfmt.tf.TrainingState(model, directory, coordinator=coordinator)
    restored = state.restore()
    first_epoch, first_batch = state.maybe_load_initial_counters_from_ckpt(BATCHES, 0, "train")
    how = "continues" if restored else "starts"
    print(f"{how} at epoch {first_epoch} batch {first_batch}", flush=True)
    for epoch in range(first_epoch, epochs):
        for batch in range(first_batch if epoch == first_epoch else 0, BATCHES):
            chosen = np.random.default_rng([epoch, batch]).permutation(len(inputs))[:20]
            errors = inputs[chosen] @ model.weights - targets[chosen]
            sums = np.append(inputs[chosen].T @ errors, [errors @ errors, len(errors)])
            *gradient, loss, count = add_up(sums, coordinator)
            model.momentum *= MOMENTUM
            model.momentum += np.array(gradient) / count
            model.weights -= RATE * model.momentum
            time.sleep(pause)  # the time of a real batch
            state.back_up(epoch, None if batch == BATCHES - 1 else batch)
            print(f"epoch {epoch} batch {batch} loss {loss / count:.6f}", flush=True)
    coordinator.barrier("trained")
    state.delete_backup()
    print("weights", model.weights.tobytes().hex(), flush=True)


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="A training loop that survives being killed.")
    parser.add_argument("directory", help="where the backups are kept; the same for all workers")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a batch takes")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument(
        "--run-id", help="the name of this start of all workers; needed for several"
    )
    given = parser.parse_args()
    if given.world_size > 1 and given.run_id is None:
        parser.error("several workers need a --run-id that was never used before")
    with contextlib.ExitStack() as stack:
        coordinator: ckptfmt.sharded.Coordinator = ckptfmt.sharded.SingleProcess()
        if given.world_size > 1:
            os.makedirs(given.directory, exist_ok=True)
            address = os.path.join(given.directory, f"{given.run_id}.socket")
            coordinator = PipeCoordinator(address, given.rank, given.world_size)
        stack.enter_context(coordinator)
        train(given.directory, coordinator, given.epochs, given.pause)


if __name__ == "__main__":
    main()
