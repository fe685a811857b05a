import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from rng import load_rng_state, save_rng_state, set_random_seed


class Policy(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, num_actions))

    def forward(self, prompts):
        return self.body(prompts)


class GRPOTrainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", torch.cuda.current_device())
        set_random_seed(args.seed)
        self.policy = Policy(args.obs_dim, args.num_actions).to(self.device)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=args.lr)
        gen = torch.Generator().manual_seed(args.seed)
        self.prompts = TensorDataset(torch.randn(4096, args.obs_dim, generator=gen))
        set_random_seed(args.seed + self.rank)
        self.iteration = 0
        self.resample_passes = 0
        if args.load:
            self.load_checkpoint(args.load)
        self.model = DDP(self.policy, device_ids=[self.device.index])
        self.resample_iterator = self.init_resample_iterator()

    def init_resample_iterator(self):
        """Source of replacement prompts, shuffled independently of the training data."""
        self.resample_passes += 1
        set_random_seed(self.args.seed + 10007 * self.resample_passes + self.rank)
        loader = DataLoader(self.prompts, batch_size=self.args.batch_size, shuffle=True, drop_last=True)
        iterator = iter(loader)
        set_random_seed(self.args.seed + self.rank)
        return iterator

    def next_replacement(self):
        try:
            return next(self.resample_iterator)[0]
        except StopIteration:
            self.resample_iterator = self.init_resample_iterator()
            return next(self.resample_iterator)[0]

    def load_checkpoint(self, folder):
        state = torch.load(os.path.join(folder, "model.pt"), map_location="cpu")
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = state["iteration"]
        load_rng_state(folder, self.rank)

    def save_checkpoint(self):
        folder = os.path.join(self.args.save, f"iter_{self.iteration:07d}")
        os.makedirs(folder, exist_ok=True)
        if self.rank == 0:
            state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}
            state["iteration"] = self.iteration
            torch.save(state, os.path.join(folder, "model.pt"))
        save_rng_state(folder, self.rank)
        dist.barrier()

    def rollout(self):
        index = torch.randint(0, len(self.prompts), (self.args.batch_size,))
        prompts = self.prompts[index][0]
        with torch.no_grad():
            flat = Categorical(logits=self.policy(prompts.to(self.device))).entropy() < self.args.min_entropy
        replacement = self.next_replacement()
        prompts = torch.where(flat.cpu().unsqueeze(1), replacement, prompts).to(self.device)
        with torch.no_grad():
            actions = Categorical(logits=self.policy(prompts)).sample((self.args.group_size,))
        rewards = (actions % 7 == 0).float()
        return prompts, actions, rewards - rewards.mean(dim=0, keepdim=True)

    def train(self):
        while self.iteration < self.args.train_iters:
            prompts, actions, advantages = self.rollout()
            log_probs = Categorical(logits=self.model(prompts)).log_prob(actions)
            loss = -(log_probs * advantages).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.iteration += 1
            if self.iteration % self.args.save_interval == 0:
                self.save_checkpoint()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", default=None)
    parser.add_argument("--save", default="ckpt/grpo")
    parser.add_argument("--obs_dim", type=int, default=64)
    parser.add_argument("--num_actions", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--min_entropy", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--train_iters", type=int, default=2000)
    parser.add_argument("--save_interval", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    GRPOTrainer(cli).train()
    dist.destroy_process_group()
