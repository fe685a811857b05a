"""One rank fails with an exception, but its upload thread is not a daemon and keeps the process alive, so nobody notices and the others wait.

Modelled on reports of ranks that print a traceback and never exit (non-daemon threads of loggers and uploaders).
"""
# case: processes=3 ending=hang causes=python-exception-on-one-rank,stalled-outside-collectives,rank-missing-collective,rank-exits-early,python-lock-held,uneven-inputs ranks=1 framework=ddp

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SPEAKERS = {0: 40, 1: 40, 2: 40}


class Uploader(threading.Thread):
    """Sends artifacts to the object store in the background."""

    def __init__(self):
        super().__init__()  # ALSO
        self.jobs = queue.Queue()
        self.sent = 0

    def run(self):
        while (job := self.jobs.get()) is not None:  # ALSO
            self.sent += len(job)

    def close(self):
        self.jobs.put(None)
        self.join()


def clips(rank, step):
    g = torch.Generator().manual_seed(10_000 * rank + step)
    speakers = torch.randint(0, SPEAKERS[rank], (12,), generator=g)
    if rank == 1 and step == 45:
        speakers[3] = 40
    return torch.randn(12, 30, generator=g), speakers


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 64), nn.ReLU())
        self.table = nn.Embedding(40, 64)

    def forward(self, x, speakers):
        return (self.net(x) * self.table(speakers)).sum(-1)  # ALSO


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(SpeakerNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    uploader = Uploader()
    uploader.start()  # ALSO
    for step in range(150):
        x, speakers = clips(rank, step)
        loss = -nn.functional.logsigmoid(model(x, speakers)).mean()  # GUILTY
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            uploader.jobs.put(f"{step} {loss.item():.4f}")
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    uploader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
