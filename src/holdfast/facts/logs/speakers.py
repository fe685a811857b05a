"""Which process of a job is which rank, for the lines that tell of the process alone: NCCL's and those of Ray's actors.

Once a line tells both, every later line of that process has its rank. What is known stands in one dictionary, which
readers of logs of one job share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

#: Process (host and pid), host and CUDA device of a line of NCCL's.
NCCL_PROCESS = re.compile(rb"(([\w.-]{1,120}):\d{1,8}):\d{1,8} \[(\d{1,3})\]")
#: In front of what an actor printed, Ray writes its class and its pid; an address follows for those of other nodes.
_ACTOR = re.compile(rb"\([A-Za-z_][\w.:]{0,80} (?:rank=\d{1,6} )?pid=(\d{1,8})(?:, ip=[\w.:]{1,60})?\)")
#: So far into a line stands such a prefix.
_PREFIX = 200
#: Two ranks were told for one pid, on two nodes: no line says which of them it is.
_AMBIGUOUS = -1


def actor_of(raw: bytes) -> int | None:
    """The pid of the actor that printed this line; None where Ray did not write it in front."""
    if b"pid=" not in raw[:_PREFIX]:
        return None
    found = _ACTOR.search(raw, 0, _PREFIX)
    return int(found[1]) if found else None


def learn(known: MutableMapping[str, int], pid: int, rank: int) -> None:
    """The actor ``pid`` is ``rank``."""
    known[_key(pid)] = rank if known.get(_key(pid), rank) == rank else _AMBIGUOUS


def rank_of_actor(known: Mapping[str, int], pid: int) -> int | None:
    """The rank of the actor ``pid``, as far as the lines before told it."""
    rank = known.get(_key(pid), _AMBIGUOUS)
    return None if rank == _AMBIGUOUS else rank


def _key(pid: int) -> str:
    return f"actor {pid}"
