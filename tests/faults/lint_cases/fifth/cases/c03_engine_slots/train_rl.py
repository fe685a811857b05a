import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from rollout import build_engines
from weight_update import UpdateWeightFromTensor


def policy_loss(logits, actions, advantages):
    logp = torch.log_softmax(logits, dim=-1).gather(1, actions[:, None]).squeeze(1)
    return -(logp * advantages).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus-per-engine", type=int, default=2)
    parser.add_argument("--num-rollout", type=int, default=50)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    assert dist.get_world_size() % args.gpus_per_engine == 0

    torch.manual_seed(7)
    policy = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 16)).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    updater = UpdateWeightFromTensor(policy)
    updater.connect_rollout_engines(build_engines(dist.get_world_size(), args.gpus_per_engine))

    torch.manual_seed(7 + dist.get_rank())
    for rollout_id in range(args.num_rollout):
        updater.update_weights()
        states = torch.randn(512, 64, device="cuda")
        logits = policy(states)
        actions = torch.distributions.Categorical(logits=logits.detach()).sample()
        advantages = torch.randn(512, device="cuda")
        loss = policy_loss(logits, actions, advantages)
        optimizer.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"rollout {rollout_id} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
