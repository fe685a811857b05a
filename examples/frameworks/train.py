"""Train a small vision-language model under a framework of your choice, with equal losses.

    torchrun --standalone --nproc-per-node 4 examples/frameworks/train.py --strategy zero2
    torchrun --standalone --nproc-per-node 4 examples/frameworks/train.py --strategy fsdp2 --save
        saved

Uses GPUs with NCCL if every rank has one, else CPUs with gloo. `python -m benchmarks.frameworks`
runs all of them and recommends one. `holdfast ckpt convert` converts checkpoints between
frameworks.
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
from measuring import Meter, gather_values, measure_checkpoint, measure_communication
from model import SIZES, VisionLanguageModel, batch_of
from strategies import STRATEGIES, Job, Trainer, create_trainer, import_deepspeed


def main() -> None:
    """Run the job."""
    options = parse_arguments()
    device = join_job()
    # In a function, so that DDP's reducer is freed first: one that holds the group's last reference
    # may deadlock.
    run(options, device)
    dist.destroy_process_group()


def run(options: argparse.Namespace, device: torch.device) -> None:
    """Train and measure; process group setup and teardown are in :func:`main`."""
    job = Job(
        device,
        options.batch_size,
        options.lr,
        bf16=options.precision == "bf16",
        copies=copies_of(options),
    )
    if options.strategy.startswith("zero"):
        # Before memory is measured: its libraries are not part of training.
        import_deepspeed(device)
    meter = Meter(device)
    torch.manual_seed(0)
    model = VisionLanguageModel(SIZES[options.size]).to(device)
    model.vision.requires_grad_(not options.freeze_vision)
    parameters = sum(each.numel() for each in model.parameters())
    trainer = create_trainer(options.strategy, model, job)
    if options.load:
        trainer.load(options.load)
    meter.ready()

    losses = train(trainer, meter, options, device)
    figures = meter.result(options.batch_size) | {"losses": losses}
    if options.save:
        figures["checkpoint"] = measure_checkpoint(trainer.save, options.save)
    if options.measure:
        figures["communication"] = communication_shares(trainer, options, device)
    if options.measure and dist.get_rank() == 0:
        described = describe(options, device, parameters)
        options.measure.write_text(json.dumps(described | figures, indent=2), encoding="utf-8")
    dist.barrier()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp2")
    parser.add_argument(
        "--size", choices=SIZES, default="small", help="model size (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="compute dtype"
    )
    parser.add_argument(
        "--freeze-vision",
        action="store_true",
        help="train only the projector and the language model",
    )
    parser.add_argument(
        "--copies",
        type=int,
        help="hybrid: number of replicas (default: number of hosts, at least 2)",
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4, help="images per step and rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--load", type=Path, metavar="PATH", help="resume from a checkpoint of this framework"
    )
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="save a checkpoint at the end")
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="write the measurements as JSON"
    )
    # Passed by DeepSpeed's launcher.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def join_job() -> torch.device:
    """Join the launcher's process group."""
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    return device


def copies_of(options: argparse.Namespace) -> int:
    """Return the number of rank groups that hold all weights: 1, except for hybrid."""
    if options.strategy != "hybrid":
        return 1
    ranks = dist.get_world_size()
    copies = options.copies or max(2, ranks // int(os.environ["LOCAL_WORLD_SIZE"]))
    if copies < 2 or ranks % copies or ranks == copies:
        sys.exit(
            f"{ranks} ranks cannot form {copies} groups of at least two ranks, as hybrid requires"
        )
    return copies


def train(
    trainer: Trainer, meter: Meter, options: argparse.Namespace, device: torch.device
) -> list[float]:
    """Run the steps; return the mean loss over all ranks before each. Resumes if loaded."""
    first, losses = trainer.steps, []
    for number in range(first, first + options.steps):
        batch = batch_of(SIZES[options.size], options.batch_size, number, dist.get_rank(), device)
        with meter.step():
            losses.append(trainer.step(batch))
    ranks = gather_values(torch.stack(losses).float().cpu().numpy()) if losses else []
    means = [float(sum(each) / len(ranks)) for each in zip(*ranks, strict=True)]
    if dist.get_rank() == 0:
        for number, loss in enumerate(means, start=first + 1):
            print(f"step {number:3d}  loss {loss:.6f}", flush=True)
    return means


def communication_shares(
    trainer: Trainer, options: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    """Measure two additional steps."""
    batch = batch_of(SIZES[options.size], options.batch_size, 0, dist.get_rank(), device)
    return measure_communication(lambda: trainer.step(batch), device)


def describe(options: argparse.Namespace, device: torch.device, parameters: int) -> dict[str, Any]:
    """Return a description of the job."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "strategy": options.strategy,
        "size": options.size,
        "parameters": parameters,
        "ranks": dist.get_world_size(),
        "device": name,
        "precision": options.precision,
        "batch_size": options.batch_size,
        "frozen_vision": options.freeze_vision,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
