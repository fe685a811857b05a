import torch
from torch import nn


class VisionTower(nn.Module):
    def __init__(self, dim=256, layers=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 14, stride=14)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, batch_first=True) for _ in range(layers)])

    def forward(self, pixel_values):
        x = self.patch(pixel_values).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


class VisionLanguageModel(nn.Module):
    image_token_id = 1

    def __init__(self, vocab=32000, dim=256, layers=4):
        super().__init__()
        self.visual = VisionTower(dim)
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, batch_first=True) for _ in range(layers)])
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, pixel_values=None):
        embeds = self.embed_tokens(input_ids)
        if pixel_values is not None:
            image_embeds = self.visual(pixel_values)
            mask = input_ids == self.image_token_id
            embeds = embeds.masked_scatter(mask[..., None], image_embeds.to(embeds.dtype))
        for layer in self.layers:
            embeds = layer(embeds)
        return self.lm_head(embeds)
