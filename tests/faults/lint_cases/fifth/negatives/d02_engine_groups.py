import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


class EngineSlots:
    """Neighbouring ranks form an engine; the last ranks may belong to none."""

    def __init__(self, size):
        self.rank = dist.get_rank()
        self.size = size
        self.group = None
        self.leader = None
        for start in range(0, dist.get_world_size() - size + 1, size):
            members = list(range(start, start + size))
            group = dist.new_group(members, backend="gloo")
            if self.rank in members:
                self.group = group
                self.leader = start
        leaders = list(range(0, dist.get_world_size() - size + 1, size))
        self.leader_group = dist.new_group(leaders, backend="gloo")

    @property
    def is_member(self):
        return self.group is not None

    @property
    def is_leader(self):
        return self.is_member and self.rank == self.leader


def collect_weights(slots, model):
    """Members send their slice of every parameter to the leader of the slot."""
    if not slots.is_member:
        return None
    part = slots.rank - slots.leader
    shard = {n: p.detach().flatten().tensor_split(slots.size)[part].cpu() for n, p in model.named_parameters()}
    shards = [None] * slots.size if slots.is_leader else None
    dist.gather_object(shard, shards, dst=slots.leader, group=slots.group)
    if shards is None:
        return None
    return {name: torch.cat([s[name] for s in shards]) for name in shard}


def compare_leaders(slots, weights):
    """The leaders check among themselves that all engines got the same weights."""
    if slots.is_leader:
        total = torch.tensor([sum(w.double().sum().item() for w in weights.values())], dtype=torch.float64)
        low, high = total.clone(), total.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=slots.leader_group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=slots.leader_group)
        if (high - low).item() > 1e-6 and slots.rank == 0:
            print(f"engines differ by {(high - low).item():.3e}")
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus-per-engine", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=50)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    assert dist.get_world_size() >= args.gpus_per_engine
    slots = EngineSlots(args.gpus_per_engine)
    torch.manual_seed(7)
    policy = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 16)).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    torch.manual_seed(7 + dist.get_rank())
    for rollout in range(args.rollouts):
        weights = collect_weights(slots, policy)
        compare_leaders(slots, weights)
        states = torch.randn(512, 64, device="cuda")
        logp = policy(states).log_softmax(-1)
        actions = torch.distributions.Categorical(logits=logp.detach()).sample()
        loss = -(logp.gather(1, actions[:, None]).squeeze(1) * states[:, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"rollout {rollout} loss on rank 0 {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
