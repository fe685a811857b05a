"""Only the rollout ranks call new_group() for their own group, so the group that all ranks create next has another number on the learner.

In the style of a small actor-learner program: rank 0 learns, the others collect episodes with the weights it broadcasts.
"""
# case: processes=3 ending=hang causes=new-group-by-some-ranks,store-wait,rank-guarded-collective ranks=0 framework=plain

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Policy(nn.Module):
    def __init__(self, obs=6, actions=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, actions))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def broadcast_weights(policy):
    for p in policy.parameters():
        dist.broadcast(p.data, src=0)


def collect(policy, horizon):
    obs, reward = torch.randn(horizon, 6), 0.0
    with torch.no_grad():
        actions = policy(obs).sample()
    reward = (actions == (obs.abs().sum(1) > 4.5).long()).float()
    return torch.cat([obs, actions[:, None].float(), reward[:, None]], dim=1)


class Learner:
    def __init__(self, policy, args):
        self.policy, self.args = policy, args
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    def run(self, logs):
        world = dist.get_world_size()
        for update in range(self.args.updates):
            broadcast_weights(self.policy)
            batch = [torch.empty(self.args.horizon, 8) for _ in range(world)]
            dist.gather(torch.zeros(self.args.horizon, 8), batch, dst=0)
            data = torch.cat(batch[1:])
            obs, actions, reward = data[:, :6], data[:, 6], data[:, 7]
            loss = -(self.policy(obs).log_prob(actions) * (reward - reward.mean())).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total = torch.zeros(1)
            dist.all_reduce(total, group=logs)
            if update % 10 == 0:
                print(f"update {update} return {total.item() / (world - 1):.3f}", flush=True)


class Rollout:
    def __init__(self, policy, args):
        self.policy, self.args = policy, args
        # observation statistics are shared by the rollout ranks, the learner has none
        self.group = dist.new_group(list(range(1, dist.get_world_size())))  # GUILTY
        self.mean = torch.zeros(6)

    def run(self, logs):
        for _ in range(self.args.updates):
            broadcast_weights(self.policy)
            episode = collect(self.policy, self.args.horizon)
            mean = episode[:, :6].mean(0)
            dist.all_reduce(mean, group=self.group)
            self.mean = 0.99 * self.mean + 0.01 * mean / dist.get_world_size(self.group)
            dist.gather(episode, dst=0)
            dist.all_reduce(episode[:, 7].sum().reshape(1), group=logs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--horizon", type=int, default=64)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    policy = Policy()
    role = Learner(policy, args) if dist.get_rank() == 0 else Rollout(policy, args)  # ALSO
    logs = dist.new_group()  # ALSO
    role.run(logs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
