import os

import torch
import torch.distributed as dist
import torch.nn as nn

from p2p import P2P
from schedule import OneForwardOneBackward

WIDTH, MICRO = 20, 4


class StageModule(nn.Module):
    def __init__(self, first: bool, last: bool):
        super().__init__()
        self.lift = nn.Linear(6, WIDTH) if first else None
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, 1) if last else None

    def forward(self, batch, hidden):
        x = self.lift(batch) if self.lift is not None else hidden
        x = x + self.body(x)
        if self.head is None:
            return x
        return (self.head(x) - batch.sum(1, keepdim=True)).pow(2).mean()


def global_grad_norm(module):
    total = torch.stack([p.grad.pow(2).sum() for p in module.parameters()]).sum()
    dist.all_reduce(total)
    return total.sqrt()


def main(steps=20, micro_batches=6, log_every=5):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        stage, stages = dist.get_rank(), dist.get_world_size()
        p2p = P2P(stage, stages, (MICRO, WIDTH), device)
        torch.manual_seed(stage)
        module = StageModule(p2p.first, p2p.last).to(device)
        schedule = OneForwardOneBackward(p2p, module, micro_batches)
        opt = torch.optim.Adam(module.parameters(), lr=3e-3)
        data = torch.Generator().manual_seed(77)
        for step in range(1, steps + 1):
            batches = torch.randn(micro_batches, MICRO, 6, generator=data).to(device)
            opt.zero_grad(set_to_none=True)
            loss = schedule.run(batches)
            norm = global_grad_norm(module)
            for p in module.parameters():
                p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            opt.step()
            if step % log_every == 0:
                dist.broadcast(loss, src=stages - 1)
                if p2p.first:
                    print(f"step {step} loss {loss.item():.4f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
