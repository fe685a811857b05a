"""Vector-quantised speech codec: encoder, EMA codebook, decoder, trained with DistributedDataParallel."""
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger("codec")


def is_distributed():
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(tensor):
    if is_distributed():
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def from_first_rank(tensor):
    if is_distributed():
        dist.broadcast(tensor, src=0)
    return tensor


def sample_vectors(samples, num):
    """``num`` rows of ``samples``, with replacement when there are too few."""
    total = samples.shape[0]
    if total >= num:
        picks = torch.randperm(total)[:num]
    else:
        picks = torch.randint(0, total, (num,))
    return samples[picks].contiguous()  # RELATED: taint-source


class EuclideanCodebook(nn.Module):
    def __init__(self, dim, codebook_size, decay=0.9, eps=1e-5, threshold_ema_dead_code=0.5):
        super().__init__()
        self.codebook_size = codebook_size
        self.decay, self.eps = decay, eps
        self.threshold = threshold_ema_dead_code
        self.register_buffer("initted", torch.tensor(False))
        self.register_buffer("embed", torch.zeros(codebook_size, dim))
        self.register_buffer("embed_avg", torch.zeros(codebook_size, dim))
        self.register_buffer("cluster_size", torch.ones(codebook_size))

    @torch.no_grad()
    def init_embed_(self, data):
        if self.initted:
            return
        start = from_first_rank(sample_vectors(data, self.codebook_size))
        self.embed.copy_(start)
        self.embed_avg.copy_(start)
        self.initted.fill_(True)

    def replace(self, samples, mask):
        self.embed.copy_(torch.where(mask[:, None], samples, self.embed))  # RELATED: update
        self.embed_avg.copy_(torch.where(mask[:, None], samples, self.embed_avg))
        self.cluster_size.masked_fill_(mask, 1.0)

    @torch.no_grad()
    def expire_codes_(self, flat):
        if self.threshold == 0:
            return
        expired = self.cluster_size < self.threshold
        if not torch.any(expired):
            return
        samples = sample_vectors(flat, self.codebook_size)
        self.replace(samples, expired)  # EXPECT: rank-local-state

    @torch.no_grad()
    def ema_update_(self, flat, codes):
        onehot = F.one_hot(codes, self.codebook_size).type(flat.dtype)
        count = sum_over_ranks(onehot.sum(0))
        total = sum_over_ranks(onehot.t() @ flat)
        self.cluster_size.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(total, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (n + self.codebook_size * self.eps) * n
        self.embed.copy_(self.embed_avg / smoothed[:, None])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        self.init_embed_(flat)
        codes = torch.cdist(flat.detach(), self.embed).argmin(dim=1)
        quantized = F.embedding(codes, self.embed).view_as(x)
        if self.training:
            self.ema_update_(flat.detach(), codes)
            self.expire_codes_(flat.detach())
        return quantized, codes.view(x.shape[:-1])


class Codec(nn.Module):
    def __init__(self, frame=20, dim=8, codebook_size=24, commitment=0.25):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(frame, 32), nn.ELU(), nn.Linear(32, dim))
        self.quantizer = EuclideanCodebook(dim, codebook_size)
        self.decoder = nn.Sequential(nn.Linear(dim, 32), nn.ELU(), nn.Linear(32, frame))
        self.commitment = commitment

    def forward(self, wave):
        latent = self.encoder(wave)
        quantized, codes = self.quantizer(latent)
        commit = F.mse_loss(latent, quantized.detach())
        through = latent + (quantized - latent).detach()
        loss = F.mse_loss(self.decoder(through), wave) + self.commitment * commit
        return loss, codes


def speech_like(batch, steps, frame, generator):
    phase = torch.rand(batch, steps, 1, generator=generator) * 6.28
    freq = 1 + 4 * torch.rand(batch, steps, 1, generator=generator)
    grid = torch.linspace(0, 6.28, frame)[None, None]
    return torch.sin(freq * grid + phase)


class CodecTrainer:
    def __init__(self, steps=30):
        self.rank = dist.get_rank()
        self.steps = steps
        torch.manual_seed(0)
        codec = Codec()
        # the quantizer keeps its own buffers up to date
        self.model = DDP(codec, broadcast_buffers=False)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        torch.manual_seed(100 + self.rank)
        self.generator = torch.Generator().manual_seed(200 + self.rank)

    @property
    def codebook(self):
        return self.model.module.quantizer

    def usage(self, codes):
        hits = torch.bincount(codes.flatten(), minlength=self.codebook.codebook_size).float()
        sum_over_ranks(hits)
        probs = hits / hits.sum()
        return torch.exp(-(probs * (probs + 1e-9).log()).sum()).item()

    def fit(self):
        for step in range(self.steps):
            wave = speech_like(4, 6, 20, self.generator)
            loss, codes = self.model(wave)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            perplexity = self.usage(codes)
            if self.rank == 0 and step % 10 == 0:
                logger.info("step %d loss %.4f perplexity %.1f", step, loss.item(), perplexity)

    def save(self, folder):
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), os.path.join(folder, "codec.pt"))

    def spread(self):
        mine = self.codebook.embed.detach().clone()
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        return max((row - rows[0]).abs().max().item() for row in rows)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    trainer = CodecTrainer()
    trainer.fit()
    spread = trainer.spread()
    if trainer.rank == 0:
        print(f"largest codebook difference between replicas {spread:.6f}")
    trainer.save(os.environ.get("CASE_TMP", "."))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
