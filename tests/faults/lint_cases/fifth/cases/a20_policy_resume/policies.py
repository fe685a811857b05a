from pathlib import Path

from safetensors.torch import load_file
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class WorldActionModel(nn.Module):
    def __init__(self, dim=4096, depth=32, action_dim=14):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, action_dim)

    def forward(self, features, actions):
        for block in self.blocks:
            features = block(features)
        return (self.head(features) - actions).pow(2).mean()

    @classmethod
    def from_pretrained(cls, folder, device):
        model = cls().to(device)
        weights = load_file(Path(folder) / "model.safetensors", device=device)
        model.load_state_dict(weights, strict=True)
        return model
