"""The treatment of a failure, and how often one fault is retried while the job makes no progress.

Each cause declares its treatment in its own file; a failure's own message may refine it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from holdfast.causes import all_causes
from holdfast.core.failures import JobFailure
from holdfast.core.rank_table import StepProblem
from holdfast.core.treatments import Treatment

__all__ = ["TRIES", "Treatment", "select_treatment"]

#: Restarts for one fault while the job makes no progress. NVIDIA's resiliency extension allows 1
#: or 3, by kind.
TRIES: Mapping[Treatment, int] = {
    Treatment.AGAIN: 3,
    Treatment.CODE: 2,
    Treatment.MEMORY: 6,  # up to 64 micro-batches
    Treatment.HOST_MEMORY: 4,
    Treatment.NUMERICS: 4,
    Treatment.SUSPECT: 3,
    Treatment.BAD_HOST: 2,
    Treatment.SLOW_HOST: 3,
    Treatment.CHECKPOINT: 3,
}

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|OutOfMemoryError|can't allocate memory|MemoryError"
)
#: Exceptions with an external cause, which may not recur.
_EXTERNAL_ERROR = re.compile(
    r"\b(ConnectionError|Connection\w+Error|TimeoutError|OSError|IOError|BrokenPipeError"
    r"|BlockingIOError|HTTPError|URLError|SSLError|gaierror|Dist(Network|Store|Backend)Error"
    r"|NCCL error|CUDA error|CUDNN_STATUS|cuBLAS|AcceleratorError|Collective(Timeout|Failed)"
    r"|GroupBroken|ShmUnavailable|StaleFileHandle)\b"
)


@cache
def _by_cause() -> Mapping[str, Treatment]:
    """Return the treatment of every cause that declares one, by the cause's name."""
    return {cause.name: cause.treatment for cause in all_causes() if cause.treatment is not None}


def select_treatment(failure: JobFailure) -> Treatment:
    """Return the treatment of ``failure``."""
    problem = failure.job_state.trouble
    if problem is not None and not failure.hang:
        return _of_step_problem(problem)
    declared = _by_cause().get(failure.cause)  # a ledger may hold causes of another version
    if declared is Treatment.CODE and _OUT_OF_MEMORY.search(failure.message):
        return Treatment.MEMORY
    if declared is Treatment.CODE and _EXTERNAL_ERROR.search(failure.message):
        return Treatment.AGAIN
    if declared is not None:
        return declared
    return Treatment.SUSPECT if failure.hang else Treatment.AGAIN


def _of_step_problem(problem: StepProblem) -> Treatment:
    """Return the treatment of a problem that the training loop reported.

    A script that does not split its batch cannot use smaller micro-batches: it runs out of memory
    again at the same place.
    """
    if problem.what != "memory":
        return Treatment.NUMERICS
    if not problem.device:
        return Treatment.HOST_MEMORY
    return Treatment.MEMORY if problem.micro_batches is not None else Treatment.CODE
