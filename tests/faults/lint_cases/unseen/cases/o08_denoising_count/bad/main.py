"""Train the detector on synthetic scenes; some scenes are pure background."""
import logging
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from detector import DenoisingConfig, QueryDetector, SetCriterion

logger = logging.getLogger(__name__)
BACKGROUND = {5, 7, 12, 17, 19}


class Scenes(Dataset):
    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, idx):
        gen = torch.Generator().manual_seed(idx)
        objects = 0 if idx in BACKGROUND else 1 + idx % 3
        return torch.randn(10, generator=gen), {
            "boxes": torch.rand(objects, 4, generator=gen),
            "labels": torch.randint(0, 3, (objects,), generator=gen),
        }


def collate(items):
    images, targets = zip(*items)
    return torch.stack(images), list(targets)


def save_on_master(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)


def train_one_epoch(model, criterion, optimizer, loader, epoch):
    model.train()
    for step, (images, targets) in enumerate(loader):
        losses = criterion(model(images, targets), targets)
        total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if dist.get_rank() == 0:
            logger.info("epoch %d step %d %s", epoch, step, {k: round(v.item(), 3) for k, v in losses.items()})


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    dn_cfg = DenoisingConfig()
    model = DDP(QueryDetector(dn_cfg=dn_cfg), find_unused_parameters=True)
    criterion = SetCriterion({"labels": 1.0, "boxes": 5.0, "denoising": 1.0}, dn_cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = Scenes()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collate, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, epoch)
        save_on_master(model.module.state_dict(), os.path.join(os.environ.get("CASE_TMP", "."), "det.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
