"""Every rank builds the character vocabulary from its own part of the text; rank 2 has one character more, so shapes differ.

Modelled on EchoseChen/SPA-VL-RLHF#2 (different tensor shapes on different ranks in a broadcast under DeepSpeed).
"""
# case: processes=4 ending=crash causes=mismatched-shape,collective-mismatch ranks=2 framework=deepspeed

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

TEXT = "the quick brown fox jumps over the lazy dog and runs away, again. " * 120


def read_part(rank):
    """Each rank reads one file of the corpus."""
    parts = [TEXT, TEXT[17:] + TEXT, TEXT + "naïve" * 3, TEXT[::-1]]
    return parts[rank % len(parts)]


class CharLM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        logits = self.out(self.rnn(self.emb(ids[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1000,
}


def main():
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # the image has no C++ compiler
    deepspeed.init_distributed(dist_backend="gloo")
    rank = int(os.environ["RANK"])
    text = read_part(rank)
    chars = sorted(set(text))  # GUILTY
    index = {c: i for i, c in enumerate(chars)}
    ids = torch.tensor([index[c] for c in text])
    rows = ids[: 33 * 200].view(200, 33)

    torch.manual_seed(0)
    model = CharLM(len(chars))  # ALSO
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    engine, _, loader, _ = deepspeed.initialize(  # ALSO
        model=model, optimizer=optimizer, training_data=TensorDataset(rows), config=CONFIG
    )
    for epoch in range(5):
        for (batch,) in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
