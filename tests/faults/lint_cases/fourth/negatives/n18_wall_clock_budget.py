import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


class Budget:
    """Asks every few steps whether the job should end: time is nearly up, or SLURM sent SIGUSR1."""

    def __init__(self, minutes, every, device):
        self.deadline = time.monotonic() + 60 * minutes
        self.every, self.device = every, device
        self.signalled = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number, frame):
        self.signalled = True

    def exhausted(self, step):
        if step % self.every:
            return False
        flag = torch.zeros(1, dtype=torch.int, device=self.device)
        if self.signalled or (dist.get_rank() == 0 and time.monotonic() > self.deadline):
            flag += 1
        dist.all_reduce(flag)
        return flag.item() > 0


def build(device, layers=16, dim=2048):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(layers)]).to(device)
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def save(model, optimizer, step, root):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp_save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{root}/step_{step}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=230)
    parser.add_argument("--check-every", type=int, default=20)
    parser.add_argument("--root", default="/scratch/run")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    budget = Budget(args.minutes, args.check_every, device)
    torch.manual_seed(0)
    model = build(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device=device).manual_seed(dist.get_rank())
    step = 0
    while True:
        x = torch.randn(8, 2048, device=device, generator=generator)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if budget.exhausted(step):
            save(model, optimizer, step, args.root)
            break
    if dist.get_rank() == 0:
        print(f"stopped at step {step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
