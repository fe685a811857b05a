"""How long a search for a layout takes, in seconds of one core: ``python -m benchmarks.plan_layout``."""

from __future__ import annotations

import time

import msgspec

from holdfast.plan.groups import groups
from holdfast.plan.groups_verify import verify
from holdfast.plan.hardware import Cluster
from holdfast.plan.layout import layouts
from holdfast.plan.models import known
from holdfast.plan.setup import Setup

_MANY = msgspec.structs.replace(known("mixtral-8x7b"), name="256 experts", layers=60, experts=256, active=8, ffn=2048)
_CASES = [
    (known("llama3.1-70b"), "8 x 8 H100", 512, 8192),
    (known("llama3.1-8b"), "2048 x 8 H100", 16384, 8192),
    (known("llama3.1-70b"), "2048 x 8 H100", 16384, 8192),
    (known("llama3.1-405b"), "2048 x 8 H100", 2048, 8192),
    (known("llama3.1-405b"), "2048 x 8 H100", 16384, 131072),
    (known("mixtral-8x7b"), "2048 x 8 H100", 16384, 4096),
    (_MANY, "2048 x 8 H100", 16384, 8192),
    (_MANY, "1536 x 8 H100", 12288, 131072),
]


def main() -> None:
    """Print a line for each search, then one for process groups of 16,384 ranks."""
    for model, written, batch, sequence in _CASES:
        began = time.process_time()
        found = layouts(model, Cluster.parse(written), batch, sequence)
        took = time.process_time() - began
        print(f"{took:6.2f} s  {model.name} on {written}, {batch} x {sequence}: {found.tried} tried")
    began = time.process_time()
    made = groups(Setup(data=128, tensor=8, pipeline=16, expert=8))
    flaws = verify(made, made.world_size, 8) + verify(made.lists(), made.world_size, 8)
    print(
        f"{time.process_time() - began:6.2f} s  groups of {made.world_size} ranks, verified twice: {len(flaws)} flaws"
    )


if __name__ == "__main__":
    main()
