"""The run folder is named after the time, which each process takes for itself, so the others poll for a file in a folder that never appears.

Modelled on huawei-bayerlab/marigold-v2#7 (date-prefixed run folders have to be the same on all ranks).
"""
# case: processes=2 ending=hang causes=rank-missing-collective,stalled-outside-collectives,file-io-blocked ranks=1 framework=minGPT

import datetime
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ROOT = os.path.join(tempfile.gettempdir(), f"sorter-{os.environ['MASTER_PORT']}")


class RunFolder:
    """Where a run writes its configuration, samples and weights."""

    def __init__(self, root, name):
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")  # GUILTY
        self.path = os.path.join(root, f"{stamp}-{name}")

    def create(self, config):
        os.makedirs(self.path)
        path = os.path.join(self.path, "config.json")
        with open(path + ".tmp", "w") as f:
            json.dump(config, f)
        os.replace(path + ".tmp", path)

    def wait(self):
        """Wait until rank 0 has created the folder, as it may appear late on a shared file system."""
        path = os.path.join(self.path, "config.json")
        while not os.path.exists(path):  # ALSO
            time.sleep(0.5)  # ALSO
        with open(path) as f:
            return json.load(f)


class SortGPT(nn.Module):
    def __init__(self, digits=3, length=6, dim=32):
        super().__init__()
        self.tok = nn.Embedding(digits, dim)
        self.pos = nn.Parameter(torch.zeros(1, length, dim))
        self.block = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, digits)

    def forward(self, x):
        return self.head(self.block(self.tok(x) + self.pos))


class Trainer:
    def __init__(self, config, model, rank):
        self.config, self.rank = config, rank
        self.model = DDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config["lr"])

    def run(self):
        for iteration in range(self.config["max_iters"]):
            x = torch.randint(0, 3, (16, 6))
            loss = F.cross_entropy(self.model(x).flatten(0, 1), x.sort(-1).values.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0 and iteration % 10 == 0:
                print(f"iter {iteration}: loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = RunFolder(ROOT, "sorter")  # ALSO
    if rank == 0:
        config = {"lr": 5e-4, "max_iters": 60}
        folder.create(config)
    else:
        config = folder.wait()  # ALSO
    torch.manual_seed(0)
    Trainer(config, SortGPT(), rank).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
