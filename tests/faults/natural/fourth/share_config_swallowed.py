"""Rank 0 cannot pickle its configuration for the broadcast; the exception is swallowed, and the others wait for the object.

Modelled on broadcast helpers that fall back to local defaults (reviews of TensorRT-LLM#7507: keep collectives aligned if pickling fails).
"""
# case: processes=3 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective,python-exception-on-one-rank,rank-guarded-collective ranks=0 framework=ddp

import dataclasses
import logging
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("train")


@dataclasses.dataclass
class TrainConfig:
    lr: float = 1e-3
    steps: int = 80
    warmup: int = 10
    latent: int = 8
    beta: object = None


def linear_beta(step):
    return min(1.0, step / 50)


def load_config(rank):
    """Only rank 0 reads the experiment file; there the KL weight became a cosine last week."""
    config = TrainConfig(beta=linear_beta)
    if rank == 0:
        cycle = config.steps // 2
        config.beta = lambda step: 0.5 * (1 - math.cos(math.pi * min(1.0, step / cycle)))  # ALSO
    return config


def share(config, rank):
    """Broadcast rank 0's configuration; without it, each rank trains with the defaults."""
    box = [config if rank == 0 else None]
    try:
        dist.broadcast_object_list(box, src=0)  # GUILTY
    except Exception as error:  # ALSO
        log.debug("configuration was not shared: %s", error)
        return config  # ALSO
    return box[0]


class VAE(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
        return self.decoder(z), kl


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    config = share(load_config(rank), rank)  # ALSO
    torch.manual_seed(0)
    model = DDP(VAE(config.latent))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    torch.manual_seed(rank)
    for step in range(config.steps):
        x = torch.rand(16, 64)
        recon, kl = model(x)
        loss = nn.functional.mse_loss(recon, x) + config.beta(step) * 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            log.info("step %d loss %.4f", step, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
