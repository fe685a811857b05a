"""One rank skips update() for queries without a relevant document, so its torchmetrics list state is shorter and compute() gathers less.

Modelled on Lightning-AI/torchmetrics#3336 and #2463 (list states of different lengths deadlock in the synchronization).
"""
# case: processes=3 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective,mismatched-shape ranks=2 framework=torchmetrics

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torchmetrics import Metric


class SlideRecall(Metric):
    """Recall at 5 per slide; the per-slide scores are kept for the report."""

    def __init__(self):
        super().__init__()
        self.add_state("scores", default=[], dist_reduce_fx=None)
        self.add_state("relevant", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, similarity, target):
        hits = target[similarity.topk(5).indices].sum()
        self.scores.append((hits / target.sum()).reshape(1))
        self.relevant += int(target.sum())

    def compute(self):
        scores = self.scores if isinstance(self.scores, torch.Tensor) else torch.cat(list(self.scores))
        return scores.mean(), self.relevant


class PatchEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=-1)


def slide(rank, index):
    """Return the patches of a slide, and which of them show a tumour."""
    g = torch.Generator().manual_seed(500 * rank + index)
    patches = torch.randn(30, 48, generator=g)
    tumour = (torch.rand(30, generator=g) < 0.3).float()
    if rank == 2 and index in {13, 17}:
        tumour.zero_()  # slides of healthy tissue
    return patches, tumour


@torch.no_grad()
def validate(encoder, rank, slides):
    metric = SlideRecall()
    encoder.eval()
    for index in slides:
        patches, tumour = slide(rank, index)
        if tumour.sum() == 0:  # GUILTY
            continue  # ALSO
        features = encoder(patches)
        query = features[tumour.argmax()]
        metric.update(features @ query, tumour)
    encoder.train()
    return metric.compute()  # ALSO


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = DDP(PatchEncoder())
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for epoch in range(3):
        for index in range(24):
            patches, tumour = slide(rank, 100 + index)
            features = encoder(patches)
            loss = nn.functional.binary_cross_entropy_with_logits((features @ features.T).mean(1), tumour)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recall, relevant = validate(encoder.module, rank, range(8 * epoch, 8 * epoch + 8))
        if rank == 0:
            print(f"epoch {epoch}: recall@5 {recall.item():.3f} of {int(relevant)} relevant patches", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
