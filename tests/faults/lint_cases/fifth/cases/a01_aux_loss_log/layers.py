import torch
from torch import nn


class DenseLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class MoELayer(nn.Module):
    def __init__(self, dim, experts, index, tracker):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(DenseLayer(dim) for _ in range(experts))
        self.index = index
        self.tracker = tracker

    def forward(self, x):
        logits = self.router(self.norm(x))
        probs = logits.softmax(-1)
        load = probs.flatten(0, -2).mean(0)
        self.tracker.save("load_balancing_loss", (load * load).sum() * len(self.experts), self.index)
        self.tracker.save("z_loss", torch.logsumexp(logits, -1).pow(2).mean(), self.index)
        return x + sum(probs[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


def build_stage(cfg, state, tracker):
    per_stage = cfg.num_layers // state.pp_size
    first = state.pp_rank * per_stage
    layers = []
    for index in range(first, first + per_stage):
        if index < cfg.first_dense:
            layers.append(DenseLayer(cfg.dim))
        else:
            layers.append(MoELayer(cfg.dim, cfg.experts, index, tracker))
    return nn.Sequential(*layers)
