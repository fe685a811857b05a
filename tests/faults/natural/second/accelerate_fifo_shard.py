"""Rank 3 opens a named pipe for reading, but the copy command that should fill it has failed, so open() never returns.

Modelled on webdataset/webdataset#188 and #90 (shards streamed through commands; a process without data hangs DDP).
"""
# case: processes=4 ending=hang causes=file-io-blocked,rank-missing-collective,stalled-outside-collectives ranks=3 framework=accelerate

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FEATURES = 16
STORE = Path(tempfile.gettempdir()) / f"bucket-{os.environ['MASTER_PORT']}"


def upload(accelerator, shards=8, rows=64):
    """Fill the bucket with shards (the last upload of the nightly job did not make it)."""
    if accelerator.is_main_process:
        STORE.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        for s in range(shards - 1):
            rng.normal(size=(rows, FEATURES + 1)).astype(np.float32).tofile(STORE / f"part-{s:05d}.bin")
    accelerator.wait_for_everyone()


class StreamedShards(IterableDataset):
    """Streams shards through named pipes, so that nothing is kept on the local disk."""

    def __init__(self, names, scratch):
        self.names, self.scratch = names, scratch

    def open(self, name):
        pipe = os.path.join(self.scratch, name)
        os.mkfifo(pipe)
        subprocess.Popen(["cp", str(STORE / name), pipe], stderr=subprocess.DEVNULL)  # ALSO
        return open(pipe, "rb")  # GUILTY

    def __iter__(self):
        size = (FEATURES + 1) * 4
        for name in self.names:
            with self.open(name) as stream:  # ALSO
                while record := stream.read(size):
                    values = torch.frombuffer(bytearray(record), dtype=torch.float32)
                    yield values[:-1], values[-1:]


def main():
    accelerator = Accelerator(cpu=True)
    upload(accelerator)
    world, rank = accelerator.num_processes, accelerator.process_index
    names = [f"part-{s:05d}.bin" for s in range(8)][rank::world]
    data = StreamedShards(names, tempfile.mkdtemp(prefix=f"pipes-{rank}-"))
    loader = DataLoader(data, batch_size=8)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)

    for step, (x, y) in enumerate(loader):  # ALSO
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)

    accelerator.wait_for_everyone()
    accelerator.print("training finished")


if __name__ == "__main__":
    main()
