"""Learning to rank: `rank` is a place in a list, `group` a query, and the event bus broadcasts inside one process."""
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class EventBus:
    def __init__(self):
        self._subscribers = defaultdict(list)

    def subscribe(self, topic, fn):
        self._subscribers[topic].append(fn)

    def broadcast(self, topic, **payload):
        for fn in self._subscribers[topic]:
            fn(**payload)


class WriterPool:
    def __init__(self, workers=2):
        self._pool, self._pending = ThreadPoolExecutor(workers), []

    def scatter(self, fn, items):
        self._pending.extend(self._pool.submit(fn, item) for item in items)

    def barrier(self):
        for future in self._pending:
            future.result()
        self._pending.clear()

    def all_gather(self):
        results = [f.result() for f in self._pending]
        self._pending.clear()
        return results


class QueryGroups(Dataset):
    def __init__(self, groups, docs=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.features = torch.randn(groups, docs, 6, generator=g)
        self.labels = (self.features[..., 0] + 0.3 * self.features[..., 1] > 0.5).float()

    def __len__(self):
        return len(self.features)

    def __getitem__(self, group):
        return self.features[group], self.labels[group]


def dcg(labels_by_rank):
    total = torch.zeros(labels_by_rank.shape[0], device=labels_by_rank.device)
    for rank in range(labels_by_rank.shape[1]):
        gain = 2 ** labels_by_rank[:, rank] - 1
        if rank == 0:
            total += gain
            continue
        total += gain / torch.log2(torch.tensor(rank + 2.0))
    return total


def ndcg_sums(scores, labels):
    order = scores.argsort(1, descending=True)
    ideal = dcg(labels.sort(1, descending=True).values)
    value = dcg(labels.gather(1, order)) / ideal.clamp(min=1e-6)
    valid = ideal > 0
    return torch.stack([(value * valid).sum(), valid.sum().float()])


class PairwiseLoss(nn.Module):
    def __init__(self, reduce="mean"):
        super().__init__()
        self.reduce = reduce

    def forward(self, scores, labels):
        better = labels.unsqueeze(2) > labels.unsqueeze(1)
        loss = nn.functional.softplus(-(scores.unsqueeze(2) - scores.unsqueeze(1))) * better
        return loss.sum() / better.sum().clamp(min=1) if self.reduce == "mean" else loss.sum()


@torch.no_grad()
def evaluate(scorer, loader, device):
    sums = torch.zeros(2, device=device)
    scorer.eval()
    for features, labels in loader:
        sums += ndcg_sums(scorer(features.to(device)).squeeze(-1), labels.to(device))
    scorer.train()
    dist.all_reduce(sums)
    return (sums[0] / sums[1].clamp(min=1)).item()


def attach_reports(bus, pool, path="ranking.log"):
    lines = []

    def remember(epoch, ndcg):
        lines.append(f"{epoch} {ndcg:.4f}")

    def write(text):
        with open(path, "a") as f:
            f.write(text + "\n")
        return len(text)

    bus.subscribe("validated", remember)
    bus.subscribe("finished", lambda: pool.scatter(write, ["\n".join(lines)]))


def main(epochs=4):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    main_process = dist.get_rank() == 0
    bus, pool = EventBus(), WriterPool()
    if main_process:
        attach_reports(bus, pool)
    train, valid = QueryGroups(256, seed=1), QueryGroups(64, seed=2)
    sampler = DistributedSampler(train)
    train_loader = DataLoader(train, batch_size=16, sampler=sampler)
    valid_loader = DataLoader(valid, batch_size=16, sampler=DistributedSampler(valid, shuffle=False))
    scorer = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
    model = DistributedDataParallel(scorer, device_ids=[device.index] if cuda else None)
    criterion, opt = PairwiseLoss(reduce="mean"), torch.optim.Adam(model.parameters(), lr=5e-3)
    best = 0.0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for features, labels in train_loader:
            loss = criterion(model(features.to(device)).squeeze(-1), labels.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        ndcg = evaluate(scorer, valid_loader, device)
        if main_process:
            bus.broadcast("validated", epoch=epoch, ndcg=ndcg)
        if ndcg > best:
            best = ndcg
            if main_process:
                pool.scatter(print, [f"best ndcg {best:.4f}"])
                pool.barrier()
    if main_process:
        bus.broadcast("finished")
        print(f"{sum(n for n in pool.all_gather() if n)} characters written")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
