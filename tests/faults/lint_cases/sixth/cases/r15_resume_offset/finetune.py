import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from samplers import build_iterator


class Finetuner:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        net = nn.Sequential(nn.Embedding(args.vocab, args.dim), nn.Linear(args.dim, 4 * args.dim), nn.GELU(),
                            nn.Linear(4 * args.dim, args.vocab))
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.train_iters)
        self.iteration = 0
        self.consumed_samples = 0

    def load(self):
        if not os.path.exists(self.args.checkpoint):
            return
        state = torch.load(self.args.checkpoint, map_location=self.device)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.iteration = state["iteration"]
        self.consumed_samples = state["consumed_samples"]

    def save(self):
        if self.rank == 0:
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(),
                     "scheduler": self.scheduler.state_dict(), "iteration": self.iteration,
                     "consumed_samples": self.consumed_samples}
            torch.save(state, self.args.checkpoint + ".tmp")
            os.replace(self.args.checkpoint + ".tmp", self.args.checkpoint)
        dist.barrier()

    def train_step(self, iterator):
        self.optimizer.zero_grad()
        for micro in range(self.args.grad_accum):
            (ids,) = next(iterator)
            ids = ids.to(self.device, non_blocking=True)
            last = micro == self.args.grad_accum - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                logits = self.model(ids[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / self.args.grad_accum
                loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.consumed_samples += self.args.micro_batch_size * self.size * self.args.grad_accum
        return loss.item() * self.args.grad_accum

    def train(self, dataset):
        iterator = build_iterator(dataset, self.consumed_samples, self.args.micro_batch_size, self.rank,
                                  self.size, self.args.grad_accum, self.args.workers)
        while self.iteration < self.args.train_iters:
            loss = self.train_step(iterator)
            self.iteration += 1
            if self.iteration % 10 == 0 and self.rank == 0:
                print(f"iter {self.iteration} samples {self.consumed_samples} loss {loss:.4f}")
            if self.iteration % self.args.save_interval == 0:
                self.save()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--checkpoint", default="finetune.pt")
    for name, value in (("vocab", 32000), ("dim", 512), ("micro-batch-size", 4), ("grad-accum", 4), ("workers", 2),
                        ("train-iters", 4000), ("save-interval", 100)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    tuner = Finetuner(args, torch.device("cuda", local_rank))
    tuner.load()
    tuner.train(TensorDataset(torch.load(args.data, map_location="cpu")))
    dist.destroy_process_group()
