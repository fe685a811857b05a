"""Which process is which rank, for lines that name only the process: those of NCCL and Ray actors.

Once a line names both, every later line of that process has its rank. Readers of the logs of one
job share the mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

#: Process (host and pid), host, and CUDA device of a line of NCCL's.
NCCL_PROCESS = re.compile(rb"(([\w.-]{1,120}):\d{1,8}):\d{1,8} \[(\d{1,3})\]")
#: Ray's prefix of an actor's output: class and pid, then the address if on another node.
_ACTOR = re.compile(
    rb"\([A-Za-z_][\w.:]{0,80} (?:rank=\d{1,6} )?pid=(\d{1,8})(?:, ip=[\w.:]{1,60})?\)"
)
#: The prefix lies within these bytes of a line.
_PREFIX_BYTES = 200
#: Two ranks have the same pid on two nodes.
_AMBIGUOUS = -1


def parse_actor_pid(raw: bytes) -> int | None:
    """Return the pid of the Ray actor that printed this line; None without Ray's prefix."""
    if b"pid=" not in raw[:_PREFIX_BYTES]:
        return None
    found = _ACTOR.search(raw, 0, _PREFIX_BYTES)
    return int(found[1]) if found else None


def record_actor_rank(ranks: MutableMapping[str, int], pid: int, rank: int) -> None:
    """Record that the actor ``pid`` is ``rank``."""
    key = _actor_key(pid)
    ranks[key] = rank if ranks.get(key, rank) == rank else _AMBIGUOUS


def rank_of_actor(ranks: Mapping[str, int], pid: int) -> int | None:
    """Return the rank of the actor ``pid``; None if unknown so far, or ambiguous."""
    rank = ranks.get(_actor_key(pid), _AMBIGUOUS)
    return None if rank == _AMBIGUOUS else rank


def _actor_key(pid: int) -> str:
    return f"actor {pid}"
