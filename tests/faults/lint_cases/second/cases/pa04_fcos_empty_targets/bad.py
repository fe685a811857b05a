"""FCOS-style dense head on synthetic single-level features."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Sample:
    image: torch.Tensor
    labels: torch.Tensor
    boxes: torch.Tensor


class SparseAerialScenes(Dataset):
    """Aerial tiles; most of them hold no object at all."""

    def __init__(self, n=96, size=32, stride=4, p_object=0.12, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.rand(n, 3, size, size, generator=g)
        cells = (size // stride) ** 2
        occupied = torch.rand(n, 1, generator=g) < p_object
        self.labels = ((torch.rand(n, cells, generator=g) < 0.05) & occupied).long()
        self.boxes = torch.rand(n, cells, 4, generator=g) * 8

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return Sample(self.images[i], self.labels[i], self.boxes[i])


def collate(samples):
    return Sample(*(torch.stack(x) for x in zip(*((s.image, s.labels, s.boxes) for s in samples))))


def reduce_mean(t):
    """Mean of a scalar tensor over all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return t
    t = t.clone()
    dist.all_reduce(t.div_(dist.get_world_size()))  # RELATED: hidden-collective
    return t


def centerness_target(boxes):
    lr, tb = boxes[:, [0, 2]], boxes[:, [1, 3]]
    ratio = (lr.amin(-1) / lr.amax(-1).clamp(min=1e-6)) * (tb.amin(-1) / tb.amax(-1).clamp(min=1e-6))
    return ratio.clamp(min=0).sqrt()


class FCOSHead(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.cls = nn.Conv2d(channels, 1, 1)
        self.reg = nn.Conv2d(channels, 4, 1)
        self.ctr = nn.Conv2d(channels, 1, 1)

    def forward(self, feat):
        flat = lambda t: t.flatten(2).transpose(1, 2)
        return flat(self.cls(feat)).squeeze(-1), flat(self.reg(feat)), flat(self.ctr(feat)).squeeze(-1)

    def loss(self, outputs, labels, boxes):
        cls, reg, ctr = outputs
        pos = labels > 0  # RELATED: source
        num_pos = pos.sum()
        avg_pos = reduce_mean(num_pos.float()).clamp(min=1.0)
        loss_cls = F.binary_cross_entropy_with_logits(cls, labels.float(), reduction="sum") / avg_pos
        if num_pos > 0:  # RELATED: guard
            loss_box, loss_ctr = self._pos_losses(reg[pos], ctr[pos], boxes[pos], avg_pos)  # EXPECT: local-data-branch
        else:
            loss_box, loss_ctr = reg[pos].sum(), ctr[pos].sum()
        return {"loss_cls": loss_cls, "loss_box": loss_box, "loss_ctr": loss_ctr}

    def _pos_losses(self, reg, ctr, boxes, avg_pos):
        target = centerness_target(boxes)
        denorm = reduce_mean(target.sum().detach()).clamp(min=1e-6)
        dist_l1 = F.smooth_l1_loss(reg, boxes, reduction="none").sum(-1)
        return (dist_l1 * target).sum() / denorm, F.binary_cross_entropy_with_logits(ctr, target, reduction="sum") / avg_pos


class FCOS(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, 2, 1), nn.GroupNorm(4, channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 2, 1), nn.GroupNorm(4, channels), nn.ReLU(),
        )
        self.head = FCOSHead(channels)

    def forward(self, batch):
        return self.head.loss(self.head(self.stem(batch.image)), batch.labels, batch.boxes)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = SparseAerialScenes()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=int(os.environ.get("IMS_PER_RANK", 4)), sampler=sampler, collate_fn=collate)
    model = DDP(FCOS())
    optim = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            losses = model(batch)
            optim.zero_grad()
            sum(losses.values()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optim.step()
        if dist.get_rank() == 0:
            print(epoch, {k: round(v.item(), 4) for k, v in losses.items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
