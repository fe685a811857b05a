from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bucketed import BucketedAverager


@dataclass
class Settings:
    vocab: int = 8000
    dim: int = 256
    batch: int = 32
    epochs: int = 3
    lr: float = 3e-4


class Masked(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.dim)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(s.dim, 8, batch_first=True), 4)
        self.head = nn.Linear(s.dim, s.vocab)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


def main():
    settings = Settings()
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = Masked(settings)
    torch.manual_seed(7 + dist.get_rank())
    averager = BucketedAverager(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    ids = torch.randint(0, settings.vocab, (4096, 64), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(ids)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, settings.batch, sampler=sampler, drop_last=True)
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            mask = torch.rand(ids.shape) < 0.15
            logits = model(ids.masked_fill(mask, 0))
            loss = nn.functional.cross_entropy(logits[mask], ids[mask])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            averager.start()
            value = loss.item()
            averager.finish()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
