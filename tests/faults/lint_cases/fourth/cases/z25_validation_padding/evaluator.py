import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class DistributedEvaluator:
    """Exact-match accuracy of a data set, computed on all ranks."""

    def __init__(self, dataset, batch_size, device, collate_fn=None):
        self.dataset = dataset
        self.device = device
        sampler = DistributedSampler(dataset, shuffle=False)
        self.loader = DataLoader(dataset, batch_size, sampler=sampler, collate_fn=collate_fn)

    @torch.no_grad()
    def __call__(self, model):
        was_training = model.training
        model.eval()
        predictions, references = [], []
        for tokens, labels in self.loader:
            predictions.append(model(tokens.to(self.device)).argmax(-1))
            references.append(labels.to(self.device))
        predictions = self._gather(torch.cat(predictions))
        references = self._gather(torch.cat(references))
        model.train(was_training)
        return (predictions == references).float().mean().item()

    @staticmethod
    def _gather(tensor):
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        return torch.stack(parts, dim=1).flatten(0, 1)
