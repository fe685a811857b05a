import contextlib

import torch


class EMATracker:
    """Exponential moving average of the trainable parameters of a model."""

    def __init__(self, model, decay, faster_decay_at_start=True):
        self.decay = decay
        self.faster_decay_at_start = faster_decay_at_start
        self.num_updates = 0
        self._ema_params = {
            name: param.detach().clone() for name, param in model.named_parameters() if param.requires_grad
        }

    def _current_decay(self):
        if self.faster_decay_at_start:
            return min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        return self.decay

    @torch.no_grad()
    def __call__(self, model):
        self.num_updates += 1
        weight = 1.0 - self._current_decay()
        for name, param in model.named_parameters():
            if param.requires_grad:
                self._ema_params[name].lerp_(param.detach(), weight)

    @contextlib.contextmanager
    def applied_params(self, model):
        backup = {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                backup[name] = param.detach().clone()
                param.data.copy_(self._ema_params[name])
        try:
            yield
        finally:
            for name, param in model.named_parameters():
                if name in backup:
                    param.data.copy_(backup[name])

    def state_dict(self):
        return {"num_updates": self.num_updates, "params": self._ema_params}

    def load_state_dict(self, state):
        self.num_updates = state["num_updates"]
        for name, value in state["params"].items():
            self._ema_params[name] = value.to(self._ema_params[name].device)
