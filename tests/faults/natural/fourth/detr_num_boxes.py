"""A batch without any box returns early from the criterion, so one rank skips the exchange of box counts that the others wait in.

Modelled on lyuwenyu/RT-DETR#684 ("Fix DDP training hangs when ... batch contains zero ground-truth targets").
"""
# case: processes=4 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective ranks=2 framework=ddp

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

QUERIES, CLASSES = 12, 5


class TinyDetr(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3 * 16 * 16, 64), nn.ReLU(), nn.Linear(64, dim))
        self.queries = nn.Embedding(QUERIES, dim)
        self.decoder = nn.Linear(dim, dim)
        self.class_head = nn.Linear(dim, CLASSES)
        self.box_head = nn.Linear(dim, 4)

    def forward(self, images):
        memory = self.backbone(images.flatten(1))
        h = torch.relu(self.decoder(memory[:, None] + self.queries.weight))
        return {"logits": self.class_head(h), "boxes": self.box_head(h).sigmoid()}


class SetCriterion(nn.Module):
    """Classification and L1 box loss; the first queries are matched with the boxes in order."""

    def world_num_boxes(self, targets):
        count = torch.tensor([float(sum(len(t["labels"]) for t in targets))])
        counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, count)
        return max(1.0, torch.stack(counts).mean().item())

    def forward(self, outputs, targets):
        if all(len(t["labels"]) == 0 for t in targets):  # GUILTY
            return (outputs["logits"].sum() + outputs["boxes"].sum()) * 0.0  # ALSO
        num_boxes = self.world_num_boxes(targets)
        loss_class, loss_box = outputs["logits"].sum() * 0.0, outputs["boxes"].sum() * 0.0
        for i, target in enumerate(targets):
            n = len(target["labels"])
            loss_class = loss_class + F.cross_entropy(outputs["logits"][i, :n], target["labels"], reduction="sum")
            loss_box = loss_box + F.l1_loss(outputs["boxes"][i, :n], target["boxes"], reduction="sum")
        return (loss_class + 5 * loss_box) / num_boxes


class CocoLike(torch.utils.data.Dataset):
    """Images with up to six boxes; about a third of the images have no annotation at all."""

    def __init__(self, rank, length=160):
        g = torch.Generator().manual_seed(7 + rank)
        self.counts = torch.randint(1, 7, (length,), generator=g).tolist()
        for i in range(0, length, 3):
            self.counts[i] = 0
        if rank == 2:
            self.counts[56:60] = [0, 0, 0, 0]  # a stretch of background images

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = self.counts[i]
        labels = torch.randint(0, CLASSES, (n,), generator=g)
        return torch.randn(3, 16, 16, generator=g), {"labels": labels, "boxes": torch.rand(n, 4, generator=g)}


def collate(samples):
    return torch.stack([s[0] for s in samples]), [s[1] for s in samples]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, criterion = DDP(TinyDetr()), SetCriterion()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(CocoLike(rank), batch_size=4, collate_fn=collate)
    for epoch in range(2):
        for step, (images, targets) in enumerate(loader):
            loss = criterion(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
