from torch import nn


class FrameDenoiser(nn.Module):
    """Denoises its part of the frames and returns the prediction for all of them."""

    def __init__(self, ctx, channels=16, width=128):
        super().__init__()
        self.ctx = ctx
        self.net = nn.Sequential(
            nn.Conv3d(channels, width, (1, 3, 3), padding=(0, 1, 1)),
            nn.SiLU(),
            nn.Conv3d(width, channels, (1, 3, 3), padding=(0, 1, 1)),
        )

    def forward(self, latents, sigma):
        local = self.ctx.split(latents, dim=2)
        return self.ctx.join(self.net(local / (1 + sigma**2) ** 0.5), dim=2)
