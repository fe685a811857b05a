"""The loop of ``examples/ddp`` with FSDP2: weights, gradients and optimizer state are sharded.

    holdfast run --standalone --nproc-per-node 2 examples/fsdp2/trainer.py

A forward pass of a sharded model gathers weights, so that all ranks must run it together: also in
evaluation, where one rank has fewer batches and another fails. Here the weights are gathered once
before it, and each rank then evaluates independently. If the whole model does not fit, omit that
and use ``collective_forward=True``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Adam

from holdfast import evaluate

sys.path.append(str(Path(__file__).parents[1] / "language"))
from job import BestStep, FaultyCount, create_parser, metric_sinks, print_step
from language import LanguageModel, count, held_out, next_letter_loss, training_batches


def main() -> None:
    """Run the job."""
    options = create_parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    model = shard(LanguageModel())
    optimizer = Adam(model.parameters(), lr=options.lr)  # after sharding: it optimizes the shards

    faulty_count = FaultyCount(count, options.fail_evaluation)
    evaluation = evaluate.Evaluation(
        model,
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
            with gathered(model):
                result = evaluation.run(step)
            if best.consider(step, result):
                save(model, options.save_best, step)
            if best.is_exhausted:
                break

    best.print_summary(step)
    dist.destroy_process_group()


def shard(model: LanguageModel) -> LanguageModel:
    """Shard each block separately, and the rest with the whole model."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def gathered(model: LanguageModel) -> Iterator[None]:
    """Gather all weights on every rank, so that a forward pass needs no other rank."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            # The default of fully_shard.
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.reshard()


def save(model: LanguageModel, folder: Path | None, step: int) -> None:
    """Gather the shards on rank 0, which writes; called on all ranks."""
    if folder is None:
        return
    weights = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": weights}, folder / "best.pt")


if __name__ == "__main__":
    main()
