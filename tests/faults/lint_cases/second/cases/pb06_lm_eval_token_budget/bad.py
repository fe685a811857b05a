"""Log-likelihood evaluation of a sharded language model on multiple-choice tasks."""
import os
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

VOCAB = 89


@dataclass
class Request:
    doc: int
    choice: int
    tokens: torch.Tensor
    answer: bool

    @property
    def cost(self):
        return len(self.tokens)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.rnn(self.norm(x))[0]


class TinyLM(nn.Module):
    def __init__(self, dim=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def load_task(docs=60, choices=4):
    gen = torch.Generator().manual_seed(3)
    for doc in range(docs):
        right = int(torch.randint(0, choices, (1,), generator=gen))
        for choice in range(choices):
            length = 4 + int(torch.randint(0, 8 + doc, (1,), generator=gen))
            yield Request(doc, choice, torch.randint(0, VOCAB, (length,), generator=gen), choice == right)


class TokenBudgetBatcher:
    """Longest requests first; a batch holds as many as its padded size allows."""

    def __init__(self, requests, budget=384):
        self.requests = sorted(requests, key=lambda r: -r.cost)
        self.budget = budget

    def __iter__(self):
        left = iter(self.requests)
        head = next(left, None)
        while head is not None:
            rows = [head, *islice(left, max(1, self.budget // head.cost) - 1)]
            yield rows
            head = next(left, None)


class Harness:
    def __init__(self, model, device):
        self.model, self.device = model, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def _forward(self, rows):
        ids = nn.utils.rnn.pad_sequence([r.tokens for r in rows], batch_first=True).to(self.device)
        return ids, self.model(ids).log_softmax(-1)  # RELATED: hidden-collective

    @torch.no_grad()
    def _loglikelihood(self, rows):
        ids, logp = self._forward(rows)
        token = logp[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
        return [token[i, : r.cost - 1].sum().item() for i, r in enumerate(rows)]

    def run(self, requests):
        docs = 1 + max(r.doc for r in requests)
        mine = [r for r in requests if r.doc * self.world // docs == self.rank]  # RELATED: source
        best = {}
        for rows in TokenBudgetBatcher(mine):  # EXPECT: uneven-loop
            for request, value in zip(rows, self._loglikelihood(rows)):
                if value > best.get(request.doc, (float("-inf"), None))[0]:
                    best[request.doc] = (value, request.answer)
        hits = torch.tensor([sum(a for _, a in best.values()), len(best)], dtype=torch.float64, device=self.device)
        dist.all_reduce(hits)
        return (hits[0] / hits[1]).item()


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    torch.manual_seed(5)
    model = FSDP(TinyLM().to(device), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device).eval()
    accuracy = Harness(model, device).run(list(load_task()))
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
