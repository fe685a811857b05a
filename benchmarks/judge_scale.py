"""Verdict for 16,384 simulated ranks: decode every node's summary and find the root, on one core.

8 ranks per node; groups of 8 (tensor parallel), of 2,048 (data parallel) and the world. One rank is
missing in its tensor-parallel group: its 7 peers wait for it, and all other ranks wait for them. No
peer analyzes a live job of this size; the analyzer that ships with torch needs 72 to 215 CPU
seconds for the dumps of 1,024 ranks.
"""

from __future__ import annotations

import os
import resource
import statistics
import time

import msgspec

from holdfast.core.rank_table import (
    GroupProgress,
    ProcessGroupInfo,
    ProcessState,
    RankState,
    RecordedCall,
    SourceLine,
    ThreadStack,
)
from holdfast.watcher.job_summary import JobSummary, combine_summaries
from holdfast.watcher.rules import hang

RANKS, A_NODE, TENSOR = 16_384, 8, 8
GUILTY = 4_242
ROUNDS = 5

STEP = SourceLine("/job/train.py", 120, "train_step")
LAYER = SourceLine("/job/model.py", 61, "forward")
LOADER = SourceLine("/job/data.py", 33, "read_shard")


def _all_reduce(
    group: str, number: int, site: SourceLine, size: int, entered: float, completed: float | None
) -> RecordedCall:
    return RecordedCall(
        group,
        number,
        "all_reduce",
        "bfloat16",
        size,
        (size,),
        site=site,
        entered=entered,
        completed=completed,
    )


def _rank(rank: int) -> RankState:
    node, lane = divmod(rank, TENSOR)
    mine, data = f"tp{node}", f"dp{lane}"
    guilty_node = node == GUILTY // TENSOR
    entered = {mine: 900, data: 300, "world": 100}
    pending: tuple[RecordedCall, ...] = (_all_reduce(data, 301, STEP, 1 << 24, 1.0, None),)
    if guilty_node and rank != GUILTY:
        pending = (_all_reduce(mine, 901, LAYER, 1 << 20, 1.0, None),)
    if rank == GUILTY:
        pending = ()
    for call in pending:
        entered[call.group] += 1
    frames = (LOADER,) if rank == GUILTY else (STEP, LAYER)
    recent = tuple(
        _all_reduce(mine, number, LAYER, 1 << 20, 0.1, 0.2) for number in range(897, 901)
    )
    stacks = (ThreadStack(frames * 4, time=9.0), ThreadStack(frames * 4, time=10.0))
    return RankState(
        rank=rank,
        host=f"node{node}",
        pid=1000 + lane,
        life=ProcessState.RUNNING,
        progress=1.0,
        step=100,
        step_p99_s=0.5,
        groups={name: GroupProgress(count, count) for name, count in entered.items()},
        pending=pending,
        recent=recent,
        stacks=stacks,
        cpu_share=0.0,
    )


def _node(node: int) -> bytes:
    groups = {
        f"tp{node}": ProcessGroupInfo(f"tp{node}", tuple(range(node * TENSOR, (node + 1) * TENSOR)))
    }
    groups |= {
        f"dp{lane}": ProcessGroupInfo(f"dp{lane}", tuple(range(lane, RANKS, TENSOR)))
        for lane in range(TENSOR)
    }
    groups["world"] = ProcessGroupInfo("world", tuple(range(RANKS)))
    ranks = tuple(_rank(rank) for rank in range(node * A_NODE, (node + 1) * A_NODE))
    if node:  # the leader needs the members of each group only once
        groups = {
            name: group if name.startswith("tp") else ProcessGroupInfo(name, None)
            for name, group in groups.items()
        }
    return msgspec.msgpack.encode(JobSummary(ranks, groups, RANKS, 1.0, 10.0))


def main() -> None:
    """Print the durations and the verdict."""
    blobs = [_node(node) for node in range(RANKS // A_NODE)]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoding, judging = [], []
    for _ in range(ROUNDS):
        start = time.process_time()
        table = combine_summaries(
            [msgspec.msgpack.decode(blob, type=JobSummary) for blob in blobs], 10.0, 5.0
        )
        decoded = time.process_time()
        verdict = hang.judge_hang(table.ranks, table.groups, world_size=RANKS)
        judging.append(time.process_time() - decoded)
        decoding.append(decoded - start)
        assert verdict.root is not None
        assert verdict.root.subject.rank == GUILTY, verdict.root
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = statistics.median(a + b for a, b in zip(decoding, judging, strict=True))
    size = sum(map(len, blobs)) / 1e6
    print(
        f"{RANKS} ranks on {len(blobs)} nodes, {size:.0f} MB of summaries: "
        f"decoded in {statistics.median(decoding):.2f} s, judged in "
        f"{statistics.median(judging):.2f} s, "
        f"together {total:.2f} s of one core (target 1 s)"
    )
    print(
        f"peak memory {peak / 1024:.0f} MiB, of which {before / 1024:.0f} before (target 2048 MiB)"
    )
    print(f"verdict: {verdict.root.message}")


if __name__ == "__main__":
    main()
