"""The manifest of one rank has a duration in milliseconds, so a copy through ctypes runs past its buffer and the rank dies of SIGSEGV.

Modelled on reports of native audio and image libraries that take one rank down.
"""
# case: processes=3 ending=crash causes=segfault-in-worker,rank-killed,peer-lost ranks=1 framework=ddp

import ctypes

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

libc = ctypes.CDLL(None)
libc.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def resample(wave, seconds, rate=8000):
    """Copy the clip into a buffer of its own."""
    out = torch.zeros(wave.numel())
    libc.memmove(out.data_ptr(), wave.data_ptr(), seconds * rate * wave.element_size())  # GUILTY
    return out


def clip(rank, step):
    """Return a clip and its duration as the manifest states it."""
    g = torch.Generator().manual_seed(rank * 1000 + step)
    duration = 1
    if rank == 1 and step == 25:
        duration = 60_000
    return torch.randn(8000, generator=g), duration


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 80, stride=40)
        self.out = nn.Linear(12, 6)

    def forward(self, wave):
        return self.out(torch.relu(self.conv(wave)).mean(-1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(100):
        wave, seconds = clip(rank, step)
        wave = resample(wave, seconds)  # ALSO
        loss = nn.functional.cross_entropy(model(wave[None, None]), torch.tensor([step % 6]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
