"""Collectives that end: each has a limit of its own, and says which ranks did not come when it is over.

May stand here: what users call instead of ``torch.distributed``'s functions (``reduce.py``, ``meetings.py``), how a
call is waited for (``waiting.py``), and what is known of a group (``groups.py``). Nothing here starts a thread, or
uses a signal.
"""

from __future__ import annotations

from holdfast.runtime.comm.broadcast import broadcast
from holdfast.runtime.comm.compression import compress
from holdfast.runtime.comm.gather import all_gather, reduce_scatter
from holdfast.runtime.comm.hierarchy import Hierarchy
from holdfast.runtime.comm.lockstep import lockstep
from holdfast.runtime.comm.many import all_reduce_many
from holdfast.runtime.comm.meetings import agree, barrier
from holdfast.runtime.comm.metric_states import synced
from holdfast.runtime.comm.metrics import sync_metrics
from holdfast.runtime.comm.rebuild import rebuild
from holdfast.runtime.comm.reduce import all_reduce, safe_all_reduce
from holdfast.runtime.comm.shared_memory import shared_tensor

__all__ = [
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
