import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from base_trainer import BaseTrainer


def make(n):
    return TensorDataset(torch.arange(n), torch.randn(n, 92), torch.randn(n))


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(92, 256), nn.SiLU(), nn.Linear(256, 1))
    optim = {"lr": 1e-3, "batch_size": 64, "max_epochs": 20}
    trainer = BaseTrainer(model, (make(20000), make(2000)), optim, local_rank=local_rank, identifier="cgcnn")
    trainer.train()
    trainer.predict()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
