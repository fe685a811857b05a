"""The samples of the ranks of a job: thread stacks, process states, and collectives if recorded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.rank_table import ProcessGroupInfo, RankState, ThreadStack

#: The stacks of all threads of one process at one moment, the main thread first.
Threads = tuple[ThreadStack, ...]


class JobSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of the ranks of a job on one host, or the combined samples of several hosts.

    ``threads`` maps each sampled rank to its newest stacks. ``has_traces``: the ranks have trace
    files, so ``ranks`` and ``groups`` contain their collectives. ``silent_since`` is the time of
    the last progress of any rank (Unix s, 0: unknown). ``gone`` are ranks without a process, known
    only if all ranks were started on one host.
    """

    ranks: tuple[RankState, ...]
    threads: dict[int, Threads]
    groups: dict[str, ProcessGroupInfo] = {}
    world_size: int
    has_traces: bool = msgspec.field(default=False, name="boxes")
    silent_since: float = 0.0
    time: float
    gone: tuple[int, ...] = ()
    unseen: tuple[str, ...] = ()


def combine_samples(parts: Sequence[JobSamples]) -> JobSamples:
    """Combine the samples of a job's hosts; if two hosts report a rank, the first one wins."""
    ranks = {state.rank: state for part in reversed(parts) for state in part.ranks}
    return JobSamples(
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        threads={
            rank: threads for part in reversed(parts) for rank, threads in part.threads.items()
        },
        groups={name: group for part in reversed(parts) for name, group in part.groups.items()},
        world_size=max(part.world_size for part in parts),
        has_traces=all(part.has_traces for part in parts),
        silent_since=max(part.silent_since for part in parts),
        time=max(part.time for part in parts),
        gone=tuple(
            dict.fromkeys(rank for part in parts for rank in part.gone if rank not in ranks)
        ),
        unseen=tuple(dict.fromkeys(text for part in parts for text in part.unseen)),
    )
