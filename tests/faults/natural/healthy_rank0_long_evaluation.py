"""Healthy: rank 0 evaluates the plain model for 20 s, and the others wait for it in a barrier."""
# case: processes=3 ending=well framework=ddp

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

EVALUATION_S = 20


class Generator(nn.Module):
    def __init__(self, vocab=50, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        h = torch.zeros(len(tokens), self.cell.hidden_size)
        logits = []
        for token in tokens.unbind(1):
            h = self.cell(self.embed(token), h)
            logits.append(self.head(h))
        return torch.stack(logits, dim=1)


@torch.no_grad()
def evaluate(model):
    """Score as many prompts as fit into the time of the benchmark."""
    model.eval()
    until, scores = time.monotonic() + EVALUATION_S, []
    while time.monotonic() < until:
        tokens = torch.randint(0, 50, (16, 64))
        logits = model(tokens[:, :-1])
        scores.append(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    model.train()
    return torch.stack(scores).mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Generator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 41):
        tokens = torch.randint(0, 50, (8, 17))
        loss = nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            if rank == 0:
                print(f"step {step} evaluation {evaluate(model.module):.4f}", flush=True)
            dist.barrier()
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
