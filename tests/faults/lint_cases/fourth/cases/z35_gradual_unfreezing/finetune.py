import argparse
import os

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms

from hooks import FreezeTrunk, PrintMetrics
from trainer import Trainer


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = torchvision.models.convnext_tiny(weights="DEFAULT").features
        self.head = nn.Linear(768, classes)

    def forward(self, x):
        return self.head(self.trunk(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/flowers/train")
    parser.add_argument("--head-epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    resize = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])
    data = torchvision.datasets.ImageFolder(args.data, resize)
    loader = DataLoader(data, 32, sampler=DistributedSampler(data), num_workers=4, drop_last=True)
    model = Classifier(len(data.classes))
    FreezeTrunk.set_trainable(model.trunk, False)
    hooks = [FreezeTrunk(args.head_epochs), PrintMetrics()]
    Trainer(model, loader, hooks, torch.device("cuda", local_rank)).fit(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
