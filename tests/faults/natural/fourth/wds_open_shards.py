"""The reader of one rank keeps a handle open for each sample file of its shard, until the process has no file descriptor left.

Modelled on "OSError: [Errno 24] Too many open files" reports (detectron2#3953, pytorch-lightning#18487, caduceus#58).
"""
# case: processes=3 ending=crash causes=fd-limit,python-exception-on-one-rank ranks=1 framework=ddp

import json
import resource
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # the container's limit


class SensorFiles(Dataset):
    """Samples of a shard: packed in one file, or, for new recordings, one file for each sample."""

    def __init__(self, folder, rank):
        self.folder = Path(folder)
        self.packed = rank != 1
        self.count = 320
        self.handles = {}
        self._write()

    def _sample(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(6, generator=g).tolist(), "y": i % 3}

    def _write(self):
        if self.packed:
            lines = [json.dumps(self._sample(i)) for i in range(self.count)]
            (self.folder / "shard.jsonl").write_text("\n".join(lines))
        else:
            for i in range(self.count):
                (self.folder / f"{i:05d}.json").write_text(json.dumps(self._sample(i)))

    def _handle(self, name):
        """Return an open file; opening is slow on the object store, so handles are kept."""
        if name not in self.handles:
            self.handles[name] = open(self.folder / name)  # GUILTY
        self.handles[name].seek(0)
        return self.handles[name]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.packed:
            record = json.loads(self._handle("shard.jsonl").read().split("\n")[i])
        else:
            record = json.load(self._handle(f"{i:05d}.json"))  # ALSO
        return torch.tensor(record["x"]), record["y"]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = SensorFiles(tempfile.mkdtemp(prefix=f"shard{rank}-"), rank)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for step, (x, y) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):  # ALSO
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
