import torch
import torch.nn.functional as F
from torch import nn


class CaptionEncoder(nn.Module):
    def __init__(self, feature_dim=768, dim=256):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.text = nn.GRU(dim, dim, batch_first=True)
        self.image = nn.Linear(feature_dim, dim)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, tokens, feature):
        _, hidden = self.text(self.embed(tokens))
        text = F.normalize(hidden[-1], dim=-1)
        image = F.normalize(self.image(feature), dim=-1)
        logits = self.scale.exp() * image @ text.T
        labels = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
