"""Event-sequence model on DDP. Records are decoded lazily, a broken one ends the run."""
import logging
import os
import struct
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from checkpoint import CheckpointWriter

logger = logging.getLogger("events")


class CorruptRecord(Exception):
    def __init__(self, index, reason):
        super().__init__(f"record {index}: {reason}")
        self.index = index


class PackedEvents(Dataset):
    """Records of little-endian floats behind a two-byte length."""

    WIDTH = 12

    def __init__(self, n, broken=()):
        gen = torch.Generator().manual_seed(0)
        table = torch.randn(n, self.WIDTH, generator=gen)
        self.blobs = [struct.pack(f"<H{self.WIDTH}f", self.WIDTH, *row.tolist()) for row in table]
        for i in broken:
            self.blobs[i] = self.blobs[i][:-5]

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        blob = self.blobs[i]
        (width,) = struct.unpack_from("<H", blob)
        if len(blob) != 2 + 4 * width:
            raise CorruptRecord(i, f"{len(blob)} bytes for {width} values")
        return torch.tensor(struct.unpack_from(f"<{width}f", blob, 2))


@dataclass
class Settings:
    root: str = os.environ.get("CASE_TMP", "events-run")
    epochs: int = 2
    batch_size: int = 4
    lr: float = 1e-2
    records: int = 64
    broken: tuple = (37,)


class EventTrainer:
    def __init__(self, cfg: Settings):
        self.cfg = cfg
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(PackedEvents.WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, PackedEvents.WIDTH)
        )
        self.model = DistributedDataParallel(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        data = PackedEvents(cfg.records, cfg.broken)
        self.sampler = DistributedSampler(data, shuffle=False)
        self.loader = DataLoader(data, cfg.batch_size, sampler=self.sampler)
        self.writer = CheckpointWriter(cfg.root, self.model, self.opt)
        self.global_step = 0

    def fit(self):
        try:
            self._fit()
        except KeyboardInterrupt:
            logger.info("interrupted at step %d", self.global_step)
            raise
        except Exception:
            logger.exception("run failed at step %d", self.global_step)
            self.writer.save("on_exception", self.global_step)  # EXPECT: collective-in-except
            raise

    def _fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            mean = self._epoch()
            if dist.get_rank() == 0:
                logger.info("epoch %d loss %.4f", epoch, mean)
            self.writer.save("epoch", self.global_step)

    def _epoch(self):
        acc = torch.zeros(2)
        for batch in self.loader:  # RELATED: taint-source
            loss = (self.model(batch) - batch).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.global_step += 1
            acc += torch.tensor([loss.item() * len(batch), float(len(batch))])
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    EventTrainer(Settings()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
