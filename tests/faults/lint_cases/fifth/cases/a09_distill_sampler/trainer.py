import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from config import parse
from distributed import agree_on_seed, launch, set_seed


class PromptDataset(Dataset):
    def __init__(self, path):
        self.embeds = torch.load(path, map_location="cpu")

    def __len__(self):
        return len(self.embeds)

    def __getitem__(self, index):
        return self.embeds[index]


class Generator(nn.Module):
    def __init__(self, dim=512, latent=64):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(nn.Linear(dim + latent, 1024), nn.SiLU(), nn.Linear(1024, latent))

    def forward(self, prompt, noise):
        return self.net(torch.cat([prompt, noise], dim=-1))


class DistillationTrainer:
    def __init__(self, config):
        self.config = config
        self.rank, self.device = launch()
        config.seed = agree_on_seed(config.seed, self.device)
        set_seed(config.seed + self.rank)
        self.teacher = Generator().to(self.device).requires_grad_(False)
        self.teacher.load_state_dict(torch.load(config.teacher, map_location=self.device))
        self.student = DistributedDataParallel(Generator().to(self.device), device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=config.lr)
        dataset = PromptDataset(config.prompts)
        self.sampler = DistributedSampler(
            dataset, shuffle=True, drop_last=True, seed=int(time.time()) % 100_000 * self.rank
        )
        self.loader = DataLoader(dataset, batch_size=config.batch_size, sampler=self.sampler, drop_last=True)

    def train_step(self, prompt):
        prompt = prompt.to(self.device)
        noise = torch.randn(len(prompt), 64, device=self.device)
        target = self.teacher(prompt, noise)
        loss = (self.student(prompt, noise) - target).abs().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for step, prompt in enumerate(self.loader):
                loss = self.train_step(prompt)
                if step % self.config.log_every == 0:
                    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
                    if self.rank == 0:
                        print(f"epoch {epoch} step {step} loss {loss.item():.5f}")
            if self.rank == 0:
                torch.save(self.student.module.state_dict(), f"student-{epoch}.pt")
        dist.barrier()


if __name__ == "__main__":
    DistillationTrainer(parse()).train()
    dist.destroy_process_group()
