"""The loop of ``examples/ddp`` with DeepSpeed's ZeRO, stages 0 to 3.

    DS_ACCELERATOR=cpu holdfast run --standalone --nproc-per-node 2 examples/deepspeed/trainer.py
        --zero-stage 2

No compiler is needed: the optimizer is torch's own. A forward pass in stage 3 gathers weights, so
that all ranks must run it together, even if one has fewer batches or fails. Therefore a full copy
is evaluated; if that does not fit, evaluate the engine's module with ``collective_forward=True``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch.optim import Adam

from holdfast import evaluate

sys.path.append(str(Path(__file__).parents[1] / "language"))
from job import BestStep, FaultyCount, create_parser, metric_sinks, print_step
from language import LanguageModel, count, held_out, next_letter_loss, training_batches


def main() -> None:
    """Run the job."""
    options = parse_arguments()
    # Otherwise DeepSpeed compiles it first, on CPUs.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(options.seed)
    engine = create_engine(LanguageModel(), options)

    faulty_count = FaultyCount(count, options.fail_evaluation)
    full_model = LanguageModel() if options.zero_stage == 3 else engine.module
    evaluation = evaluate.Evaluation(
        full_model,
        held_out(options.batch_size),
        faulty_count,
        budget=options.budget,
        sinks=metric_sinks(options),
    )
    best = BestStep(options.patience)

    for step, texts in enumerate(
        training_batches(options.steps, options.batch_size, options.seed), start=1
    ):
        loss = next_letter_loss(engine, texts)
        engine.backward(loss)
        engine.step()
        print_step(step, loss)

        if step % options.evaluate_every == 0:
            faulty_count.step = step
            if full_model is not engine.module:
                gather(engine.module, into=full_model)
            result = evaluation.run(step)
            if best.consider(step, result) and options.save_best is not None:
                engine.save_checkpoint(
                    options.save_best, tag="best", client_state={"step": step}
                )  # all ranks write
            if best.is_exhausted:
                break

    best.print_summary(step)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Parse the options of all four examples, and the ZeRO stage."""
    parser = create_parser(__doc__)
    sharded = "what is sharded: 1 optimizer state, 2 gradients too, 3 weights too"
    parser.add_argument("--zero-stage", type=int, choices=range(4), default=1, help=sharded)
    # Passed by DeepSpeed's launcher.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def create_engine(model: LanguageModel, options: argparse.Namespace) -> deepspeed.DeepSpeedEngine:
    """Create the DeepSpeed engine, with torch's Adam."""
    config = {
        "train_micro_batch_size_per_gpu": options.batch_size,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0; the other examples do not clip
        # Without these zeros, such a small model would stay gathered after its first forward.
        "zero_optimization": {
            "stage": options.zero_stage,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
        "steps_per_print": sys.maxsize,
    }
    optimizer = Adam(model.parameters(), lr=options.lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


@torch.no_grad()
def gather(sharded: torch.nn.Module, into: torch.nn.Module) -> None:
    """Copy the sharded weights into a full model; called on all ranks."""
    shares = list(sharded.parameters())
    with deepspeed.zero.GatheredParameters(shares):
        for weight, share in zip(into.parameters(), shares, strict=True):
            weight.copy_(share)


if __name__ == "__main__":
    main()
