import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Timer:
    """Ends training after ``max_hours`` of training time, summed over restarts."""

    def __init__(self, max_hours, device, offset=0.0):
        self.budget = max_hours * 3600.0
        self.device = device
        self.offset = offset
        self.started = None

    def start(self):
        self.started = time.monotonic()

    def elapsed(self):
        return self.offset + time.monotonic() - self.started

    def exhausted(self):
        remaining = torch.tensor(self.budget - self.elapsed(), device=self.device)
        dist.broadcast(remaining, src=0)
        return remaining.item() <= 0.0


class WaveformModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, dim, 16, stride=8), nn.GELU(), nn.Conv1d(dim, dim, 8, stride=4))
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(dim, dim, 8, stride=4), nn.GELU(), nn.ConvTranspose1d(dim, 1, 16, stride=8)
        )

    def forward(self, wav):
        return self.decoder(self.encoder(wav))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        self.net = WaveformModel(args.dim).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.step = 0
        used = 0.0
        if args.resume and os.path.exists(args.checkpoint):
            state = torch.load(args.checkpoint, map_location=self.device)
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, used = state["step"], state["train_seconds"]
        self.model = DDP(self.net, device_ids=[self.device.index])
        self.timer = Timer(args.stop_time_hours, self.device, used)
        self.gen = torch.Generator(device=self.device)

    def batch(self):
        self.gen.manual_seed(self.step * dist.get_world_size() + self.rank)
        clean = torch.randn(self.args.batch_size, 1, 16008, device=self.device, generator=self.gen)
        noise = torch.randn(self.args.batch_size, 1, 16008, device=self.device, generator=self.gen)
        return clean + 0.3 * noise, clean

    def save(self):
        if self.rank == 0:
            state = {
                "net": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "train_seconds": self.timer.elapsed(),
            }
            torch.save(state, self.args.checkpoint + ".tmp")
            os.replace(self.args.checkpoint + ".tmp", self.args.checkpoint)
        dist.barrier()

    def train(self):
        self.timer.start()
        while self.step < self.args.max_update:
            noisy, clean = self.batch()
            out = self.model(noisy)
            loss = F.l1_loss(out, clean[..., : out.size(-1)])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.timer.exhausted():
                if self.rank == 0:
                    print(f"time is up at step {self.step}")
                break
            if self.step % self.args.save_interval == 0:
                self.save()
        self.save()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="denoiser.pt")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stop-time-hours", type=float, default=3.8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-update", type=int, default=200000)
    parser.add_argument("--save-interval", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    Trainer(cli).train()
    dist.destroy_process_group()
