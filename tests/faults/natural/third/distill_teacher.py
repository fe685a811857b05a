"""The teacher on rank 0 computes its logits under autocast; the students reduce with float32 buffers, rank 0 with a bfloat16 tensor.

In the style of a knowledge-distillation example: one rank holds the big teacher, all ranks train students on the same batch.
"""
# case: processes=3 ending=crash causes=mismatched-dtype,collective-mismatch ranks=0 framework=ddp

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 12


def mlp(width, depth):
    layers = [nn.Linear(32, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


class Teacher:
    """Answers on rank 0 and hands the logits to everyone; the sum over the ranks has one term that is not zero."""

    def __init__(self, rank):
        self.net = mlp(256, 4).eval() if rank == 0 else None

    @torch.no_grad()
    def __call__(self, x):
        logits = self.net(x) if self.net is not None else torch.zeros(len(x), CLASSES)
        dist.all_reduce(logits)  # GUILTY
        return logits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--amp-after", type=int, default=20, help="full precision in the first steps, for stability")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    teacher = Teacher(rank)
    student = DDP(mlp(48, 1))
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    torch.manual_seed(1)
    t = args.temperature
    for step in range(args.steps):
        x = torch.randn(64, 32)
        amp = torch.autocast("cpu", torch.bfloat16) if step >= args.amp_after else contextlib.nullcontext()
        with amp:
            target = teacher(x)  # ALSO
            output = student(x)
            loss = F.kl_div(F.log_softmax(output.float() / t, -1), F.softmax(target.float() / t, -1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
