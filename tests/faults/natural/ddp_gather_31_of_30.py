"""The predictions are gathered with all_gather, but the last rank's last batch has 30 samples and the others' 31."""
# case: processes=3 ending=crash causes=mismatched-shape,collective-mismatch ranks=2 framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def build_data():
    g = torch.Generator().manual_seed(3)
    features = torch.randn(3 * 63 - 1, 10, generator=g)
    labels = (features.sum(dim=1) > 0).float()
    return TensorDataset(features, labels)


def train_one_epoch(model, loader, optimizer, criterion):
    model.train()
    total = 0.0
    for _ in range(6):
        features, labels = next(iter(loader))
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(features).squeeze(1), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def evaluate(model, loader, world_size):
    model.eval()
    predictions = []
    with torch.no_grad():
        for features, _ in loader:
            scores = model.module(features).squeeze(1).sigmoid()
            gathered = [torch.zeros_like(scores) for _ in range(world_size)]
            dist.all_gather(gathered, scores)  # GUILTY
            predictions.append(torch.cat(gathered))
    return torch.cat(predictions)


def main():
    dist.init_process_group(backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = build_data()
    shard = Subset(dataset, range(rank, len(dataset), world_size))
    loader = DataLoader(shard, batch_size=32)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(3):
        loss = train_one_epoch(model, loader, optimizer, criterion)
        predictions = evaluate(model, loader, world_size)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, positives {(predictions > 0.5).sum().item()}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
