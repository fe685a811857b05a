"""Collectives that end: each has a limit of its own, and says which ranks did not come when it is over.

May stand here: what users call instead of ``torch.distributed``'s functions (``reduce.py``, ``meetings.py``), how a
call is waited for (``waiting.py``), and what is known of a group (``groups.py``). Nothing here starts a thread, or
uses a signal.
"""

from __future__ import annotations

from holdfast.runtime.comm.compression import compress
from holdfast.runtime.comm.hierarchy import Hierarchy
from holdfast.runtime.comm.lockstep import lockstep
from holdfast.runtime.comm.many import all_reduce_many
from holdfast.runtime.comm.meetings import agree, barrier
from holdfast.runtime.comm.metric_states import synced
from holdfast.runtime.comm.metrics import sync_metrics
from holdfast.runtime.comm.rebuild import rebuild
from holdfast.runtime.comm.reduce import all_reduce, safe_all_reduce

__all__ = [
    "Hierarchy",
    "agree",
    "all_reduce",
    "all_reduce_many",
    "barrier",
    "compress",
    "lockstep",
    "rebuild",
    "safe_all_reduce",
    "sync_metrics",
    "synced",
]
