"""After training rank 1 waits for a tracker that never acknowledges its flush; the others have exited."""

import queue
import sys

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS = 40


class Tracker:
    """A client whose server is down and never acknowledges."""

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
