import torch
import torch.nn as nn
import torch.nn.functional as F


class DDPLoss(nn.Module):
    """Applies an elementwise loss to predictions of the local part of the batch."""

    def __init__(self, kind):
        super().__init__()
        if kind not in ("mae", "mse", "l2mae"):
            raise ValueError(f"unknown loss {kind}")
        self.kind = kind

    def elementwise(self, pred, target):
        if self.kind == "mae":
            return F.l1_loss(pred, target, reduction="none")
        if self.kind == "mse":
            return F.mse_loss(pred, target, reduction="none")
        return torch.linalg.vector_norm(pred - target, dim=-1)

    def forward(self, pred, target):
        values = self.elementwise(pred, target)
        loss = values.sum()
        num_samples = torch.tensor(float(values.numel()), device=pred.device)
        return loss / num_samples
