"""Collectives with timeouts that report missing ranks: the API of ``holdfast.comm``.

Nothing here starts a background thread or uses a signal.
"""

from __future__ import annotations

from holdfast.training.collectives.barriers import Decision, agree, barrier
from holdfast.training.collectives.broadcast import broadcast
from holdfast.training.collectives.coalesced import all_reduce_many
from holdfast.training.collectives.compression import compress
from holdfast.training.collectives.consistency import lockstep
from holdfast.training.collectives.gather import all_gather, reduce_scatter
from holdfast.training.collectives.groups.group_rebuild import rebuild
from holdfast.training.collectives.hierarchy import Hierarchy
from holdfast.training.collectives.metric_states import synced
from holdfast.training.collectives.metrics import sync_metrics
from holdfast.training.collectives.reduce import all_reduce, safe_all_reduce
from holdfast.training.collectives.shared_memory.transport import shared_tensor

__all__ = [
    "Decision",
    "Hierarchy",
    "agree",
    "all_gather",
    "all_reduce",
    "all_reduce_many",
    "barrier",
    "broadcast",
    "compress",
    "lockstep",
    "rebuild",
    "reduce_scatter",
    "safe_all_reduce",
    "shared_tensor",
    "sync_metrics",
    "synced",
]
