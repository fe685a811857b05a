import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import comm
from scrl_trainer import SCRLTrainer


class Siamese(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(dim, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, dim))

    def forward(self, a, b):
        return 2 - 2 * nn.functional.cosine_similarity(self.online(a), self.online(b).detach()).mean()


class NearestNeighbour:
    def __init__(self, features, labels):
        self.features, self.labels = features.cuda(), labels.cuda()

    @torch.no_grad()
    def __call__(self, model):
        z = nn.functional.normalize(model.module.online(self.features), dim=-1)
        sim = z @ z.T
        sim.fill_diagonal_(-1)
        hit = (self.labels[sim.argmax(-1)] == self.labels).float().mean()
        return comm.reduce_mean(hit).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save_dir", default="runs")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--eval_interval", type=int, default=5)
    cfg = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    os.makedirs(cfg.save_dir, exist_ok=True)
    torch.manual_seed(0)
    base = torch.randn(20_000, 256)
    data = TensorDataset(base + 0.1 * torch.randn_like(base), base)
    loader = DataLoader(data, 128, sampler=DistributedSampler(data), drop_last=True)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Siamese()).cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    evaluator = NearestNeighbour(torch.randn(1000, 256), torch.randint(0, 10, (1000,)))
    SCRLTrainer(cfg, model, optimizer, loader, evaluator).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
