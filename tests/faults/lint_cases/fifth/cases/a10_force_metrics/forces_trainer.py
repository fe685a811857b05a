import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distutils
from evaluator import Evaluator


class ForceNet(nn.Module):
    def __init__(self, atoms=32, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * atoms, hidden), nn.SiLU(), nn.Linear(hidden, 3 * atoms + 1))

    def forward(self, pos):
        out = self.net(pos.flatten(1))
        return {"energy": out[:, 0], "forces": out[:, 1:].view_as(pos)}


class ForcesTrainer:
    def __init__(self, train_path, val_path, batch_size=64, epochs=20):
        self.device = distutils.setup()
        self.train_loader, self.train_sampler = self.make_loader(train_path, batch_size, True)
        self.val_loader, _ = self.make_loader(val_path, batch_size, False)
        torch.manual_seed(0)
        self.model = DistributedDataParallel(ForceNet().to(self.device), device_ids=[self.device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.evaluator = Evaluator()
        self.epochs = epochs

    def make_loader(self, path, batch_size, shuffle):
        blob = torch.load(path, map_location="cpu")
        dataset = TensorDataset(blob["pos"], blob["forces"], blob["energy"])
        sampler = DistributedSampler(dataset, shuffle=shuffle, drop_last=True)
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler), sampler

    def to_target(self, forces, energy):
        return {"forces": forces.to(self.device), "energy": energy.to(self.device)}

    def train(self):
        for epoch in range(self.epochs):
            self.train_sampler.set_epoch(epoch)
            self.model.train()
            for pos, forces, energy in self.train_loader:
                prediction, target = self.model(pos.to(self.device)), self.to_target(forces, energy)
                loss = sum((prediction[k] - target[k]).abs().mean() for k in ("energy", "forces"))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            metrics = self.validate()
            if distutils.is_master():
                print(epoch, {name: round(m["metric"], 5) for name, m in metrics.items()})

    def reduce_metrics(self, metrics):
        for entry in metrics.values():
            entry["total"] = distutils.all_reduce(entry["total"], self.device)
            entry["numel"] = distutils.all_reduce(entry["numel"], self.device)
            entry["metric"] = entry["total"] / entry["numel"]
        return metrics

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        metrics = {}
        for pos, forces, energy in self.val_loader:
            prediction = self.model(pos.to(self.device))
            metrics = self.evaluator.update(metrics, prediction, self.to_target(forces, energy))
            metrics = self.reduce_metrics(metrics)
        return metrics


if __name__ == "__main__":
    ForcesTrainer("data/train.pt", "data/val.pt").train()
    dist.destroy_process_group()
