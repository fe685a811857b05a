"""Large artifact files are fetched in parts by the thread pool that fetches the files; on one rank all threads wait for parts.

Modelled on wandb/wandb#11615 (multipart download deadlock: entries and their parts share one executor).
"""
# case: processes=3 ending=hang causes=rank-missing-collective,stalled-outside-collectives ranks=2 framework=accelerate

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PART = 1 << 16
REMOTE = {  # files of the artifact, by process: name -> size in bytes
    0: {"a.bin": 40_000, "b.bin": 52_000, "c.bin": 61_000},
    1: {"d.bin": 48_000, "e.bin": 150_000, "f.bin": 30_000},
    2: {"g.bin": 400_000, "h.bin": 390_000, "i.bin": 57_000},
}


class Artifact:
    """A versioned set of files in an object store."""

    def __init__(self, files, threads=2):
        self.files = files
        self.root = Path(tempfile.mkdtemp(prefix="artifact-"))
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="artifact")

    def _read(self, name, start, end):
        """One ranged GET; the content is made up."""
        g = torch.Generator().manual_seed(hash((len(name), start)) % 2**31)
        return torch.randint(0, 256, (end - start,), generator=g, dtype=torch.uint8).numpy().tobytes()

    def _download_parts(self, name, size):
        starts = range(0, size, PART)
        parts = [self.executor.submit(self._read, name, s, min(s + PART, size)) for s in starts]  # ALSO
        return b"".join(part.result() for part in parts)  # GUILTY

    def _download_entry(self, name, size):
        time.sleep(0.05)  # a HEAD request
        data = self._download_parts(name, size) if size > PART else self._read(name, 0, size)
        (self.root / name).write_bytes(data)
        return self.root / name

    def download(self):
        entries = [self.executor.submit(self._download_entry, *item) for item in self.files.items()]
        return [entry.result() for entry in entries]  # ALSO


def load_rows(paths, width=16):
    raw = b"".join(path.read_bytes() for path in paths)
    rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).float() / 255
    return rows[: len(rows) // width * width].view(-1, width)[:1024]


def main():
    accelerator = Accelerator(cpu=True)
    artifact = Artifact(REMOTE[accelerator.process_index])
    paths = artifact.download()  # ALSO
    rows = load_rows(paths)
    accelerator.print(f"downloaded {len(paths)} files", flush=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step, (x,) in enumerate(DataLoader(TensorDataset(rows), batch_size=32, drop_last=True)):
        loss = nn.functional.mse_loss(model(x), x)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
