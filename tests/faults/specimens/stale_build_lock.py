"""All ranks build an extension on first use; its build folder has the stale lock of a killed build."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

HEALTHY = "--healthy" in sys.argv  # disables the fault
SOURCE = "int twice(int number) { return 2 * number; }"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(20):
        dist.all_reduce(torch.ones(64))
    if not HEALTHY:
        folder = Path(tempfile.gettempdir(), f"holdfast-stale-{os.environ['MASTER_PORT']}", "twice")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
        cpp_extension.load_inline(  # GUILTY
            "twice", SOURCE, functions="twice", build_directory=str(folder)
        )
    dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
