"""A training loop with DistributedDataParallel, and evaluation that cannot end it.

    holdfast run --standalone --nproc-per-node 2 examples/ddp/trainer.py

It runs under ``torchrun`` too: the guard needs a process group and nothing else.
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
from job import Best, Sabotage, metric_sinks, parser, say
from language import LanguageModel, count, held_out, next_letter_loss, training_batches


def main() -> None:
    """The whole job."""
    options = parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    train(options)  # DDP's reducer is gone after it: with the group's last reference in it, it may wait for ever
    dist.destroy_process_group()


def train(options: Namespace) -> None:
    """All but joining and leaving the group."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(LanguageModel())
    optimizer = Adam(model.parameters(), lr=options.lr)

    counting = Sabotage(count, options.fail_evaluation)
    evaluation = evaluate.Evaluation(
        model.module, held_out(options.batch_size), counting, budget=options.budget, sinks=metric_sinks(options)
    )
    best = Best(options.patience)

    for step, texts in enumerate(training_batches(options.steps, options.batch_size, options.seed), start=1):
        loss = next_letter_loss(model, texts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)

        if step % options.evaluate_every == 0:
            counting.step = step
            result = evaluation.run(step)
            if best.consider(step, result):
                save(model, options.save_best, step)
            if best.enough:
                break

    best.say_end(step)


def save(model: DistributedDataParallel, folder: Path | None, step: int) -> None:
    """All ranks hold the same weights; one writes them."""
    if folder is not None and dist.get_rank() == 0:
        written = folder / "best.pt.new"  # who dies while it is written leaves the one before
        torch.save({"step": step, "model": model.module.state_dict()}, written)
        written.replace(folder / "best.pt")


if __name__ == "__main__":
    main()
