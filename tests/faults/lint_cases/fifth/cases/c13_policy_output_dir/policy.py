import torch
import torch.nn.functional as F
from torch import nn


class ActionChunkPolicy(nn.Module):
    def __init__(self, obs_dim=64, action_dim=14, chunk=16):
        super().__init__()
        self.chunk, self.action_dim = chunk, action_dim
        self.net = nn.Sequential(
            nn.Linear(obs_dim, 1024), nn.GELU(),
            nn.Linear(1024, 1024), nn.GELU(),
            nn.Linear(1024, chunk * action_dim),
        )

    def forward(self, obs, actions):
        dtype = next(self.parameters()).dtype
        out = self.net(obs.to(dtype)).view(-1, self.chunk, self.action_dim)
        return F.l1_loss(out.float(), actions)


def load_demonstrations(path):
    blob = torch.load(path)
    return torch.utils.data.TensorDataset(blob["obs"], blob["actions"])
