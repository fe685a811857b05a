import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from volumes import OrganVolumes, positive_classes


class PromptedUNet(nn.Module):
    def __init__(self, organs, width=32):
        super().__init__()
        self.prompt = nn.Embedding(organs, width)
        self.down = nn.Conv3d(1, width, 3, padding=1)
        self.mid = nn.Conv3d(width, width, 3, padding=1)
        self.up = nn.Conv3d(width, 1, 1)

    def forward(self, image, organ):
        x = F.relu(self.down(image))
        x = x + self.prompt(organ)[:, :, None, None, None]
        return self.up(F.relu(self.mid(x)))


def dice_loss(logits, mask):
    p = logits.sigmoid().flatten(1)
    m = mask.flatten(1)
    return (1 - 2 * (p * m).sum(1) / (p.sum(1) + m.sum(1) + 1.0)).mean()


def train_epoch(args, model, loader, optimizer, device, epoch):
    model.train()
    running, steps = 0.0, 0
    for image, masks in loader:
        image, masks = image.to(device), masks.to(device)
        for organ in positive_classes(masks):
            target = masks[:, organ : organ + 1]
            index = torch.full((image.shape[0],), organ, device=device)
            logits = model(image, index)
            loss = F.binary_cross_entropy_with_logits(logits, target) + dice_loss(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
            steps += 1
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {running / max(steps, 1):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/data/segvol")
    parser.add_argument("--organs", type=int, default=13)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)

    dataset = OrganVolumes(args.root, args.organs)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=1, sampler=sampler, num_workers=4)
    model = DistributedDataParallel(PromptedUNet(args.organs).to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(args, model, loader, optimizer, device, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
