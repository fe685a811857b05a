"""Says if compressing gradients pays on this link: ``torchrun … -m holdfast.runtime.comm --measure``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from holdfast.runtime.comm.compression import AUTOMATIC, BUCKET_BYTES, measure_link


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as a rank of the job that was started; rank 0 prints a line for each kind."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.comm", description=(__doc__ or "").strip())
    parser.add_argument("--measure", action="store_true", required=True, help="time the sum of a bucket of gradients")
    parser.add_argument("--mb", type=float, default=BUCKET_BYTES / 1e6, help="its size in MB (default: %(default).1f)")
    given = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(dist.get_node_local_rank(0))
    dist.init_process_group("nccl" if cuda else "gloo")
    found = measure_link(max(1, int(given.mb * 1e6 / 4)), (*AUTOMATIC, "powersgd"))
    if dist.get_rank() == 0:
        sys.stdout.write("".join(f"{found.say(kind)}\n" for kind in found.compressed_s))
        sys.stdout.flush()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
