"""The loop of ``examples/ddp`` with DeepSpeed's ZeRO, stages 0 to 3.

    DS_ACCELERATOR=cpu holdfast run --standalone --nproc-per-node 2 examples/deepspeed/trainer.py --zero-stage 2

No compiler is needed: the optimizer is torch's own. A forward pass in stage 3 gathers weights, so that all ranks have
to make it together, also where one has fewer batches or fails. A whole copy is evaluated there instead; where that does
not fit, evaluate the engine's own module with ``collective_forward=True``.
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
from job import Best, Sabotage, metric_sinks, parser, say
from language import LanguageModel, count, held_out, next_letter_loss, training_batches


def main() -> None:
    """The whole job."""
    options = arguments()
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # which it would compile first, on CPUs
    deepspeed.init_distributed("gloo")
    torch.manual_seed(options.seed)
    engine = made_engine(LanguageModel(), options)

    counting = Sabotage(count, options.fail_evaluation)
    whole = LanguageModel() if options.zero_stage == 3 else engine.module
    evaluation = evaluate.Evaluation(
        whole, held_out(options.batch_size), counting, budget=options.budget, sinks=metric_sinks(options)
    )
    best = Best(options.patience)

    for step, texts in enumerate(training_batches(options.steps, options.batch_size, options.seed), start=1):
        loss = next_letter_loss(engine, texts)
        engine.backward(loss)
        engine.step()
        say(step, loss)

        if step % options.evaluate_every == 0:
            counting.step = step
            if whole is not engine.module:
                gather(engine.module, into=whole)
            result = evaluation.run(step)
            if best.consider(step, result) and options.save_best is not None:
                engine.save_checkpoint(options.save_best, tag="best", client_state={"step": step})  # all ranks write
            if best.enough:
                break

    best.say_end(step)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Those of all four examples, and ZeRO's stage."""
    added = parser(__doc__)
    sharded = "what is sharded: 1 optimizer state, 2 gradients too, 3 weights too"
    added.add_argument("--zero-stage", type=int, choices=range(4), default=1, help=sharded)
    added.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # DeepSpeed's own launcher gives it
    return added.parse_args()


def made_engine(model: LanguageModel, options: argparse.Namespace) -> deepspeed.DeepSpeedEngine:
    """The model in DeepSpeed's hands, with torch's Adam."""
    settings = {
        "train_micro_batch_size_per_gpu": options.batch_size,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0; the other examples do not clip
        # But for these zeros, so small a model would stay whole after its first forward.
        "zero_optimization": {
            "stage": options.zero_stage,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
        "steps_per_print": sys.maxsize,
    }
    optimizer = Adam(model.parameters(), lr=options.lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine


@torch.no_grad()
def gather(sharded: torch.nn.Module, into: torch.nn.Module) -> None:
    """Copies the weights of which each rank holds a share; all ranks take part."""
    shares = list(sharded.parameters())
    with deepspeed.zero.GatheredParameters(shares):
        for weight, share in zip(into.parameters(), shares, strict=True):
            weight.copy_(share)


if __name__ == "__main__":
    main()
