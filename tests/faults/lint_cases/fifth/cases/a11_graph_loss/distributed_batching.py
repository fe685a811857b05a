import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits as criterion
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from data import MoleculeSet, collate
from model import GraphClassifier


def forward(model, batch, device):
    batch = {k: v.to(device) for k, v in batch.items()}
    logits = model(batch["x"], batch["edge_index"], batch["batch"], len(batch["y"]))
    return logits, batch["y"].float()


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    right, seen = 0, 0
    for batch in loader:
        logits, y = forward(model, batch, device)
        right += ((logits > 0) == (y > 0.5)).sum().item()
        seen += len(y)
    return right / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="molecules.pt")
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

    train_set = MoleculeSet(args.data, "train")
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=128, sampler=sampler, collate_fn=collate)
    val_loader = DataLoader(MoleculeSet(args.data, "val"), batch_size=256, collate_fn=collate)
    test_loader = DataLoader(MoleculeSet(args.data, "test"), batch_size=256, collate_fn=collate)
    torch.manual_seed(12345)
    model = GraphClassifier(train_set[0]["x"].shape[1]).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        total_loss = torch.zeros(1, device=device)
        for batch in train_loader:
            logits, y = forward(model, batch, device)
            loss = criterion(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.detach() * len(y)
        loss = total_loss.item() / len(train_loader.dataset)
        dist.barrier()
        if rank == 0:
            val = test(model.module, val_loader, device)
            final = test(model.module, test_loader, device)
            print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Val: {val:.4f}, Test: {final:.4f}")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
