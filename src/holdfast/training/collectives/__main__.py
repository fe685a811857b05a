"""Measure whether gradient compression pays on this link.

Run it as ``torchrun … -m holdfast.training.collectives --measure``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from holdfast.training.collectives.compression import AUTOMATIC, BUCKET_BYTES, measure_link


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as one rank of the job; rank 0 prints a line for each kind of compression."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.training.collectives", description=(__doc__ or "").strip()
    )
    parser.add_argument(
        "--measure", action="store_true", required=True, help="time the sum of a gradient bucket"
    )
    parser.add_argument(
        "--mb",
        type=float,
        default=BUCKET_BYTES / 1e6,
        help="size of the bucket in MB (default: %(default).1f)",
    )
    options = parser.parse_args(arguments)
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(dist.get_node_local_rank(0))
    dist.init_process_group("nccl" if has_cuda else "gloo")
    timing = measure_link(max(1, int(options.mb * 1e6 / 4)), (*AUTOMATIC, "powersgd"))
    if dist.get_rank() == 0:
        sys.stdout.write("".join(f"{timing.describe(kind)}\n" for kind in timing.compressed_s))
        sys.stdout.flush()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
