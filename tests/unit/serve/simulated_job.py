"""A job of any number of ranks, as summaries that the watcher of its leader would combine."""

from __future__ import annotations

import math

from holdfast.core.findings import Finding, Level, Subject
from holdfast.core.live_state import CallLatency, GpuReading, NodeReading
from holdfast.core.rank_table import (
    GroupProgress,
    ProcessGroupInfo,
    ProcessState,
    RankState,
    RecordedCall,
    SourceLine,
    WaitSlice,
)
from holdfast.watcher.agent_messages import StartWatching
from holdfast.watcher.job_summary import JobSummary

RANKS_PER_NODE = 8
SITE = SourceLine("/job/train.py", 41, "train")
OVERHEATED = Finding(
    code="GPU010",
    cause="gpu-throttled",
    level=Level.WARNING,
    message="GPU 3 <b>throttled</b>: temperature",
    subject=Subject(host="node001", gpu=3),
)


def start_message(
    folder: object, world_size: int = 16, generation: int = 0, node: int = 0
) -> StartWatching:
    return StartWatching(
        generation=generation,
        run_dir=str(folder),
        node=node,
        nodes=-(-world_size // RANKS_PER_NODE),
        leader=True,
        world_size=world_size,
        workers=(),
        agent=f"node{node:03}:4711",
        job="train.py, many ranks",
    )


def simulate(
    world_size: int, at: float, *, step: int, slow: int = 3, stuck: int | None = None
) -> JobSummary:
    """Return the summary at ``at``: rank ``slow`` waits least; the others wait for ``stuck``."""
    everyone = tuple(range(world_size))
    groups = {"0": ProcessGroupInfo("0", everyone, "default_pg", "nccl")}
    states = []
    for rank in everyone:
        node = rank // RANKS_PER_NODE
        name = f"tp{node}"
        if rank % RANKS_PER_NODE == 0:
            members = tuple(range(rank, min(rank + RANKS_PER_NODE, world_size)))
            groups[name] = ProcessGroupInfo(name, members, f"tensor parallel {node}", "nccl")
        waits_for_stuck = stuck is not None and rank != stuck
        calls = step * 3
        pending = RecordedCall(
            "0", calls + 1, "all_reduce", "float32", 1 << 20, site=SITE, entered=at - 4.0
        )
        states.append(
            RankState(
                rank=rank,
                host=f"node{node:03}",
                node="" if world_size <= RANKS_PER_NODE else f"node{node:03}:4711",
                pid=1000 + rank,
                life=ProcessState.RUNNING,
                started=at - step,
                progress=at - (4.0 if stuck is not None else 0.2),
                step=step,
                counted=step,
                phase="evaluation" if rank == 5 else None,
                step_p99_s=1.0,
                groups={
                    "0": GroupProgress(calls + waits_for_stuck, calls),
                    name: GroupProgress(calls, calls),
                },
                pending=(pending,) if waits_for_stuck else (),
                waits=(WaitSlice(int(at) // 5, _waited(rank, at, slow), 40),),
                memory_bytes=(3 << 30) + rank % 7 * (100 << 20),
            )
        )
    nodes = tuple(
        NodeReading(
            host=f"node{node:03}",
            node="" if world_size <= RANKS_PER_NODE else f"node{node:03}:4711",
            memory_bytes=1 << 40,
            memory_available_bytes=(700 - node % 50) << 30,
            gpus=tuple(
                GpuReading(
                    index,
                    "NVIDIA H100 80GB HBM3" if node % 2 == 0 else "NVIDIA A100-SXM4-80GB",
                    84 if (node, index) == (0, 3) else 55 + (node * 3 + index * 5) % 17,
                    (40 + index) << 30,
                    80 << 30,
                    ("HW thermal slowdown",) if (node, index) == (0, 3) else (),
                    (1000 + node * RANKS_PER_NODE + index,),
                )
                for index in range(min(RANKS_PER_NODE, world_size - node * RANKS_PER_NODE))
            ),
        )
        for node in range(-(-world_size // RANKS_PER_NODE))
    )
    return JobSummary(
        tuple(states),
        groups,
        world_size,
        at - (4.0 if stuck is not None else 0.2),
        at,
        nodes=nodes,
        latencies=(
            CallLatency("default_pg", "all_reduce", 400, 0.0021, 0.0098, 0.061),
            CallLatency(
                "tensor parallel 0", "all_gather_into_tensor", 900, 0.00042, 0.00051, 0.0012
            ),
            CallLatency("default_pg", "barrier", 12, 0.0008, 0.004, 0.02),
        ),
    )


def _waited(rank: int, at: float, slow: int) -> float:
    if rank == slow:
        return 0.02
    usual = 0.22 + 0.06 * math.sin(rank * 12.9898) + 0.05 * math.sin(at / 37 + rank // 8)
    return round(min(max(usual + 0.12, 0.0), 1.0), 3)
