import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from mixins import ClippingMixin, LoggingMixin, ShardingMixin


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 1024
    layers: int = 12
    batch: int = 8
    accumulation: int = 4
    lr: float = 4e-4
    epochs: int = 1


class CausalLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.dim)
        layer = nn.TransformerEncoderLayer(c.dim, 16, batch_first=True, norm_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, c.layers)
        self.head = nn.Linear(c.dim, c.vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1] - 1, device=ids.device)
        h = self.body(self.embed(ids[:, :-1]), mask=mask)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1).float(), ids[:, 1:].flatten())


class Trainer(ShardingMixin, ClippingMixin, LoggingMixin):
    def __init__(self, config, tokens):
        self.config = config
        self.model = self.shard(CausalLM(config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        data = TensorDataset(tokens)
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, config.batch, sampler=self.sampler, drop_last=True)

    def fit(self):
        step = 0
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            for i, (ids,) in enumerate(self.loader):
                loss = self.model(ids.cuda()) / self.config.accumulation
                loss.backward()
                if (i + 1) % self.config.accumulation == 0:
                    norm = self.clip_gradients()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    step += 1
                    self.log(step, loss=loss * self.config.accumulation, norm=norm)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    Trainer(Config(), torch.load("tokens.pt")).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
