import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, device, args):
        self.device = device
        self.args = args
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def train_epoch(self, loader, epoch):
        self.model.train()
        loader.sampler.set_epoch(epoch)
        for pairs in loader:
            users, items = pairs.to(self.device).unbind(1)
            negatives = torch.randint_like(items, self.args.n_items)
            pos, neg = self.model(users, items, negatives)
            loss = -F.logsigmoid(pos - neg).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader):
        net = self.model.module
        net.eval()
        sums = {"recall": 0.0, "ndcg": 0.0}
        n_users = 0
        for batch in loader:
            for user, seen, truth in batch:
                scores = net.full_sort(torch.tensor([user], device=self.device)).squeeze(0)
                scores[torch.tensor(seen, dtype=torch.long, device=self.device)] = -math.inf
                top = scores.topk(self.args.topk).indices.tolist()
                hits = [item in truth for item in top]
                ideal = sum(1 / math.log2(i + 2) for i in range(min(len(truth), self.args.topk)))
                sums["recall"] += sum(hits) / len(truth)
                sums["ndcg"] += sum(h / math.log2(i + 2) for i, h in enumerate(hits)) / ideal
                n_users += 1
        return self._reduce(sums, n_users)

    def _reduce(self, sums, n_users):
        values = torch.tensor([*sums.values(), n_users], dtype=torch.float64, device=self.device)
        dist.all_reduce(values)
        return {name: (values[i] / values[-1]).item() for i, name in enumerate(sums)}
