"""Batches are filled up to a number of tokens on each rank, so the ranks have different numbers of batches.

Modelled on litData#233 and rtg#11 (uneven numbers of batches with token budgets, then the end of the epoch does not match).
"""
# case: processes=3 ending=crash causes=uneven-inputs,rank-exits-early,rank-skips-collective,rank-missing-collective,collective-mismatch,mismatched-operation,mismatched-shape ranks=- framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, TOKENS_PER_BATCH = 120, 320


def corpus(rank):
    """The news part is long, the chat part short; every rank reads its own shard."""
    g = torch.Generator().manual_seed(40 + rank)
    low, high = [(6, 20), (6, 20), (10, 30)][rank]
    lengths = torch.randint(low, high, (240,), generator=g).tolist()
    return [torch.randint(1, VOCAB, (n,), generator=g) for n in lengths]


def token_batches(sentences):
    batch, longest = [], 0
    for sentence in sorted(sentences, key=len):
        longest = max(longest, len(sentence))
        if batch and longest * (len(batch) + 1) > TOKENS_PER_BATCH:  # ALSO
            yield nn.utils.rnn.pad_sequence(batch, batch_first=True)
            batch, longest = [], len(sentence)
        batch.append(sentence)
    yield nn.utils.rnn.pad_sequence(batch, batch_first=True)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 48, padding_idx=0)
        layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(48, VOCAB)

    def forward(self, tokens):
        return self.out(self.encoder(self.emb(tokens)))


@torch.no_grad()
def perplexity(model, rank):
    g = torch.Generator().manual_seed(9000 + rank)
    tokens = torch.randint(1, VOCAB, (32, 12), generator=g)
    model.eval()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    model.train()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)  # ALSO
    return (loss / dist.get_world_size()).exp().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Translator())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sentences = corpus(rank)
    for epoch in range(3):
        for tokens in token_batches(sentences):  # GUILTY
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)  # ALSO
            optimizer.zero_grad()
            loss.backward()  # ALSO
            optimizer.step()
        score = perplexity(model.module, rank)  # ALSO
        if rank == 0:
            print(f"epoch {epoch} perplexity {score:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
