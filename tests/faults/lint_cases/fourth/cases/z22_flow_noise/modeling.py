import torch
from torch import nn

from utils import sample_beta


class ActionExpert(nn.Module):
    def __init__(self, action_dim=14, horizon=32, dim=512):
        super().__init__()
        self.horizon, self.action_dim = horizon, action_dim
        self.observe = nn.Linear(1024, dim)
        self.time = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.action = nn.Linear(action_dim, dim)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 8, dropout=0.0, batch_first=True), 6)
        self.out = nn.Linear(dim, action_dim)

    def forward(self, observation, actions):
        noise = torch.randn_like(actions)
        t = sample_beta(1.5, 1.0, len(actions), actions.device)[:, None, None] * 0.999 + 0.001
        x_t = t * noise + (1 - t) * actions
        h = self.action(x_t) + self.time(t) + self.observe(observation)[:, None]
        velocity = self.out(self.body(h))
        return nn.functional.mse_loss(velocity, noise - actions)
