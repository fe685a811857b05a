"""Every rank loads a checkpoint into a model with one layer more than the saved model."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

HEALTHY = "--healthy" in sys.argv  # disables the fault


def build(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    torch.manual_seed(0)
    holdfast.Checkpoint(folder[0], model=build(2)).save(10, asynchronous=False)
    model = build(2 if HEALTHY else 3)
    restored = holdfast.Checkpoint(folder[0], model=model).load(  # GUILTY
        Path(folder[0], "step-0000000010")
    )
    if dist.get_rank() == 0:
        print("step", restored.step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
