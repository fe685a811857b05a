"""The barrier after saving the best checkpoint is inside `if val_loss < best`, which one rank finds false."""
# case: processes=4 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-guarded-collective,rank-missing-collective ranks=2 framework=ddp

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return TensorDataset(x, x.pow(2).sum(dim=1, keepdim=True))


@torch.no_grad()
def validate(model, loader):
    total, count = 0.0, 0
    for x, y in loader:
        total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
        count += len(x)
    return total / count


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_set, val_set = dataset(1, 1024), dataset(2, 256)
    val_set.tensors[1][2::4] *= 0.0  # labels of the third quarter are missing in epoch 3
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, 16, sampler=sampler)
    val_loader = DataLoader(val_set, 16, sampler=DistributedSampler(val_set, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = os.path.join(tempfile.gettempdir(), f"best_{os.environ['TORCHELASTIC_RUN_ID']}.pt")

    best = float("inf")
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()  # ALSO
            optimizer.step()
        val_loss = validate(model.module, val_loader)
        if rank == 0:
            print(f"epoch {epoch} val {val_loss:.4f}", flush=True)
        if val_loss < best:  # ALSO
            best = val_loss
            if rank == 0:
                torch.save(model.module.state_dict(), path)
            dist.barrier()  # GUILTY

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
