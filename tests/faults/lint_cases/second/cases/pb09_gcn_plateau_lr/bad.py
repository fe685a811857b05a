"""Graph convolution for node classification; every rank owns one partition of the graph."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau


@dataclass
class Partition:
    features: torch.Tensor
    adjacency: torch.Tensor
    labels: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor

    def to(self, device):
        return Partition(*(t.to(device) for t in vars(self).values()))


def load_partition(part, nodes=160, classes=5, dim=16):
    gen = torch.Generator().manual_seed(40 + part)
    labels = torch.randint(0, classes, (nodes,), generator=gen)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(9))
    noise = 0.8 + 0.9 * part
    features = centres[labels] + noise * torch.randn(nodes, dim, generator=gen)
    same = labels[:, None] == labels[None, :]
    link = torch.rand(nodes, nodes, generator=gen) < torch.where(same, 0.08, 0.02)
    adjacency = (link | link.T).float() + torch.eye(nodes)
    split = torch.rand(nodes, generator=gen) < 0.6
    return Partition(features, adjacency / adjacency.sum(1, keepdim=True), labels, split, ~split)


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Linear(inputs, outputs)

    def forward(self, x, adjacency):
        return adjacency @ self.weight(x)


class GCN(nn.Module):
    def __init__(self, inputs=16, hidden=32, classes=5):
        super().__init__()
        self.first = GraphConv(inputs, hidden)
        self.second = GraphConv(hidden, classes)

    def forward(self, part):
        x = F.relu(self.first(part.features, part.adjacency))
        return self.second(F.dropout(x, 0.3, self.training), part.adjacency)


class PlateauSchedule:
    """Halves the learning rate once the validation loss has stopped falling."""

    def __init__(self, optimizer, patience):
        self.inner = ReduceLROnPlateau(optimizer, factor=0.5, patience=patience)
        self.optimizer = optimizer

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]

    def end_of_epoch(self, val_loss):
        self.inner.step(val_loss)  # EXPECT: rank-local-state
        return self.lr


class NodeTrainer:
    def __init__(self, part, device):
        self.part = part.to(device)
        self.model = DDP(GCN().to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.schedule = PlateauSchedule(self.optimizer, patience=3)

    def train_epoch(self):
        self.model.train()
        logits = self.model(self.part)
        loss = F.cross_entropy(logits[self.part.train_mask], self.part.labels[self.part.train_mask])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        mask = self.part.val_mask
        logits = self.model(self.part)[mask]
        labels = self.part.labels[mask]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return loss, (logits.argmax(-1) == labels).sum(), mask.sum()

    def fit(self, epochs=60):
        for epoch in range(epochs):
            self.train_epoch()
            loss, hits, count = self.validate()
            lr = self.schedule.end_of_epoch((loss / count).item())  # RELATED: source
            metrics = torch.stack([loss, hits.float(), count.float()])
            dist.all_reduce(metrics)
            loss, hits, count = metrics.tolist()
            if dist.get_rank() == 0 and epoch % 10 == 0:
                print(f"epoch {epoch} val {loss / count:.3f} acc {hits / count:.3f} lr {lr:.4g}", flush=True)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(100 + dist.get_rank())
    NodeTrainer(load_partition(dist.get_rank()), device).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
