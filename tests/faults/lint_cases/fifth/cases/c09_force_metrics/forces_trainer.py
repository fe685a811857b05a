import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import comm
from evaluator import Evaluator


class PairPotential(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, pos):
        delta = pos[:, :, None] - pos[:, None]
        dist2 = delta.pow(2).sum(-1, keepdim=True)
        pair = self.net(torch.exp(-dist2))
        return {"energy": pair[..., 0].sum(dim=(1, 2)), "forces": (pair[..., 1:] * delta).sum(dim=2)}


class DistributedForcesTrainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.model = DistributedDataParallel(PairPotential().to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.evaluator = Evaluator()
        self.train_loader = self.loader(args.train, True)
        self.val_loader = self.loader(args.val, False)

    def loader(self, path, train):
        data = TensorDataset(*torch.load(path))
        sampler = DistributedSampler(data, shuffle=train)
        return DataLoader(data, self.args.batch_size, sampler=sampler, drop_last=train)

    def _forward(self, batch):
        pos, energy, forces = (t.to(self.device) for t in batch)
        return self.model(pos), {"energy": energy, "forces": forces}

    def _compute_metrics(self, out, target, metrics):
        metrics = self.evaluator.eval(out, target, metrics)
        aggregated = {}
        for k in metrics:
            total = comm.all_reduce(metrics[k]["total"], self.device)
            numel = comm.all_reduce(metrics[k]["numel"], self.device)
            aggregated[k] = {"total": total, "numel": numel, "metric": total / numel}
        return aggregated

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        metrics = {}
        for batch in self.val_loader:
            out, target = self._forward(batch)
            metrics = self._compute_metrics(out, target, metrics)
        self.model.train()
        return metrics

    def train(self):
        for epoch in range(self.args.epochs):
            self.train_loader.sampler.set_epoch(epoch)
            for batch in self.train_loader:
                out, target = self._forward(batch)
                loss = (out["energy"] - target["energy"]).abs().mean()
                loss = loss + 30 * (out["forces"] - target["forces"]).norm(dim=-1).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            metrics = self.validate()
            if comm.is_master():
                print(epoch, {k: round(v["metric"], 4) for k, v in metrics.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--val", required=True)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--lr", type=float, default=1e-4)
    DistributedForcesTrainer(parser.parse_args(), comm.setup()).train()
