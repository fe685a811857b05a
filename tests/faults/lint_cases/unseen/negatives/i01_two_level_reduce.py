"""Two-level gradient averaging: inside a node first, then between the node leaders, then back into the node."""
import os
from dataclasses import dataclass
from typing import Any, List, Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@dataclass
class Topology:
    rank: int
    world_size: int
    node_root: int
    node_group: Any
    leader_group: Optional[Any] = None

    @classmethod
    def build(cls, node_size: int) -> "Topology":
        rank, world = dist.get_rank(), dist.get_world_size()
        mine, root = None, 0
        for start in range(0, world, node_size):
            members = list(range(start, min(start + node_size, world)))
            group = dist.new_group(members)
            if rank in members:
                mine, root = group, start
        leaders = list(range(0, world, node_size))
        between = dist.new_group(leaders)
        return cls(rank, world, root, mine, between if rank in leaders else None)

    @property
    def leads(self) -> bool:
        return self.leader_group is not None


class Bucket:
    def __init__(self, params: List[nn.Parameter]):
        self.params = params

    def pack(self) -> torch.Tensor:
        return _flatten_dense_tensors([p.grad if p.grad is not None else torch.zeros_like(p) for p in self.params])

    def unpack(self, flat: torch.Tensor) -> None:
        for p, g in zip(self.params, _unflatten_dense_tensors(flat, [p.data for p in self.params])):
            if p.grad is None:
                p.grad = g.clone()
            else:
                p.grad.copy_(g)


class HierarchicalReducer:
    def __init__(self, module: nn.Module, topo: Topology, bucket_numel: int = 4096):
        self.topo = topo
        self.buckets = self._split([p for p in module.parameters() if p.requires_grad], bucket_numel)
        for p in module.parameters():
            dist.broadcast(p.data, src=0)

    @staticmethod
    def _split(params, limit) -> List[Bucket]:
        out, cur, size = [], [], 0
        for p in params:
            if cur and size + p.numel() > limit:
                out.append(Bucket(cur))
                cur, size = [], 0
            cur.append(p)
            size += p.numel()
        return out + ([Bucket(cur)] if cur else [])

    def _inside(self, flat):
        dist.reduce(flat, dst=self.topo.node_root, group=self.topo.node_group)

    def _between(self, flat):
        if not self.topo.leads:
            return
        dist.all_reduce(flat, group=self.topo.leader_group)
        flat.div_(self.topo.world_size)

    def _back(self, flat):
        dist.broadcast(flat, src=self.topo.node_root, group=self.topo.node_group)

    def reduce(self) -> None:
        for bucket in self.buckets:
            flat = bucket.pack()
            self._inside(flat)
            self._between(flat)
            self._back(flat)
            bucket.unpack(flat)


def setup() -> torch.device:
    if torch.cuda.is_available():
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        return torch.device("cuda", local_rank)
    dist.init_process_group("gloo")
    return torch.device("cpu")


def leader_report(topo: Topology, loss: torch.Tensor, step: int) -> None:
    """Average of the leaders' losses; the first leader prints it."""
    if topo.leader_group is None:
        return
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=topo.leader_group)
    if topo.rank == 0:
        print(f"step {step} loss over leaders {mean.item() / dist.get_world_size(topo.leader_group):.4f}")


def main(steps: int = 40, report_every: int = 20) -> None:
    device = setup()
    try:
        node_size = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
        topo = Topology.build(node_size)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
        reducer = HierarchicalReducer(model, topo)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        gen = torch.Generator().manual_seed(100 + topo.rank)
        for step in range(1, steps + 1):
            x = torch.randn(8, 16, generator=gen).to(device)
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            reducer.reduce()
            opt.step()
            if step % report_every == 0:
                leader_report(topo, loss, step)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
