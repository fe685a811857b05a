"""A minGPT-like trainer splits the samples by hand, so the last rank has fewer batches and leaves first (no join)."""
# case: processes=4 ending=crash causes=uneven-inputs,rank-exits-early ranks=3 framework=ddp

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class TrainerConfig:
    max_epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 3e-4


class CharDataset(torch.utils.data.Dataset):
    def __init__(self, data, block_size=16):
        self.data, self.block_size = data, block_size

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self, vocab_size=65, n_embd=48):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx)
        logits = self.lm_head(x + self.mlp(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class Trainer:
    def __init__(self, model, dataset, config):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.config = config
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        per_rank = -(-len(dataset) // (64 * self.world)) * 64  # whole blocks
        first = self.rank * per_rank
        shard = range(first, min(first + per_rank, len(dataset)))
        self.loader = torch.utils.data.DataLoader(
            torch.utils.data.Subset(dataset, shard), batch_size=config.batch_size
        )

    def train(self):
        for epoch in range(self.config.max_epochs):
            for it, (x, y) in enumerate(self.loader):  # GUILTY
                loss = self.model(x, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if it % 20 == 0 and self.rank == 0:
                    print(f"epoch {epoch} iter {it}: train loss {loss.item():.5f}")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    text = torch.randint(0, 65, (16 + 1723,))
    Trainer(GPT(), CharDataset(text), TrainerConfig()).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
