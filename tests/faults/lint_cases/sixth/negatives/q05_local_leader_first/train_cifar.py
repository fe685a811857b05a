import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dist_utils import local_rank_zero_first, setup


def prepare_arrays(cache_dir, n):
    """Decode the images once per node and keep them on the local disk."""
    images_path = os.path.join(cache_dir, "images.npy")
    labels_path = os.path.join(cache_dir, "labels.npy")
    if not os.path.exists(labels_path):
        os.makedirs(cache_dir, exist_ok=True)
        rng = np.random.default_rng(0)
        np.save(images_path, rng.standard_normal((n, 3, 32, 32), dtype=np.float32))
        np.save(labels_path, rng.integers(0, 10, n))
    return np.load(images_path, mmap_mode="r"), np.load(labels_path)


def build_dataset(args):
    with local_rank_zero_first():
        images, labels = prepare_arrays(args.cache_dir, args.num_images)
    return TensorDataset(torch.from_numpy(np.array(images)), torch.from_numpy(labels))


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache-dir", default="/tmp/cifar_cache")
    parser.add_argument("--num-images", type=int, default=50000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save-path", default="cifar.pt")
    args = parser.parse_args()

    device = setup()
    torch.manual_seed(17)
    dataset = build_dataset(args)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(build_model()).to(device)
    model = DDP(net, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
            torch.save(net.state_dict(), args.save_path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
