import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def gather_rows(tensor):
    """Concatenate equally shaped per-rank tensors in dataset order."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.stack(parts, dim=1).flatten(0, 1)


class MulticlassAccuracy:
    def __init__(self):
        self.correct = 0
        self.total = 0

    def update(self, preds, targets):
        self.correct += int((preds == targets).sum())
        self.total += targets.numel()

    def compute(self):
        return self.correct / max(1, self.total)


class Evaluator:
    def __init__(self, label, dataset, batch_size, device):
        self.label = label
        self.dataset = dataset
        self.device = device
        sampler = DistributedSampler(dataset, shuffle=False)
        self.loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)

    @torch.no_grad()
    def run(self, model):
        was_training = model.training
        model.eval()
        preds, targets = [], []
        for x, y in self.loader:
            preds.append(model(x.to(self.device)).argmax(dim=-1))
            targets.append(y.to(self.device))
        all_preds = gather_rows(torch.cat(preds))
        all_targets = gather_rows(torch.cat(targets))
        metric = MulticlassAccuracy()
        metric.update(all_preds, all_targets)
        model.train(was_training)
        return {f"metrics/{self.label}/MulticlassAccuracy": metric.compute()}
