"""Memory as holdfast plans it, next to what people reckon with today, for runs whose peaks were published.

``published_peaks.json`` holds torchtitan's figures with their sources; five of them are those that the reserve of the
allocator was fitted to (docs/memory.md). DeepSpeed's own estimator is called here; Accelerate's rule is four times the
weights in fp32 for training with Adam (docs/source/usage_guides/model_size_estimator.md), divided by all GPUs, which it
does not do itself. Neither knows activations, which is what the distance is.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

from benchmarks import plan_truth_memory
from holdfast.plan.models import known

GIB = 1 << 30


def deepspeed_gib(params: int, largest: int, gpus_per_node: int, nodes: int) -> float:
    """What DeepSpeed's estimator says a GPU needs under ZeRO-3 without offload."""
    _, needs, _ = estimate_zero3_model_states_mem_needs(
        params, largest, gpus_per_node, nodes, cpu_offload=False, cpu_offload_params=False, zero_init=True
    )
    return needs / GIB


def accelerate_gib(params: int, gpus: int) -> float:
    """Four times the weights in fp32, over all GPUs."""
    return 4 * 4 * params / gpus / GIB


def rows(truth: list[dict[str, Any]]) -> Iterator[tuple[str, float, float, float, float]]:
    """The id, what was published, and what holdfast, DeepSpeed and Accelerate say; all in GiB."""
    given = {row["id"]: row["input"] for row in truth}
    for row in plan_truth_memory.rows(truth):
        if row.kind == "memory: published peak":
            run = given[row.id]
            model = known(run["model"])
            world, a_node = run["world"], run.get("gpus_per_node", 8)
            largest = model.vocab * model.hidden
            theirs = deepspeed_gib(model.params, largest, a_node, max(1, world // a_node))
            yield row.id, row.expected, row.got, theirs, accelerate_gib(model.params, world)


def main() -> None:
    """Print the table, and the median error of each."""
    found = list(rows(json.loads(Path(__file__).with_name("published_peaks.json").read_text())))
    print(f"{'':6}{'published':>10}{'holdfast':>10}{'DeepSpeed':>11}{'Accelerate':>12}  GiB")
    for name, published, *said in found:
        print(f"{name:6}{published:10.1f}{said[0]:10.1f}{said[1]:11.1f}{said[2]:12.1f}")
    for at, who in enumerate(("holdfast", "DeepSpeed's estimator", "Accelerate's rule")):
        errors = [abs(said[at] / published - 1) for _, published, *said in found]
        print(f"{who:24} median error {statistics.median(errors):6.1%}, largest {max(errors):6.1%}")


if __name__ == "__main__":
    main()
