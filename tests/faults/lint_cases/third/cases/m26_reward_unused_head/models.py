import torch
from torch import nn


class Transformer(nn.Module):
    def __init__(self, vocab=32000, dim=256, layers=4, heads=4, context=512):
        super().__init__()
        self.token_embed = nn.Embedding(vocab, dim)
        self.position_embed = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(dim, heads, batch_first=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab)

    def forward_hidden(self, ids):
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.token_embed(ids) + self.position_embed(positions)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, ids):
        return self.lm_head(self.forward_hidden(ids))


class RewardModel(nn.Module):
    """A pretrained backbone with a scalar head on the last hidden state."""

    def __init__(self, backbone, dim=256):
        super().__init__()
        self.backbone = backbone
        self.reward_head = nn.Linear(dim, 1, bias=False)

    def forward(self, ids, lengths):
        hidden = self.backbone.forward_hidden(ids)
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        return self.reward_head(last).squeeze(-1)
