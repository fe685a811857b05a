"""User-style modules for the tests of `holdfast.plan.torch_tracing`."""

import os
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, INNER, HEADS, VOCAB = 256, 704, 4, 4096


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](x)
        heads = (
            each(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.wq, self.wk, self.wv)
        )
        x = x + self.wo(
            functional.scaled_dot_product_attention(*heads, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class GptLayer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.n_head, self.dropout = HEADS, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(WIDTH, WIDTH)}
        )
        self.fc, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        packed = self.attn["c_attn"](self.ln_1(x)).split(WIDTH, dim=2)
        heads = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in packed)
        result = functional.scaled_dot_product_attention(
            *heads, is_causal=True, dropout_p=self.dropout
        )
        x = x + functional.dropout(
            self.attn["c_proj"](result.transpose(1, 2).flatten(2)), self.dropout
        )
        return x + functional.dropout(
            self.proj(functional.gelu(self.fc(self.ln_2(x)))), self.dropout
        )


class Model(nn.Module):
    """Token ids to logits."""

    def __init__(self, layers, norm, positions=0):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(positions, WIDTH) if positions else None
        self.layers, self.norm = nn.ModuleList(layers), norm
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.positions:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def llama(layers=8):
    return Model([LlamaLayer() for _ in range(layers)], nn.RMSNorm(WIDTH))


def gpt(layers=8):
    """Return a GPT with a tied head, as in nanoGPT, and with dropout."""
    model = Model([GptLayer(0.1) for _ in range(layers)], nn.LayerNorm(WIDTH), positions=1024)
    model.head.weight = model.embedding.weight
    return model


def four_layers():
    return llama(4)


def reads_values():
    """Return a model that reads rates from a tensor, as stochastic depth does."""
    if not torch.empty(()).is_meta:
        assert torch.linspace(0, 0.1, 4).tolist()
    return llama(4)


def eight_layers():
    """Return a model without a depth parameter; extra layers are removed."""
    return llama(8)


def images():
    """Return a non-transformer with its step; every second layer is frozen."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 32 * 32, 10),
    )
    model[0].requires_grad_(requires_grad=False)

    def step(module, micro_batch, _sequence):
        return functional.cross_entropy(
            module(torch.zeros(micro_batch, 3, 32, 32)), torch.zeros(micro_batch, dtype=torch.long)
        )

    return model, step


def data_dependent():
    def step(module, micro_batch, sequence):
        result = module(torch.zeros(micro_batch, sequence, 8)).sum()
        return result if result > 0 else -result

    return nn.Linear(8, 8), step


def no_module():
    return 42


def broken():
    return nn.Linear(2, 3) @ 4


def greedy():
    return torch.ones(1 << 40, dtype=torch.uint8, device="cpu")


def slow():
    time.sleep(60)


def prints_and_dies():
    os.write(1, b"noise that is no answer\n")
    os.write(2, b"the last thing it said\n")
    os._exit(7)
