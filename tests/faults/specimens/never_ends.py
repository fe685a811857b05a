"""Training is over and the others have ended; rank 1 waits for a tracker that never answers its last flush."""

import queue
import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # leaves the fault out
STEPS = 40


class Tracker:
    """A client whose server is gone: what it sends is never acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: queue.Queue[int] = queue.Queue()

    def finish(self) -> None:
        self.acknowledged.get()  # GUILTY


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(128)
    for _ in range(STEPS):
        gradient = torch.tanh(weights @ weights)
        dist.all_reduce(gradient)
        weights -= 1e-4 * gradient
    dist.destroy_process_group()
    if rank == 1 and not HEALTHY:
        Tracker().finish()


if __name__ == "__main__":
    main()
