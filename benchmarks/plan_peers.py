"""Predicted memory compared with common estimators, for runs with published peaks.

``published_peaks.json`` has torchtitan's figures with their sources; five of them were used to fit
the allocator's reserve (docs/memory.md). DeepSpeed's estimator is called here; Accelerate's rule is
four times the fp32 weights for training with Adam
(docs/source/usage_guides/model_size_estimator.md), divided by all GPUs, which it does not do
itself. Neither includes activations, which explains the distance.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

from benchmarks import plan_truth_memory
from holdfast.plan.models import get_known_model

GIB = 1 << 30


def deepspeed_gib(params: int, largest: int, gpus_per_node: int, nodes: int) -> float:
    """Return the GiB per GPU of DeepSpeed's estimator under ZeRO-3 without offload."""
    _, needed_bytes, _ = estimate_zero3_model_states_mem_needs(
        params,
        largest,
        gpus_per_node,
        nodes,
        cpu_offload=False,
        cpu_offload_params=False,
        zero_init=True,
    )
    return needed_bytes / GIB


def accelerate_gib(params: int, gpus: int) -> float:
    """Return four times the fp32 weights, over all GPUs."""
    return 4 * 4 * params / gpus / GIB


def rows(truth: list[dict[str, Any]]) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield id, published value, and estimates of holdfast, DeepSpeed and Accelerate, in GiB."""
    inputs = {row["id"]: row["input"] for row in truth}
    for row in plan_truth_memory.rows(truth):
        if row.kind == "memory: published peak":
            run = inputs[row.id]
            model = get_known_model(run["model"])
            world, per_node = run["world"], run.get("gpus_per_node", 8)
            largest = model.vocab * model.hidden
            theirs = deepspeed_gib(model.params, largest, per_node, max(1, world // per_node))
            yield row.id, row.expected, row.got, theirs, accelerate_gib(model.params, world)


def main() -> None:
    """Print the table, and the median error of each."""
    table = list(rows(json.loads(Path(__file__).with_name("published_peaks.json").read_text())))
    print(f"{'':6}{'published':>10}{'holdfast':>10}{'DeepSpeed':>11}{'Accelerate':>12}  GiB")
    for name, published, *estimates in table:
        print(
            f"{name:6}{published:10.1f}{estimates[0]:10.1f}{estimates[1]:11.1f}{estimates[2]:12.1f}"
        )
    for index, estimator in enumerate(("holdfast", "DeepSpeed's estimator", "Accelerate's rule")):
        errors = [abs(estimates[index] / published - 1) for _, published, *estimates in table]
        print(
            f"{estimator:24} median error {statistics.median(errors):6.1%}, largest "
            f"{max(errors):6.1%}"
        )


if __name__ == "__main__":
    main()
