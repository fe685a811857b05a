"""Saves into one DCP folder twice; rank 1 dies in the second save. Run as a module with FOLDER.

FOLDER/torn then holds new shards of rank 0 among old ones of rank 1, each whole, and the index of
the first save. FOLDER/whole is the first save alone, with its times.
"""

import contextlib
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS, ROWS = 2, 64
PAUSE_S = 1.5


class Dying(dcp.FileSystemWriter):
    """Kills rank 1 before it writes its shard."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            os._exit(9)
        return super().write_data(plan, planner)


def rank_main(rank, folder):
    """Run one rank: save ones, then twos."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1")
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS
    )
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {"w": distribute_tensor(torch.ones(ROWS, 32), mesh, [Shard(0)])}
    dcp.save(state, checkpoint_id=folder / "torn")
    dist.barrier()
    if rank == 0:
        shutil.copytree(folder / "torn", folder / "whole", copy_function=shutil.copy2)
    dist.barrier()
    time.sleep(PAUSE_S)
    state["w"].mul_(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=Dying(folder / "torn", overwrite=True))


def main(folder):
    """Start the ranks without torchrun, which would report the killed rank as a failure."""
    with contextlib.suppress(mp.ProcessExitedException, mp.ProcessRaisedException):
        mp.start_processes(rank_main, (Path(folder),), RANKS, start_method="spawn")


if __name__ == "__main__":
    main(sys.argv[1])
