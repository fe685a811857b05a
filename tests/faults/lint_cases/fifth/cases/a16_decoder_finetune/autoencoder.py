import torch
from torch import nn


class RepresentationAutoencoder(nn.Module):
    """A frozen encoder of image patches and a decoder which is trained to invert it."""

    def __init__(self, patch=16, dim=768, depth=4, noise_tau=0.5):
        super().__init__()
        self.patch = patch
        self.noise_tau = noise_tau
        self.encoder = nn.Conv2d(3, dim, patch, stride=patch)
        self.encoder.requires_grad_(False)
        layer = nn.TransformerEncoderLayer(dim, 12, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.to_pixels = nn.Linear(dim, 3 * patch * patch)

    @torch.no_grad()
    def encode(self, images):
        return self.encoder(images).flatten(2).transpose(1, 2)

    def decode(self, latents):
        pixels = self.to_pixels(self.decoder(latents))
        side = int(pixels.shape[1] ** 0.5)
        pixels = pixels.unflatten(1, (side, side)).unflatten(-1, (3, self.patch, self.patch))
        return pixels.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)

    def forward(self, latents):
        if self.training and self.noise_tau > 0:
            sigma = self.noise_tau * torch.rand(len(latents), 1, 1, device=latents.device)
            latents = latents + sigma * torch.randn_like(latents)
        return self.decode(latents)
