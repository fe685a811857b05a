"""Allocate a batch to GPUs of several kinds that were not measured yet.

Speeds come from the time model, limits from the memory model;
:mod:`holdfast.training.heterogeneous.batch_allocation` then allocates exactly. For measured ranks,
see :mod:`holdfast.training.heterogeneous.gpu_kinds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster, LinkRates
from holdfast.plan.memory.estimate import MemoryFit, estimate_memory
from holdfast.plan.models import Transformer
from holdfast.plan.setup import ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import GATHERING_STRATEGIES
from holdfast.plan.step_time.work import micro_batch_time
from holdfast.training.heterogeneous.batch_allocation import (
    BatchAllocation,
    GpuKind,
    SyncPoint,
    allocate_batch,
)

_GIB = 1 << 30


def allocate_mixed_batch(
    model: Transformer,
    setup: TrainingSetup,
    clusters: Sequence[Cluster],
    batch: int,
    conditions: Conditions | None = None,
) -> BatchAllocation:
    """Allocate ``batch`` sequences so that a step is fastest; ``setup`` defines the parallelism.

    Raises:
        InvalidValue: ranks that share a sequence, no sequence fits, or the batch cannot be met
            exactly.
    """
    gpu_kinds = profile_gpu_kinds(model, setup, clusters, batch, conditions)
    syncs_each_micro_batch = (
        setup.strategy in GATHERING_STRATEGIES or setup.strategy is ShardingStrategy.ZERO2
    )
    sync_point = SyncPoint.MICRO_BATCH if syncs_each_micro_batch else SyncPoint.STEP
    return allocate_batch(
        gpu_kinds, batch, sync_point, sync_time(model, setup, clusters, conditions)
    )


def profile_gpu_kinds(
    model: Transformer,
    setup: TrainingSetup,
    clusters: Sequence[Cluster],
    most: int,
    conditions: Conditions | None = None,
) -> tuple[GpuKind, ...]:
    """Return the times of micro-batches of 1, 2, … sequences for each kind, as far as they fit.

    ``most`` limits the micro-batch.

    Raises:
        InvalidValue: ranks that share a sequence, or GPUs on which no sequence fits.
    """
    conditions = conditions or DEFAULT_CONDITIONS
    world_size = sum(cluster.gpus for cluster in clusters)
    if setup.tensor * setup.pipeline * setup.context > 1:
        raise InvalidValue(
            "GPUs of several kinds", why="only data-parallel ranks can have unequal shares"
        )
    gpu_kinds = []
    for cluster in clusters:
        gpu_memory = int(cluster.gpu.memory_gib * _GIB)
        times: list[float] = []
        while len(times) < most:
            kind_setup = msgspec.structs.replace(
                setup,
                data=world_size,
                replicas=1,
                expert=1,
                micro_batch=len(times) + 1,
                accumulation=1,
            )
            if (
                estimate_memory(model, kind_setup, gpu_memory, cluster.host_memory_per_rank).fit
                is not MemoryFit.FITS
            ):
                break
            time = micro_batch_time(model, kind_setup, cluster.gpu, conditions)
            times.append(time.forward + time.backward + time.recompute)
        if not times:
            raise InvalidValue(
                f"{model.name} on {cluster.gpu.name}",
                why=f"no sequence of {setup.sequence} tokens surely fits",
                next_step="shard more (FSDP2, ZeRO-3), checkpoint activations, or shorten "
                "sequences",
            )
        gpu_kinds.append(GpuKind(cluster.gpu.name, cluster.gpus, tuple(times)))
    return tuple(gpu_kinds)


def join_clusters(clusters: Sequence[Cluster]) -> Cluster:
    """Return one cluster that is nowhere better than the worst of the clusters.

    Raises:
        InvalidValue: there are none.
    """
    if not clusters:
        raise InvalidValue("the list of clusters", why="it is empty")
    per_node = min(cluster.per_node for cluster in clusters)
    gpus = sum(cluster.gpus for cluster in clusters)
    while gpus % per_node:
        per_node -= 1
    slowest = min(clusters, key=lambda cluster: cluster.gpu.peak(cluster.gpu.half_dtype)).gpu
    links = LinkRates(
        intra_node=min(cluster.links.intra_node for cluster in clusters),
        inter_node=min(cluster.links.inter_node for cluster in clusters),
        intra_node_latency_s=max(cluster.links.intra_node_latency_s for cluster in clusters),
        inter_node_latency_s=max(cluster.links.inter_node_latency_s for cluster in clusters),
        bus=min(cluster.links.bus for cluster in clusters),
    )
    return Cluster(slowest, per_node, gpus // per_node, links)


def sync_time(
    model: Transformer,
    setup: TrainingSetup,
    clusters: Sequence[Cluster],
    conditions: Conditions | None = None,
) -> float:
    """Return the seconds of a synchronization that compute does not hide.

    All clusters count as as slow as the slowest.
    """
    joined = join_clusters(clusters)
    data_parallel = msgspec.structs.replace(
        setup, data=joined.gpus, replicas=1, expert=1, accumulation=1
    )
    return estimate_step_time(model, data_parallel, joined, conditions).communication
