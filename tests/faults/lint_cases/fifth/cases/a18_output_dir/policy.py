import torch
from torch import nn


class FlowPolicy(nn.Module):
    def __init__(self, state_dim=64, action_dim=14, horizon=32, width=1024):
        super().__init__()
        self.horizon, self.action_dim = horizon, action_dim
        flat = horizon * action_dim
        self.net = nn.Sequential(
            nn.Linear(state_dim + flat + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, flat)
        )

    def forward(self, state, action):
        noise = torch.randn_like(action)
        time = torch.rand(len(action), 1, device=action.device, dtype=action.dtype)
        mixed = torch.lerp(noise.flatten(1), action.flatten(1), time)
        velocity = self.net(torch.cat([state, mixed, time], dim=-1))
        return (velocity - (action - noise).flatten(1)).pow(2).mean()
