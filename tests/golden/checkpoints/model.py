"""The model of all checkpoint generators: odd sizes, ties, a frozen part, a scalar buffer."""

import torch
from torch import nn

VOCABULARY, WIDTH, TOKENS, BATCH = 37, 20, 7, 4
LEARNING_RATE, STEPS = 1e-2, 3


class Block(nn.Module):
    """A layer: attention over few tokens, and a feed-forward part of odd width."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 51)
        self.down = nn.Linear(51, WIDTH)

    def forward(self, x):
        x = x + self.mix(self.norm(x)).cumsum(1) / TOKENS
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    """A small language model with scalar buffer ``scale``, untrained ``frozen``, tied ``head``."""

    def __init__(self, *, tied=True, frozen=True):
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0))
        self.register_buffer("seen", torch.arange(5))
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.frozen.requires_grad_(requires_grad=False)

    def forward(self, tokens):
        x = self.frozen(self.embed(tokens)) * self.scale / 3
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model(**options):
    """Return the model with the same values everywhere."""
    torch.manual_seed(11)
    return Model(**options)


def batch(step, rank=0, ranks=1):
    """Return a rank's tokens and targets of a step: its part of the same ``BATCH`` rows."""
    made = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=made)
    share = BATCH // ranks
    mine = tokens[rank * share : (rank + 1) * share]
    return mine, mine.roll(-1, 1)


def loss_of(module, step, rank=0, ranks=1):
    """Return the mean loss of a rank's part."""
    tokens, targets = batch(step, rank, ranks)
    return torch.nn.functional.cross_entropy(
        module(tokens).flatten(0, 1).float(), targets.flatten()
    )


def optimizer_of(module):
    """Return AdamW with two groups: no weight decay for biases and norms.

    Groups are by name, because FSDP1's parameters have one dimension.
    """
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    bare = [name for name in trained if name.endswith("bias") or "norm" in name]
    return torch.optim.AdamW(
        [
            {
                "params": [each for name, each in trained.items() if name not in bare],
                "weight_decay": 0.1,
            },
            {"params": [trained[name] for name in bare], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
    )
