"""Time the layout search in seconds of one core: ``python -m benchmarks.plan_layout``."""

from __future__ import annotations

import time

import msgspec

from holdfast.plan.hardware import Cluster
from holdfast.plan.layout.process_group_checks import verify_groups
from holdfast.plan.layout.process_groups import build_process_groups
from holdfast.plan.layout.solver import find_layouts
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import TrainingSetup

_MANY = msgspec.structs.replace(
    get_known_model("mixtral-8x7b"), name="256 experts", layers=60, experts=256, active=8, ffn=2048
)
_CASES = [
    (get_known_model("llama3.1-70b"), "8 x 8 H100", 512, 8192),
    (get_known_model("llama3.1-8b"), "2048 x 8 H100", 16384, 8192),
    (get_known_model("llama3.1-70b"), "2048 x 8 H100", 16384, 8192),
    (get_known_model("llama3.1-405b"), "2048 x 8 H100", 2048, 8192),
    (get_known_model("llama3.1-405b"), "2048 x 8 H100", 16384, 131072),
    (get_known_model("mixtral-8x7b"), "2048 x 8 H100", 16384, 4096),
    (_MANY, "2048 x 8 H100", 16384, 8192),
    (_MANY, "1536 x 8 H100", 12288, 131072),
]


def main() -> None:
    """Print a line for each search, then one for process groups of 16,384 ranks."""
    for model, cluster_text, batch, sequence in _CASES:
        start = time.process_time()
        choice = find_layouts(model, Cluster.parse(cluster_text), batch, sequence)
        duration = time.process_time() - start
        print(
            f"{duration:6.2f} s  {model.name} on {cluster_text}, {batch} x {sequence}: "
            f"{choice.tried} tried"
        )
    start = time.process_time()
    groups = build_process_groups(TrainingSetup(data=128, tensor=8, pipeline=16, expert=8))
    problems = verify_groups(groups, groups.world_size, 8) + verify_groups(
        groups.as_lists(), groups.world_size, 8
    )
    print(
        f"{time.process_time() - start:6.2f} s  groups of {groups.world_size} ranks, verified "
        f"twice: {len(problems)} problems"
    )


if __name__ == "__main__":
    main()
