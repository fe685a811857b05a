import logging
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class AsyncCheckpointer:
    """Every rank writes its own shard in the background while training goes on."""

    def __init__(self, root, device):
        self.root = root
        self.device = device
        self.rank = dist.get_rank()
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.save_future = None
        self.pending_step = None

    def _write(self, shard, folder):
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(folder, f"rank_{self.rank:05d}.pt")
        torch.save(shard, target + ".tmp")
        os.replace(target + ".tmp", target)

    def save(self, step, shard):
        self.wait_for_pending_save()
        copied = {name: value.detach().to("cpu", copy=True) for name, value in shard.items()}
        folder = os.path.join(self.root, f"global_step_{step}")
        self.save_future = self.executor.submit(self._write, copied, folder)
        self.pending_step = step

    def wait_for_pending_save(self):
        """Wait until the save in flight is complete on all ranks, then publish it."""
        if self.save_future is None:
            return
        future, self.save_future = self.save_future, None
        logger.info("[rank %d] waiting for pending save", self.rank)
        future.result()
        dist.barrier()
        if self.rank == 0:
            with open(os.path.join(self.root, "latest.tmp"), "w") as handle:
                handle.write(f"global_step_{self.pending_step}")
            os.replace(os.path.join(self.root, "latest.tmp"), os.path.join(self.root, "latest"))
