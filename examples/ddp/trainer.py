"""A training loop with DistributedDataParallel, and evaluation whose failures cannot stop it.

    holdfast run --standalone --nproc-per-node 2 examples/ddp/trainer.py

It also runs under ``torchrun``: the evaluation guard only needs a process group.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

from holdfast import evaluate

sys.path.append(str(Path(__file__).parents[1] / "language"))
from job import BestStep, FaultyCount, create_parser, metric_sinks, print_step
from language import LanguageModel, count, held_out, next_letter_loss, training_batches


def main() -> None:
    """Run the job."""
    options = create_parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    # In a function, so that DDP's reducer is freed first: one that holds the group's last reference
    # may deadlock.
    train(options)
    dist.destroy_process_group()


def train(options: Namespace) -> None:
    """Train; process group setup and teardown are in :func:`main`."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(LanguageModel())
    optimizer = Adam(model.parameters(), lr=options.lr)

    faulty_count = FaultyCount(count, options.fail_evaluation)
    evaluation = evaluate.Evaluation(
        model.module,
        held_out(options.batch_size),
        faulty_count,
        budget=options.budget,
        sinks=metric_sinks(options),
    )
    best = BestStep(options.patience)

    for step, texts in enumerate(
        training_batches(options.steps, options.batch_size, options.seed), start=1
    ):
        loss = next_letter_loss(model, texts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print_step(step, loss)

        if step % options.evaluate_every == 0:
            faulty_count.step = step
            result = evaluation.run(step)
            if best.consider(step, result):
                save(model, options.save_best, step)
            if best.is_exhausted:
                break

    best.print_summary(step)


def save(model: DistributedDataParallel, folder: Path | None, step: int) -> None:
    """Write the weights, which are the same on all ranks, from rank 0."""
    if folder is not None and dist.get_rank() == 0:
        written = folder / "best.pt.new"  # a crash during the write leaves the previous file
        torch.save({"step": step, "model": model.module.state_dict()}, written)
        written.replace(folder / "best.pt")


if __name__ == "__main__":
    main()
