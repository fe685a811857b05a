"""16,384 simulated ranks judged: decoding every node's summary and finding the root, on one core.

8 ranks a node; groups of 8 (tensor parallel), of 2,048 (data parallel) and the world, as in a real job; one rank is
missing in its tensor-parallel group, so that its 7 peers wait for it, and everybody else waits for them. There is no
peer that judges a live job of this size; the analyser that ships with torch needs 72 to 215 CPU seconds for 1,024
ranks' dumps.
"""

from __future__ import annotations

import os
import resource
import statistics
import time

import msgspec

from holdfast.facts.node import Summary, combine
from holdfast.facts.ranks import Group, GroupProgress, Life, Operation, Place, RankState, Stack
from holdfast.rules import hang

RANKS, A_NODE, TENSOR = 16_384, 8, 8
GUILTY = 4_242
ROUNDS = 5

STEP = Place("/job/train.py", 120, "train_step")
LAYER = Place("/job/model.py", 61, "forward")
LOADER = Place("/job/data.py", 33, "read_shard")


def _all_reduce(group: str, number: int, site: Place, size: int, entered: float, completed: float | None) -> Operation:
    return Operation(
        group, number, "all_reduce", "bfloat16", size, (size,), site=site, entered=entered, completed=completed
    )


def _rank(rank: int) -> RankState:
    node, lane = divmod(rank, TENSOR)
    mine, data = f"tp{node}", f"dp{lane}"
    guilty_node = node == GUILTY // TENSOR
    entered = {mine: 900, data: 300, "world": 100}
    pending: tuple[Operation, ...] = (_all_reduce(data, 301, STEP, 1 << 24, 1.0, None),)
    if guilty_node and rank != GUILTY:
        pending = (_all_reduce(mine, 901, LAYER, 1 << 20, 1.0, None),)
    if rank == GUILTY:
        pending = ()
    for call in pending:
        entered[call.group] += 1
    frames = (LOADER,) if rank == GUILTY else (STEP, LAYER)
    recent = tuple(_all_reduce(mine, number, LAYER, 1 << 20, 0.1, 0.2) for number in range(897, 901))
    stacks = (Stack(frames * 4, time=9.0), Stack(frames * 4, time=10.0))
    return RankState(
        rank=rank, host=f"node{node}", pid=1000 + lane, life=Life.RUNNING, progress=1.0, step=100, step_p99_s=0.5,
        groups={name: GroupProgress(count, count) for name, count in entered.items()},
        pending=pending, recent=recent, stacks=stacks, cpu_share=0.0,
    )  # fmt: skip


def _node(node: int) -> bytes:
    groups = {f"tp{node}": Group(f"tp{node}", tuple(range(node * TENSOR, (node + 1) * TENSOR)))}
    groups |= {f"dp{lane}": Group(f"dp{lane}", tuple(range(lane, RANKS, TENSOR))) for lane in range(TENSOR)}
    groups["world"] = Group("world", tuple(range(RANKS)))
    ranks = tuple(_rank(rank) for rank in range(node * A_NODE, (node + 1) * A_NODE))
    if node:  # every node knows every group; the leader needs the members once
        groups = {name: group if name.startswith("tp") else Group(name, None) for name, group in groups.items()}
    return msgspec.msgpack.encode(Summary(ranks, groups, RANKS, 1.0, 10.0))


def main() -> None:
    """Print the time of each part."""
    blobs = [_node(node) for node in range(RANKS // A_NODE)]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoding, judging = [], []
    for _ in range(ROUNDS):
        start = time.process_time()
        table = combine([msgspec.msgpack.decode(blob, type=Summary) for blob in blobs], 10.0, 5.0)
        decoded = time.process_time()
        verdict = hang.judge(table.ranks, table.groups, world_size=RANKS)
        judging.append(time.process_time() - decoded)
        decoding.append(decoded - start)
        assert verdict.root is not None
        assert verdict.root.subject.rank == GUILTY, verdict.root
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = statistics.median(a + b for a, b in zip(decoding, judging, strict=True))
    size = sum(map(len, blobs)) / 1e6
    print(
        f"{RANKS} ranks on {len(blobs)} nodes, {size:.0f} MB of summaries: "
        f"decoded in {statistics.median(decoding):.2f} s, judged in {statistics.median(judging):.2f} s, "
        f"together {total:.2f} s of one core (target 1 s)"
    )
    print(f"peak memory {peak / 1024:.0f} MiB, of which {before / 1024:.0f} before (target 2048 MiB)")
    print(f"verdict: {verdict.root.message}")


if __name__ == "__main__":
    main()
