"""Trains one small vision-language model under the framework of your choice, with the same losses under each.

    torchrun --standalone --nproc-per-node 4 examples/frameworks/train.py --strategy zero2
    torchrun --standalone --nproc-per-node 4 examples/frameworks/train.py --strategy fsdp2 --save saved

On GPUs with NCCL where every rank has one, else on CPUs with gloo. `python -m benchmarks.frameworks` runs all of them
in turns, and says which to take. A checkpoint of one framework is made into that of another by `holdfast ckpt convert`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import Meter, checkpoint, communication, everywhere
from model import SIZES, VisionLanguageModel, batch_of
from strategies import STRATEGIES, Job, Trainer, imported_deepspeed, trainer_of


def main() -> None:
    """The whole job."""
    options = arguments()
    device = join_job()
    run(options, device)  # DDP's reducer is gone after it: with the group's last reference in it, it may wait for ever
    dist.destroy_process_group()


def run(options: argparse.Namespace, device: torch.device) -> None:
    """All but joining and leaving the group."""
    job = Job(device, options.batch_size, options.lr, bf16=options.precision == "bf16", copies=copies_of(options))
    if options.strategy.startswith("zero"):
        imported_deepspeed(device)  # before memory is measured: its libraries are no part of training
    meter = Meter(device)
    torch.manual_seed(0)
    model = VisionLanguageModel(SIZES[options.size]).to(device)
    model.vision.requires_grad_(not options.freeze_vision)
    parameters = sum(each.numel() for each in model.parameters())
    trainer = trainer_of(options.strategy, model, job)
    if options.load:
        trainer.load(options.load)
    meter.ready()

    losses = train(trainer, meter, options, device)
    figures = meter.result(options.batch_size) | {"losses": losses}
    if options.save:
        figures["checkpoint"] = checkpoint(trainer.save, options.save)
    if options.measure:
        figures["communication"] = measured_communication(trainer, options, device)
    if options.measure and dist.get_rank() == 0:
        described = describe(options, device, parameters)
        options.measure.write_text(json.dumps(described | figures, indent=2), encoding="utf-8")
    dist.barrier()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp2")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model (default: %(default)s)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="what is computed in")
    parser.add_argument("--freeze-vision", action="store_true", help="train the projector and the language model alone")
    parser.add_argument(
        "--copies", type=int, help="hybrid: groups of ranks that hold all weights (default: hosts, or 2)"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4, help="images of a step and rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--load", type=Path, metavar="PATH", help="go on from a checkpoint of this framework")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write one at the end")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="write figures there as JSON")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # DeepSpeed's own launcher gives it
    return parser.parse_args()


def join_job() -> torch.device:
    """Joins the process group that the launcher describes."""
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    return device


def copies_of(options: argparse.Namespace) -> int:
    """How many groups of ranks hold all weights: 1, but for the hybrid form."""
    if options.strategy != "hybrid":
        return 1
    ranks = dist.get_world_size()
    copies = options.copies or max(2, ranks // int(os.environ["LOCAL_WORLD_SIZE"]))
    if copies < 2 or ranks % copies or ranks == copies:
        sys.exit(f"{ranks} ranks cannot be {copies} groups of two ranks or more, as the hybrid form needs")
    return copies


def train(trainer: Trainer, meter: Meter, options: argparse.Namespace, device: torch.device) -> list[float]:
    """The steps; the mean loss over all ranks before each. A loaded checkpoint says at which step to go on."""
    first, losses = trainer.steps, []
    for number in range(first, first + options.steps):
        batch = batch_of(SIZES[options.size], options.batch_size, number, dist.get_rank(), device)
        with meter.step():
            losses.append(trainer.step(batch))
    ranks = everywhere(torch.stack(losses).float().cpu().numpy()) if losses else []
    means = [float(sum(each) / len(ranks)) for each in zip(*ranks, strict=True)]
    if dist.get_rank() == 0:
        for number, loss in enumerate(means, start=first + 1):
            print(f"step {number:3d}  loss {loss:.6f}", flush=True)
    return means


def measured_communication(trainer: Trainer, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Of two more steps, which are not among those that were asked for."""
    batch = batch_of(SIZES[options.size], options.batch_size, 0, dist.get_rank(), device)
    return communication(lambda: trainer.step(batch), device)


def describe(options: argparse.Namespace, device: torch.device, parameters: int) -> dict[str, Any]:
    """What was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "strategy": options.strategy, "size": options.size, "parameters": parameters, "ranks": dist.get_world_size(),
        "device": name, "precision": options.precision, "batch_size": options.batch_size,
        "frozen_vision": options.freeze_vision, "torch": torch.__version__,
    }  # fmt: skip


if __name__ == "__main__":
    main()
