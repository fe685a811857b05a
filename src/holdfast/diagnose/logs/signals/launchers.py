"""More lines of signals that ``general.py`` has: MPICH's report of a failed process, other devices.

MPICH and Intel MPI print ``= RANK 3 PID 4711 RUNNING AT n1`` and ``= KILLED BY SIGNAL: 9``, Open
MPI 5 ``Process name: [prterun-n1-811@1,3]``.
"""

from __future__ import annotations

from holdfast.diagnose.logs.signals.row import ScanRow, rows

_COMMAND_FAILED = (
    r"exits with return code = -?[1-9]|returned non-zero exit status|died with <Signals"
)
_LOCAL = r"(?:LOCAL_RANK|[Ll]ocal[_ ]?[Rr]ank)[\"']?[=: ]{1,3}"

#: Which process or local rank is which rank (``log_rules/process_ranks.py``).
PROCESS_RANKS = (
    ScanRow(
        "rank-pair",
        r"(?:\bRANK|\b[Gg]lobal[_ ]?[Rr]ank|\b[Rr]ank)[\"']?\s{0,8}[=: ]{1,3}(?P<rank>\d{1,6})\b"
        rf"\D{{1,60}}?{_LOCAL}(?P<local>\d{{1,4}})\b",
        find=rf"{_LOCAL}\d",
    ),
    ScanRow(
        "rank-pair",
        rf"{_LOCAL}(?P<local>\d{{1,4}})\b\D{{0,60}}?"
        r"(?:\bRANK|[Gg]lobal[_ ]?[Rr]ank|\b[Rr]ank)[\"']?[=: ]{1,3}(?P<rank>\d{1,6})\b",
        find=rf"{_LOCAL}\d",
    ),
    ScanRow(
        "pid-rank",
        r"\b[Rr]ank[ =:]{0,2}(?P<rank>\d{1,6})\b[^=:]{0,24}\bpid[ =:]{1,2}(?P<pid>\d{2,8})\b",
        find=r"\bpid[ =:]{1,2}\d{2}",
    ),
    # Ray's prefix of an actor, whose lines have its rank from then on.
    ScanRow("actor-rank", r"^\[?[Rr]ank[ =:_]{0,2}\d", find=r" pid=\d+[^)\n]{0,60}\) \[?[Rr]ank"),
    ScanRow(
        "process-started",
        r"process (?P<pid>\d+) spawned with command: .*--local[_-]rank['\",= ]{1,4}"
        r"(?P<local_rank>\d{1,4})\b",
        find=r"process \d+ spawned with command",
    ),
    ScanRow(
        "failed-command",
        rf"--local[_-]rank['\",= ]{{1,4}}(?P<local_rank>\d{{1,4}})\b.*(?:{_COMMAND_FAILED})",
        find=_COMMAND_FAILED,
    ),
    *rows(
        ("host-ranks", r"global_rank_mapping=.{0,60}\{(?P<mapping>[^}\n]{1,4000})\}"),
        ("own-ranks", r"\bglobal_ranks=\[(?P<ranks>[\d, ]{1,4000})\]"),
        ("process-rank", r"\bRANK[=:] ?[\"']?(?P<rank>\d{1,6})\b"),
        (
            "worker-failed",
            r"\b[Rr]ank (?P<rank>\d{1,6}) (?:exited|failed|died) with (?:code|status) -?[1-9]",
        ),
        (
            "worker-failed",
            r"\[rank: (?P<rank>\d{1,6})\] Child process with PID \d+ terminated with code",
        ),
    ),
)

_MORE = rows(
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

ROWS = (*_MORE, *PROCESS_RANKS)
