"""More lines of signals that ``general.py`` has: MPICH's report of a failed process, other devices.

MPICH and Intel MPI print ``= RANK 3 PID 4711 RUNNING AT n1`` and ``= KILLED BY SIGNAL: 9``, Open
MPI 5 ``Process name: [prterun-n1-811@1,3]``.
"""

from __future__ import annotations

from holdfast.diagnose.logs.signals.row import rows

ROWS = rows(
    ("mpi-process", r"Process name: \[prterun-\S{1,120}@\d+,(?P<rank>\d{1,6})\]"),
    ("worker-failed", r"\brank=(?P<rank>\d{1,6})\] {1,40}Uncaught \w+"),
    ("mpi-process", r"= +RANK (?P<rank>\d{1,6}) PID \d+ RUNNING AT"),
    ("mpi-signal", r"= +KILLED BY SIGNAL: (?P<signal>\d{1,2})\b"),
    ("process-ended", r"= +EXIT CODE: (?P<code>\d{1,3})\b"),
    (
        "cuda-out-of-memory",
        r"RESOURCE_EXHAUSTED: Out of memory|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
        r"Allocation failed for size::\d",
    ),
)
