"""Healthy: after a finished training, destructors, threads and exit handlers print tracebacks; the status of every rank is 0.

In the style of a DDP script with a client of a tracking service.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=90

import atexit
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RemoteLogger:
    """Sends records in a thread; the connection is closed before the last ones are sent."""

    def __init__(self, rank):
        self.rank, self.closed = rank, False
        self.records = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()
        atexit.register(self.flush)

    def send(self):
        while True:
            record = self.records.get()
            if self.closed:
                raise BrokenPipeError(f"[Errno 32] Broken pipe: record {record} of rank {self.rank} was not sent")
            time.sleep(0.002)

    def flush(self):
        raise TimeoutError(f"rank {self.rank}: the server did not confirm the last records")

    def __del__(self):
        raise AttributeError("'NoneType' object has no attribute 'close'")


class Buffer:
    def __del__(self):
        raise RuntimeError("CUDA error: driver shutting down")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    logger, buffer = RemoteLogger(rank), Buffer()
    model = DDP(nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        x = torch.randn(16, 10)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.records.put((step, loss.item()))
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    del model  # before its group (PROC013)
    dist.destroy_process_group()
    logger.closed = True
    logger.records.put(("end", rank))
    time.sleep(0.5 + rank)
    del buffer
    if rank == 0:
        print("training finished", flush=True)
    print(f"rank {rank}: RuntimeError: ignored while closing", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
