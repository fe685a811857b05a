"""A healthy job with three long phases: the first step, a checkpoint, and an evaluation on rank 0.

Each exceeds the stall limit. While rank 0 saves or evaluates, the others wait in a barrier.
"""

import sys
import tempfile
import time

import torch
import torch.distributed as dist

LONG_S = (
    1.0 if "--healthy" in sys.argv else 12.0
)  # there is no fault to disable: --healthy shortens the long phases
STEPS, CHECKPOINT_AT, EVALUATE_AT = 90, 30, 60


class SlowStorage:
    """A file on slow storage, like a network file system under load."""

    def __init__(self, file, seconds_a_mebibyte: float) -> None:
        self.file = file
        self.seconds_a_mebibyte = seconds_a_mebibyte

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), 2**18):
            block = view[begin : begin + 2**18]
            self.file.write(block)
            time.sleep(self.seconds_a_mebibyte * len(block) / 2**20)
        return len(view)

    def flush(self) -> None:
        self.file.flush()


def compile_first() -> None:
    """Run Python code for a long time, like a compiler before the first step."""
    end = time.monotonic() + LONG_S
    table: dict[int, int] = {}
    while time.monotonic() < end:
        lower(table)


def lower(table: dict[int, int]) -> None:
    for number in range(20_000):
        table[number % 997] = table.get(number % 991, 0) + number


def train_step(weights: torch.Tensor) -> None:
    for _ in range(15):
        gradient = torch.tanh(weights @ weights)
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient


def save_checkpoint(rank: int, weights: torch.Tensor) -> None:
    if rank == 0:
        state = {"weights": weights, "moments": weights.repeat(48, 1)}  # 12 MiB
        with tempfile.TemporaryFile() as file:
            torch.save(state, SlowStorage(file, LONG_S / 12))
    dist.barrier()


def evaluate(rank: int, weights: torch.Tensor) -> None:
    if rank == 0:
        end, errors = time.monotonic() + LONG_S, []
        while time.monotonic() < end:
            answer = torch.tanh(torch.randn(64, 256) @ weights)
            errors.append(float(answer.square().mean()))
        print("evaluated on", len(errors), "batches", flush=True)
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.eye(256)
    for step in range(STEPS):
        if step == 0:
            compile_first()
        train_step(weights)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
        if step == CHECKPOINT_AT:
            save_checkpoint(rank, weights)
        if step == EVALUATE_AT:
            evaluate(rank, weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
