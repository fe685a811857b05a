"""Reasons to stop that only one rank may see (bad loss, wall clock, SIGTERM) are merged in place before anybody acts."""
import os
import signal
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def merge_flags(flags: torch.Tensor) -> None:
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)


class StopController:
    REASONS = ("non-finite loss", "wall clock", "signal")

    def __init__(self, device, every: int, budget_s: float):
        self.device, self.every, self.budget = device, every, budget_s
        self.began = time.monotonic()
        self.signalled = False
        self.bad = torch.zeros((), device=device)
        self.active = []
        self._ticks = 0
        self._previous = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGUSR1)}

    def _on_signal(self, signum, frame):
        self.signalled = True

    def observe(self, loss: torch.Tensor) -> None:
        self.bad += (~torch.isfinite(loss.detach())).float()

    @property
    def stop(self) -> bool:
        return len(self.active) > 0

    def poll(self) -> None:
        self._ticks += 1
        if self._ticks % self.every:
            return
        late = time.monotonic() - self.began > self.budget
        flags = torch.stack([(self.bad > 0).float(), torch.tensor(float(late), device=self.device),
                             torch.tensor(float(self.signalled), device=self.device)])
        merge_flags(flags)
        self.active = [name for name, value in zip(self.REASONS, flags.tolist()) if value > 0]

    def restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


class Checkpointer:
    def __init__(self, path: str):
        self.path = path

    def save(self, module: nn.Module, step: int) -> None:
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": module.state_dict()}, self.path + ".new")
            os.replace(self.path + ".new", self.path)
        dist.barrier()


def batches(rank: int, device):
    gen = torch.Generator().manual_seed(40 + rank)
    while True:
        x = torch.randn(32, 10, generator=gen)
        yield x.to(device), (x[:, 0] * x[:, 1]).unsqueeze(1).to(device)


def train(model, opt, controller, checkpointer, max_steps, device):
    step, data = 0, batches(dist.get_rank(), device)
    while step < max_steps:
        x, y = next(data)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        step += 1
        controller.observe(loss)
        controller.poll()
        if controller.stop:
            break
    if "non-finite loss" in controller.active:
        if dist.get_rank() == 0:
            print(f"stopped at step {step}: {controller.active}, nothing saved")
        return step
    checkpointer.save(model.module, step)
    return step


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    controller = StopController(device, every=10, budget_s=float(os.environ.get("TIME_BUDGET_S", "600")))
    try:
        net = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1)).to(device)
        model = DDP(net, device_ids=[device.index] if cuda else None)
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        steps = train(model, opt, controller, Checkpointer("last.pt"), 100, device)
        if dist.get_rank() == 0:
            print(f"{steps} steps done")
    finally:
        controller.restore()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
