import torch
from torch import nn


class GINLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, edge_index):
        source, target = edge_index
        return self.mlp(x + torch.zeros_like(x).index_add_(0, target, x[source]))


class GraphClassifier(nn.Module):
    def __init__(self, features, dim=128, depth=4):
        super().__init__()
        self.lift = nn.Linear(features, dim)
        self.layers = nn.ModuleList(GINLayer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1)

    def forward(self, x, edge_index, batch, size):
        x = self.lift(x)
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        pooled = x.new_zeros(size, x.shape[1]).index_add_(0, batch, x)
        return self.head(pooled)[:, 0]
