import copy
import math

import torch
import torch.nn as nn


class ModelEMA(nn.Module):
    """Keeps a moving average of a model; the decay ramps up with the number of updates."""

    def __init__(self, model, decay=0.9998, warmup_steps=2000):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.base_decay = decay
        self.warmup_steps = warmup_steps
        self.updates = 0

    def current_decay(self):
        return self.base_decay * (1.0 - math.exp(-float(self.updates) / self.warmup_steps))

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = self.current_decay()
        source = model.state_dict()
        for name, value in self.module.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(decay).add_(source[name].detach(), alpha=1.0 - decay)
            else:
                value.copy_(source[name])

    def forward(self, x):
        return self.module(x)
