"""Keypoint detector whose loss handles images without objects."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class RoadScenes(Dataset):
    def __init__(self, n=64, grid=8, seed=4):
        g = torch.Generator().manual_seed(seed)
        self.image = torch.randn(n, 3, grid * 4, grid * 4, generator=g)
        has_any = torch.rand(n, 1, 1, generator=g) < 0.2
        self.center = ((torch.rand(n, grid, grid, generator=g) < 0.06) & has_any).float()
        self.size = torch.rand(n, 2, grid, grid, generator=g) * 10

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return {"image": self.image[i], "center": self.center[i], "size": self.size[i]}


def world_average(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


class SizeLoss:
    """L1 over object centres, normalised by the mean number of objects per rank."""

    def normalizer(self, count):
        return world_average(count).clamp(min=1.0)

    def empty(self, pred):
        # keeps the size branch in the autograd graph
        return pred.sum() * 0.0 / self.normalizer(pred.new_zeros(()))

    def matched(self, pred, target, mask):
        sel = mask.bool().unsqueeze(1).expand_as(pred)
        return F.l1_loss(pred[sel], target[sel], reduction="sum") / self.normalizer(mask.sum())

    def __call__(self, pred, target, mask):
        if mask.sum() == 0:
            return self.empty(pred)
        return self.matched(pred, target, mask)


class KeypointNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, w, 3, 2, 1), nn.GroupNorm(4, w), nn.ReLU(),
            nn.Conv2d(w, w, 3, 2, 1), nn.GroupNorm(4, w), nn.ReLU(),
        )
        self.center = nn.Conv2d(w, 1, 1)
        self.size = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.center(h).squeeze(1), self.size(h)


class DetectionTask:
    def __init__(self):
        self.net = DDP(KeypointNet())
        self.size_loss = SizeLoss()
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def loss(self, batch):
        center, size = self.net(batch["image"])
        heat = F.binary_cross_entropy_with_logits(center, batch["center"])
        return heat + 0.1 * self.size_loss(size, batch["size"], batch["center"])

    def train(self, loader, epochs):
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                loss = self.loss(batch)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = RoadScenes()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), drop_last=True)
    DetectionTask().train(loader, 3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
