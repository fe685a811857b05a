import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class StopRequest:
    """Signals and the time limit are seen per process; the decision is made by all together."""

    def __init__(self, limit_minutes, device):
        self.deadline = time.monotonic() + 60 * limit_minutes
        self.device = device
        self.received = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, frame):
        self.received = True

    def local(self):
        return self.received or time.monotonic() > self.deadline

    def agreed(self):
        flag = torch.tensor([self.local()], dtype=torch.int, device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


class Session:
    def __init__(self, args):
        self.args = args
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        torch.manual_seed(11 + self.rank)
        net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).to(self.device)
        self.model = DistributedDataParallel(net, device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.path = Path(args.out) / "state.pt"
        self.step = 0
        if self.rank == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def resume(self):
        found = torch.tensor([self.rank == 0 and self.path.exists()], dtype=torch.int, device=self.device)
        dist.broadcast(found, src=0)
        if not found.item():
            return
        state = torch.load(self.path, map_location=self.device)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        torch.manual_seed(11 + self.rank + 1000 * self.step)

    def save(self):
        if self.rank == 0:
            part = self.path.with_suffix(".part")
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
            }
            torch.save(state, part)
            part.replace(self.path)
        dist.barrier()

    def train_step(self):
        x = torch.randn(256, 128, device=self.device)
        loss = (self.model(x) - x.roll(1, dims=1)).abs().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss

    def run(self):
        stop = StopRequest(self.args.minutes, self.device)
        self.resume()
        while self.step < self.args.steps:
            loss = self.train_step()
            if self.step % 100 == 0 and self.rank == 0:
                print(f"step {self.step} loss {loss.item():.4f}")
            if stop.agreed():
                self.save()
                dist.destroy_process_group()
                sys.exit(0)
        self.save()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="session")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=230)
    Session(parser.parse_args()).run()
