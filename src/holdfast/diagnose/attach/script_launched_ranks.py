"""Find ranks that their script started by itself, as Lightning does without torchrun.

The process that the user started is local rank 0 and starts a copy of its command line for each
other local rank, with LOCAL_RANK and NODE_RANK in the environment, but without RANK. Its own
initial environment contains none of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from holdfast.host.processes.training_processes import (
    ProcessTable,
    RankIdentity,
    TrainingProcess,
)

ORIGIN = "NODE_RANK and LOCAL_RANK"
_MAX_RANKS = 1 << 16


def find_script_launched_ranks(
    table: ProcessTable,
) -> Iterator[list[tuple[TrainingProcess, RankIdentity]]]:
    """Yield the ranks of each such script, local rank 0 first."""
    by_parent: dict[int, dict[int, TrainingProcess]] = defaultdict(dict)
    for pid in table.python():
        process, parent = table.process(pid), next(table.ancestors(pid), None)
        local_rank = _number(process, "LOCAL_RANK")
        if (
            parent is not None
            and local_rank
            and not process.variable("RANK")
            and process.variable("MASTER_PORT")
            and not parent.variable("LOCAL_RANK")
            and table.is_python(parent.pid)
            and table.has_torch(parent.pid)
        ):
            by_parent[parent.pid][local_rank] = process
    for parent_pid, copies in by_parent.items():
        by_local_rank = {0: table.process(parent_pid), **copies}
        first = next(iter(copies.values()))
        begin = (_number(first, "NODE_RANK") or 0) * len(by_local_rank)
        world_size = _number(first, "WORLD_SIZE") or len(by_local_rank)
        yield [
            (process, RankIdentity(begin + local_rank, world_size, local_rank, ORIGIN))
            for local_rank, process in sorted(by_local_rank.items())
        ]


def _number(process: TrainingProcess, name: str) -> int | None:
    text = process.variable(name)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
    return number if number is not None and number < _MAX_RANKS else None
