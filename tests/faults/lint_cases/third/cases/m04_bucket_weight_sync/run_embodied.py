import os

import torch
import torch.distributed as dist
from torch import nn

from bucket_syncer import BucketWeightSyncer


class Policy(nn.Module):
    def __init__(self, obs=32, act=7, width=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.action_head = nn.Linear(width, act)
        self.value_head = nn.Linear(width, 1)

    def forward(self, obs):
        h = self.encoder(obs)
        return self.action_head(h), self.value_head(h)


def update_actor(policy, optimizer, obs, target):
    action, value = policy(obs)
    loss = nn.functional.mse_loss(action, target) + 0.1 * value.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def rollout(policy, device, steps=64):
    obs = torch.randn(steps, 32, device=device)
    with torch.no_grad():
        action, _ = policy(obs)
    return obs, action


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    rank = dist.get_rank()
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    syncer = BucketWeightSyncer(policy)
    for step in range(100):
        syncer.sync(src=0)
        obs, action = rollout(policy, device)
        all_obs = [torch.empty_like(obs) for _ in range(dist.get_world_size())]
        all_act = [torch.empty_like(action) for _ in range(dist.get_world_size())]
        dist.all_gather(all_obs, obs)
        dist.all_gather(all_act, action)
        if rank == 0:
            loss = update_actor(policy, optimizer, torch.cat(all_obs), torch.cat(all_act) + 0.01)
            print(f"step {step} loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
