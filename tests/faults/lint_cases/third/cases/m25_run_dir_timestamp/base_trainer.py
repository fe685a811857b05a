import datetime
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class BaseTrainer:
    def __init__(self, model, datasets, optim, run_dir=None, local_rank=0, identifier=""):
        self.device = torch.device("cuda", local_rank)
        run_dir = Path(run_dir or os.getcwd())
        timestamp = datetime.datetime.now().strftime("%Y-%m-%d-%H-%M-%S")
        if identifier:
            timestamp = f"{timestamp}-{identifier}"
        self.checkpoint_dir = run_dir / "checkpoints" / timestamp
        self.results_dir = run_dir / "results" / timestamp
        if dist.get_rank() == 0:
            self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            self.results_dir.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        self.optim = optim
        self.train_dataset, self.val_dataset = datasets
        self.model = DistributedDataParallel(model.to(self.device), device_ids=[local_rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=optim["lr"])

    def loader(self, dataset, shuffle):
        sampler = DistributedSampler(dataset, shuffle=shuffle)
        return DataLoader(dataset, self.optim["batch_size"], sampler=sampler)

    def train(self):
        loader = self.loader(self.train_dataset, True)
        for epoch in range(self.optim["max_epochs"]):
            loader.sampler.set_epoch(epoch)
            self.model.train()
            for _, x, y in loader:
                loss = nn.functional.l1_loss(self.model(x.to(self.device)).squeeze(-1), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if dist.get_rank() == 0:
                torch.save(self.model.module.state_dict(), self.checkpoint_dir / "checkpoint.pt")

    @torch.no_grad()
    def predict(self):
        self.model.eval()
        ids, energies = [], []
        for index, x, _ in self.loader(self.val_dataset, False):
            energies.append(self.model.module(x.to(self.device)).squeeze(-1).cpu())
            ids.append(index)
        rank = dist.get_rank()
        shard = self.results_dir / f"predictions_{rank}.npz"
        np.savez_compressed(shard, ids=torch.cat(ids).numpy(), energy=torch.cat(energies).numpy())
        dist.barrier()
        if rank == 0:
            parts = [np.load(self.results_dir / f"predictions_{r}.npz") for r in range(dist.get_world_size())]
            all_ids = np.concatenate([p["ids"] for p in parts])
            all_energy = np.concatenate([p["energy"] for p in parts])
            _, first = np.unique(all_ids, return_index=True)
            np.savez_compressed(self.results_dir / "predictions.npz", ids=all_ids[first], energy=all_energy[first])
