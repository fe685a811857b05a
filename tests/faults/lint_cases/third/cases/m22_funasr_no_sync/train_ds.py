import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainer_ds import Trainer


class Paraformer(nn.Module):
    def __init__(self, feats=80, dim=256, vocab=4000, layers=4):
        super().__init__()
        self.inp = nn.Linear(feats, dim)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, batch_first=True), layers)
        self.out = nn.Linear(dim, vocab)

    def forward(self, speech):
        return self.out(self.encoder(self.inp(speech)))


def main():
    logging.basicConfig(level=logging.INFO)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl", init_method="env://")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 100, 80), torch.randint(0, 4000, (4096, 100)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True, num_workers=2)
    Trainer(Paraformer(), local_rank, accum_grad=4).run(loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
