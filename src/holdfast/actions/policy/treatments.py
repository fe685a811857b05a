"""How each cause is treated, and how often the same fault is tried again while the job gets no further."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from holdfast.actions.policy.decisions import Failure
from holdfast.facts.ranks import Trouble


class Treatment(StrEnum):
    """What kind of fault it is, as far as that decides what helps."""

    AGAIN = "again"  #: a start may help by itself: something from outside, or nobody knows what
    CODE = "code"  #: the program or its settings: the same will happen again at the same place
    MEMORY = "memory"  #: the device's memory: smaller pieces of the same batch
    HOST_MEMORY = "host memory"  #: fewer data-loader workers
    NUMERICS = "numerics"  #: NaN, Inf, a loss that leaps: back, and past the batches
    SUSPECT = "suspect"  #: the host may be at fault: again, and without it at the second time
    BAD_HOST = "bad host"  #: the host is at fault: without it, where that is possible
    SLOW_HOST = "slow host"  #: a straggler: told, and left out where the user says so
    CHECKPOINT = "checkpoint"  #: what was loaded is no good: an older one


#: Restarts for one fault while the job gets no further. NVIDIA's extension allows 1 or 3, by the kind of fault.
TRIES: Mapping[Treatment, int] = {
    Treatment.AGAIN: 3,
    Treatment.CODE: 2,
    Treatment.MEMORY: 6,  # to 64 pieces
    Treatment.HOST_MEMORY: 4,
    Treatment.NUMERICS: 4,
    Treatment.SUSPECT: 3,
    Treatment.BAD_HOST: 2,
    Treatment.SLOW_HOST: 3,
    Treatment.CHECKPOINT: 3,
}

_CAUSES: Mapping[str, Treatment] = {
    **dict.fromkeys(
        ("gpu-oom-all-ranks", "oom-on-one-rank-then-timeout", "gpu-memory-fragmented"), Treatment.MEMORY
    ),
    "host-oom-killed": Treatment.HOST_MEMORY,
    **dict.fromkeys(("mixed-precision-nan", "loss-spike", "loss-not-finite"), Treatment.NUMERICS),
    **dict.fromkeys(("gpu-hw-fault", "gpu-fell-off-bus-xid-ecc", "gpu-memory-worn"), Treatment.BAD_HOST),
    **dict.fromkeys(("straggler", "watchdog-timeout-straggler", "gpu-throttled"), Treatment.SLOW_HOST),
    **dict.fromkeys(("checkpoint-corrupt", "checkpoint-half-written"), Treatment.CHECKPOINT),
    **dict.fromkeys(
        ("python-exception-on-one-rank", "python-exception-all-ranks", "collective-mismatch",
         "mismatched-shape", "mismatched-dtype", "mismatched-operation", "rank-guarded-collective",
         "rank-skips-collective", "collective-order-inversion", "new-group-by-some-ranks", "p2p-without-partner",
         "uneven-inputs", "rank-exits-early", "unused-parameters-ddp", "ddp-param-ready-twice", "comm-config-bad",
         "group-left-at-exit", "invalid-device-ordinal", "duplicate-gpu", "variable-value-unusable"),
        Treatment.CODE,
    ),
    **dict.fromkeys(
        ("rank-stopped", "rank-uninterruptible-io", "file-io-blocked", "dataloader-worker-died",
         "stalled-outside-collectives", "rank-missing-collective", "network-fabric-fault", "ib-error",
         "ib-port-degraded", "store-wait", "iommu-acs-p2p-hang", "gpu-link-degraded"),
        Treatment.SUSPECT,
    ),
}  # fmt: skip

_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|can't allocate memory|MemoryError")
#: Exceptions of the world around the program: the next start may well not meet them.
_OF_THE_WORLD = re.compile(
    r"\b(ConnectionError|Connection\w+Error|TimeoutError|OSError|IOError|BrokenPipeError|BlockingIOError|HTTPError"
    r"|URLError|SSLError|gaierror|Dist(Network|Store|Backend)Error|NCCL error|CUDA error|CUDNN_STATUS|cuBLAS"
    r"|AcceleratorError|Collective(Timeout|Failed)|GroupBroken|ShmUnavailable|StaleFileHandle)\b"
)
#: Causes of the family of numerics that a rollback does not help.
_NOT_ROLLED_BACK = frozenset({"silent-corruption-by-misaligned-collectives", "collective-result-wrong"})


def treatment(failure: Failure) -> Treatment:
    """How this failure is treated."""
    noted = failure.scene.trouble
    if noted is not None and not failure.hang:
        return _of_memory(noted) if noted.what == "memory" else Treatment.NUMERICS
    known = _CAUSES.get(failure.cause)
    if known is Treatment.CODE and _OUT_OF_MEMORY.search(failure.message):
        return Treatment.MEMORY
    if known is Treatment.CODE and _OF_THE_WORLD.search(failure.message):
        return Treatment.AGAIN
    if known is not None:
        return known
    if failure.code.startswith("NUM") and failure.cause not in _NOT_ROLLED_BACK:
        return Treatment.NUMERICS
    return Treatment.SUSPECT if failure.hang else Treatment.AGAIN


def _of_memory(noted: Trouble) -> Treatment:
    """A script that does not ask for pieces cannot be given smaller ones: it will run out at the same place again."""
    if not noted.device:
        return Treatment.HOST_MEMORY
    return Treatment.MEMORY if noted.micro_batches is not None else Treatment.CODE
