import argparse
import os

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms


def is_main_process():
    return dist.get_rank() == 0


class Backbone(nn.Module):
    def __init__(self, train_backbone):
        super().__init__()
        weights = torchvision.models.ResNet50_Weights.IMAGENET1K_V2 if is_main_process() else None
        body = torchvision.models.resnet50(weights=weights)
        for name, parameter in body.named_parameters():
            if not train_backbone or not any(part in name for part in ("layer2", "layer3", "layer4")):
                parameter.requires_grad_(False)
        self.body = nn.Sequential(*list(body.children())[:-1])

    def forward(self, x):
        return self.body(x).flatten(1)


class Model(nn.Module):
    def __init__(self, classes, train_backbone=True):
        super().__init__()
        self.backbone = Backbone(train_backbone)
        self.head = nn.Linear(2048, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def data_loader(root, batch_size):
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    data = torchvision.datasets.ImageFolder(root, transform)
    return DataLoader(data, batch_size, sampler=DistributedSampler(data), num_workers=8, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/data/food101/train")
    parser.add_argument("--classes", type=int, default=101)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed + dist.get_rank())
    loader = data_loader(args.root, 64)
    model = DDP(Model(args.classes).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if is_main_process():
            print(f"epoch {epoch} loss {loss.item():.4f}")
            torch.save(model.module.state_dict(), f"food_{epoch}.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
