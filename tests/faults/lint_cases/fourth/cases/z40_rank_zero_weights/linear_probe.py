import argparse
import os

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms

from builder import ModelBuilder


def loader_for(root, batch_size):
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    data = torchvision.datasets.ImageFolder(root, transform)
    return DataLoader(data, batch_size, sampler=DistributedSampler(data), num_workers=8, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", default="/data/imagenet/train")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    builder = ModelBuilder(args.checkpoint)
    model = builder.shard(builder.build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    loader = loader_for(args.data, args.batch_size)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
