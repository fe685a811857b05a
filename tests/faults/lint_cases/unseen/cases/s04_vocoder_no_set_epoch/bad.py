#!/usr/bin/env python3
"""Train a (very) small adversarial vocoder on synthetic mel/wave pairs."""

import logging
import os

from collections import defaultdict
from functools import partial

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler


CONFIG = {
    "num_mels": 8,
    "hop_size": 4,
    "frames": 6,
    "batch_size": 4,
    "train_max_steps": 24,
    "discriminator_train_start_steps": 8,
    "log_interval_steps": 8,
    "eval_interval_steps": 12,
    "lambda_adv": 0.5,
    "seed": 3,
}


class MelWave(Dataset):
    def __init__(self, config, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.mels = torch.randn(size, config["num_mels"], config["frames"], generator=g)
        self.waves = self.mels.mean(1).repeat_interleave(config["hop_size"], dim=1).tanh()

    def __len__(self):
        return len(self.mels)

    def __getitem__(self, idx):
        return self.mels[idx], self.waves[idx]


class Generator(torch.nn.Module):
    def __init__(self, num_mels, hop_size):
        super().__init__()
        self.net = torch.nn.ConvTranspose1d(num_mels, 1, hop_size, stride=hop_size)

    def forward(self, mel):
        return self.net(mel).squeeze(1).tanh()


class Discriminator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv1d(1, 4, 5, padding=2), torch.nn.LeakyReLU(0.2), torch.nn.Conv1d(4, 1, 3, padding=1)
        )

    def forward(self, wave):
        return self.net(wave.unsqueeze(1)).squeeze(1)


def build_samplers(datasets, distributed, seed):
    """One sampler per split; the development set keeps its order."""
    if not distributed:
        return {"train": None, "dev": None}
    make = partial(DistributedSampler, num_replicas=dist.get_world_size(), rank=dist.get_rank())
    return {
        "train": make(datasets["train"], shuffle=True, seed=seed),  # EXPECT: missing-set-epoch
        "dev": make(datasets["dev"], shuffle=False),
    }


class Trainer:
    def __init__(self, data_loader, sampler, model, optimizer, config):
        self.data_loader = data_loader
        self.sampler = sampler
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.steps = 0
        self.epochs = 0
        self.finish_train = False
        self.total_train_loss = defaultdict(float)

    def run(self):
        while not self.finish_train:
            self._train_epoch()
        if dist.get_rank() == 0:
            logging.info("finished after %d epochs (%d steps).", self.epochs, self.steps)

    def _train_step(self, batch):
        mel, y = batch
        y_ = self.model["generator"](mel)
        loss = torch.nn.functional.l1_loss(y_, y)
        self.total_train_loss["train/l1"] += loss.detach()
        if self.steps >= self.config["discriminator_train_start_steps"]:
            p_ = self.model["discriminator"](y_)
            adv = (p_ - 1.0).pow(2).mean()
            self.total_train_loss["train/adv"] += adv.detach()
            loss = loss + self.config["lambda_adv"] * adv
        self.optimizer["generator"].zero_grad()
        loss.backward()
        self.optimizer["generator"].step()

        if self.steps >= self.config["discriminator_train_start_steps"]:
            p = self.model["discriminator"](torch.cat([y, y_.detach()]))
            real, fake = p.chunk(2)
            d_loss = (real - 1.0).pow(2).mean() + fake.pow(2).mean()
            self.total_train_loss["train/disc"] += d_loss.detach()
            self.optimizer["discriminator"].zero_grad()
            d_loss.backward()
            self.optimizer["discriminator"].step()
        self.steps += 1

    def _train_epoch(self):
        for batch in self.data_loader["train"]:
            self._train_step(batch)
            self._check_log_interval()
            self._check_eval_interval()
            if self.steps >= self.config["train_max_steps"]:
                self.finish_train = True
                break
        self.epochs += 1

    @torch.no_grad()
    def _eval_epoch(self):
        total = torch.zeros(2)
        for mel, y in self.data_loader["dev"]:
            y_ = self.model["generator"].module(mel)
            total += torch.tensor([(y_ - y).abs().sum(), float(y.numel())])
        dist.all_reduce(total)
        return total[0] / total[1]

    def _check_eval_interval(self):
        if self.steps % self.config["eval_interval_steps"] == 0:
            score = self._eval_epoch()
            if dist.get_rank() == 0:
                logging.info("(steps: %d) eval/l1 = %.4f", self.steps, score)

    def _check_log_interval(self):
        if self.steps % self.config["log_interval_steps"] != 0:
            return
        if dist.get_rank() == 0:
            for key, value in self.total_train_loss.items():
                logging.info("(steps: %d) %s = %.4f", self.steps, key, value / self.config["log_interval_steps"])
        self.total_train_loss.clear()


def main():
    level = logging.INFO if int(os.environ.get("RANK", 0)) == 0 else logging.WARNING
    logging.basicConfig(level=level)
    dist.init_process_group("gloo")
    config = dict(CONFIG)
    torch.manual_seed(config["seed"])

    dataset = {"train": MelWave(config, 40, seed=0), "dev": MelWave(config, 8, seed=1)}
    sampler = build_samplers(dataset, distributed=True, seed=config["seed"])
    data_loader = {
        split: DataLoader(dataset[split], batch_size=config["batch_size"], sampler=sampler[split])
        for split in dataset
    }
    model = {
        "generator": DistributedDataParallel(Generator(config["num_mels"], config["hop_size"])),
        "discriminator": DistributedDataParallel(Discriminator(), broadcast_buffers=False),
    }
    optimizer = {name: torch.optim.Adam(m.parameters(), lr=1e-3) for name, m in model.items()}
    Trainer(data_loader, sampler, model, optimizer, config).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
