"""Findings about a planned run before it starts. Pure: setups and estimates to findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.causes.memory.gpu_oom_all_ranks import GPU_OOM_ALL_RANKS
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.performance.precision_without_hardware import PRECISION_WITHOUT_HARDWARE
from holdfast.causes.performance.tensor_parallel_across_nodes import TENSOR_PARALLEL_ACROSS_NODES
from holdfast.core.findings import Fact, Finding, Level, Remedy, make_finding
from holdfast.plan.hardware import Cluster
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit
from holdfast.plan.setup import TrainingSetup

GIB = 1 << 30


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules judge: a model's setup on clusters, one per GPU kind, and its memory.

    ``precision``: by name; ``remedies``: changes that make it fit.
    """

    name: str
    setup: TrainingSetup
    clusters: Sequence[Cluster]
    worst_cluster: Cluster
    memory: MemoryEstimate
    precision: str
    remedies: tuple[Remedy, ...] = ()


def judge_plan(plan: PlanFacts) -> Iterator[Finding]:
    """Yield an error if it does not fit, and warnings if it is tight or needlessly slow."""
    yield from _judge_memory(plan)
    yield from _judge_precision(plan)
    yield from _judge_tensor_parallelism(plan)


def _judge_memory(plan: PlanFacts) -> Iterator[Finding]:
    memory, worst = plan.memory, plan.memory.worst
    if memory.exceeds_host:
        yield make_finding(
            HOST_OOM_KILLED,
            f"{plan.name} does not fit: its offloaded states need {memory.need}",
            level=Level.ERROR,
            evidence=(
                Fact(
                    text=f"{plan.worst_cluster.host_memory / GIB:,.0f} GiB per host of "
                    f"{plan.worst_cluster.per_node} GPUs",
                    origin="--host-memory, or that of a usual node",
                ),
            ),
            remedies=plan.remedies,
            confidence=0.9,
        )
        return
    if memory.fit is MemoryFit.FITS or memory.margin is None or memory.gpu_memory is None:
        return
    stage = f" of pipeline stage {worst.stage}" if plan.setup.pipeline > 1 else ""
    size, available = worst.total / GIB, memory.gpu_memory / GIB
    need = f"{size:.1f} GiB per GPU{stage}; {plan.worst_cluster.gpu.name} has {available:.1f}"
    if memory.fit is MemoryFit.DOES_NOT_FIT:
        message, level, confidence = f"{plan.name} does not fit: it needs {need}", Level.ERROR, 0.95
    elif memory.margin < 0:
        message = f"{plan.name} may not fit: including the allocator's cache, it needs {need}"
        level, confidence = Level.WARNING, 0.6
    else:
        message = (
            f"{plan.name} may not fit: it needs {need}, and the estimate is accurate to "
            f"±{memory.error:.0%}"
        )
        level, confidence = Level.WARNING, 0.5
    parts = ", ".join(f"{name} {nbytes / GIB:.1f}" for name, nbytes in list(worst.parts())[:6])
    evidence = Fact(
        text=f"GiB at the peak ({worst.moment}): {parts}", origin="holdfast.plan.memory.estimate"
    )
    yield make_finding(
        GPU_OOM_ALL_RANKS,
        message,
        level=level,
        evidence=(evidence,),
        remedies=plan.remedies,
        confidence=confidence,
    )


def _judge_precision(plan: PlanFacts) -> Iterator[Finding]:
    """Yield a warning if a GPU lacks hardware for the precision: emulation is much slower."""
    dtype = {"bf16": "bf16", "bf16-pure": "bf16", "fp8": "fp8"}.get(plan.precision, "")
    unsupported = [
        cluster.gpu for cluster in plan.clusters if dtype and not getattr(cluster.gpu, dtype)
    ]
    if not unsupported:
        return
    names = " and ".join(dict.fromkeys(gpu.name for gpu in unsupported))
    capabilities = " and ".join(
        dict.fromkeys(".".join(map(str, gpu.capability)) for gpu in unsupported)
    )
    message = f"{names} has no hardware for {dtype}: steps take far longer than predicted"
    fact = Fact(text=f"compute capability {capabilities}", origin=unsupported[0].source)
    yield make_finding(PRECISION_WITHOUT_HARDWARE, message, level=Level.WARNING, evidence=(fact,))


def _judge_tensor_parallelism(plan: PlanFacts) -> Iterator[Finding]:
    per_node = min(cluster.per_node for cluster in plan.clusters)
    if plan.setup.tensor > per_node:
        yield make_finding(
            TENSOR_PARALLEL_ACROSS_NODES,
            f"tensor parallelism of {plan.setup.tensor} spans more than one node of {per_node} "
            "GPUs",
            level=Level.WARNING,
            evidence=(
                Fact(
                    text=_format_links(plan.clusters[0]),
                    origin=f"tables, {plan.clusters[0].gpu.source}",
                ),
            ),
        )


def _format_links(cluster: Cluster) -> str:
    intra_node, inter_node = cluster.links.intra_node / 1e9, cluster.links.inter_node / 1e9
    return (
        f"bandwidth per GPU: {intra_node:.3g} GB/s within a node, {inter_node:.3g} GB/s "
        "between nodes"
    )
