import torch
from torch import nn

from usp import merge_frames, split_frames


class FrameMixer(nn.Module):
    """Small denoiser; the temporal mixing looks at all frames."""

    def __init__(self, channels=16, width=128):
        super().__init__()
        self.inp = nn.Conv3d(channels, width, (1, 3, 3), padding=(0, 1, 1))
        self.mix = nn.MultiheadAttention(width, 8, batch_first=True)
        self.out = nn.Conv3d(width, channels, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x, sigma):
        h = self.inp(x) * (1 + sigma)
        local = h.mean(dim=(3, 4)).transpose(1, 2)
        every = merge_frames(h).mean(dim=(3, 4)).transpose(1, 2)
        mixed, _ = self.mix(local, every, every)
        return self.out(h + mixed.transpose(1, 2)[..., None, None])


@torch.no_grad()
def sample(model, shape, steps, seed, device, guide=None):
    generator = torch.Generator(device=device).manual_seed(seed)
    latents = torch.randn(shape, generator=generator, device=device)
    if guide is not None:
        latents[:, :, :1] = guide
    x = split_frames(latents)
    sigmas = torch.linspace(1.0, 0.0, steps + 1, device=device)
    for now, nxt in zip(sigmas[:-1], sigmas[1:]):
        x = x + (nxt - now) * model(x, now)
    return merge_frames(x)
