import torch
import torch.nn.functional as F


class PyramidPipeline:
    """Coarse to fine: each stage upsamples the latents and renoises them before its steps."""

    def __init__(self, model, ctx, stages=3, steps=8, gamma=0.3):
        self.model = model
        self.ctx = ctx
        self.stages = stages
        self.steps = steps
        self.gamma = gamma

    def initial_latents(self, shape, device):
        return torch.randn(shape, generator=self.ctx.generator, device=device)

    def block_noise(self, latents):
        b, c, t, h, w = latents.shape
        coarse = torch.randn(b, c, t, h // 2, w // 2, device=latents.device)
        return F.interpolate(coarse, size=(t, h, w), mode="nearest")

    def upsample(self, latents):
        b, c, t, h, w = latents.shape
        latents = F.interpolate(latents, size=(t, 2 * h, 2 * w), mode="nearest")
        alpha = 1 / (1 + self.gamma)
        return alpha * latents + (1 - alpha) * self.block_noise(latents)

    def denoise(self, latents):
        sigmas = torch.linspace(1.0, 0.0, self.steps + 1).tolist()
        for sigma, following in zip(sigmas, sigmas[1:]):
            velocity = self.model(latents, sigma)
            latents = latents + (following - sigma) * velocity
        return latents

    @torch.no_grad()
    def __call__(self, shape, device):
        latents = self.initial_latents(shape, device)
        for stage in range(self.stages):
            if stage > 0:
                latents = self.upsample(latents)
            latents = self.denoise(latents)
        return latents
