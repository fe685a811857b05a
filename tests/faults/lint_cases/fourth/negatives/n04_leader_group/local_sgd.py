import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from groups import NodeLayout


class LocalSGD:
    """Averages within a node at every step (DDP) and between the nodes every few steps."""

    def __init__(self, module, layout, period):
        self.layout, self.period, self.count = layout, period, 0
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
        self.model = DDP(module, device_ids=[layout.local_rank], process_group=layout.node_group)

    @torch.no_grad()
    def average(self):
        self.count += 1
        if self.count % self.period:
            return
        nodes = self.layout.world_size // self.layout.per_node
        for p in self.model.parameters():
            if self.layout.is_leader:
                dist.all_reduce(p, group=self.layout.leaders)
                p /= nodes
            dist.broadcast(p, src=self.layout.leader, group=self.layout.node_group)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--period", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    layout = NodeLayout()
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    trainer = LocalSGD(net, layout, args.period)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.01)
    torch.manual_seed(layout.rank)
    for step in range(args.steps):
        x = torch.randn(128, 64, device="cuda")
        loss = nn.functional.mse_loss(trainer.model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trainer.average()
        if step % 500 == 0 and layout.is_leader:
            print(f"[node of rank {layout.rank}] step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
