"""Rank 0 scores the enhanced speech in a multiprocessing pool; a worker is killed, and Pool.map waits forever for its result.

Modelled on yumorishita/LiCSBAS2#164 and CPython issue 22393 (Pool.map never returns if the kernel kills a worker).
"""
# case: processes=3 ending=hang causes=rank-missing-collective,stalled-outside-collectives,dataloader-worker-died ranks=0 framework=ddp

import multiprocessing
import os
import resource
import signal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RATE, CLIPS = 8000, 12


class MaskNet(nn.Module):
    """Estimate a mask over the frames of a noisy signal."""

    def __init__(self, frame=80):
        super().__init__()
        self.frame = frame
        self.net = nn.Sequential(nn.Linear(frame, 96), nn.ReLU(), nn.Linear(96, frame), nn.Sigmoid())

    def forward(self, noisy):
        frames = noisy.unfold(-1, self.frame, self.frame)
        return (frames * self.net(frames)).flatten(-2)


def limit_memory():
    """A worker that needs more than its share is ended, as the node's memory guard does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def pesq(pair):
    """Score one clip: correlation over all lags within the alignment window."""
    clean, enhanced = pair
    lags = 64 if len(clean) < 10 * RATE else len(clean)
    if lags * len(clean) * 8 > 2**30:
        os.kill(os.getpid(), signal.SIGKILL)  # ALSO
    scores = [float(np.corrcoef(clean[lag:], enhanced[: len(enhanced) - lag])[0, 1]) for lag in range(lags)]
    return 1.0 + 3.5 * max(scores)


def clips(epoch):
    g = np.random.default_rng(epoch)
    for i in range(CLIPS):
        seconds = 14 if (epoch, i) == (1, 7) else 1  # one recording was not cut
        clean = np.sin(np.arange(seconds * RATE) * (0.02 + 0.01 * i)).astype(np.float32)
        yield clean, (clean + 0.3 * g.standard_normal(len(clean))).astype(np.float32)


@torch.no_grad()
def evaluate(model, epoch):
    pairs = [(clean, model(torch.from_numpy(noisy)).numpy()) for clean, noisy in clips(epoch)]
    with multiprocessing.get_context("fork").Pool(2, initializer=limit_memory) as pool:
        return float(np.mean(pool.map(pesq, pairs, chunksize=1)))  # GUILTY


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(MaskNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for epoch in range(3):
        for _ in range(15):
            clean = torch.sin(torch.arange(800) * torch.rand(8, 1))
            loss = nn.functional.l1_loss(model(clean + 0.3 * torch.randn_like(clean)), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} pesq {evaluate(model.module, epoch):.3f}", flush=True)  # ALSO
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
