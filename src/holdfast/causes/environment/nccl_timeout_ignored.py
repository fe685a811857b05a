"""ENV004 nccl-timeout-ignored."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

NCCL_TIMEOUT_IGNORED = Cause(
    code="ENV004",
    name="nccl-timeout-ignored",
    summary="NCCL_TIMEOUT is set, but neither NCCL nor torch reads it.",
    what_happens="The timeout of a collective is that of its process group: 10 minutes for NCCL, "
    "30 for gloo, unless init_process_group(timeout=...) sets another. NCCL_TIMEOUT, "
    "TORCH_NCCL_TIMEOUT and GLOO_TIMEOUT look like that timeout, but no release of NCCL reads "
    "them, nor does torch 2.13; a few training programs read the name themselves.",
    shows_before="The variable is set and the program passes no timeout to init_process_group. "
    "new_group() is a separate trap: it ignores the default group's timeout and uses the "
    "backend's default.",
    shows_during="A hang lasts 10 or 30 minutes although the variable says less, or a long "
    "checkpoint is aborted although it says more.",
    shows_after="`Watchdog caught collective operation timeout` with Timeout(ms)=600000, or "
    "gloo's `Timed out waiting 1800000ms`: the defaults, not the variable's value.",
    known_misses="A framework may read the variable and pass it on; then it does have an effect. "
    "The timeout that the program passes to its groups is not recorded.",
    evidence_sources=(
        EvidenceSource.ENVIRONMENT,
        EvidenceSource.SOURCE,
    ),
    remedies=(
        by_hand(
            "Pass the timeout to the process group, and to every new_group(): "
            "`dist.init_process_group(backend, timeout=timedelta(seconds=1200))`."
        ),
        automatic("Remove the variable, because it has no effect.", "unset NCCL_TIMEOUT"),
        by_hand(
            "Frameworks have their own options: DEEPSPEED_TIMEOUT (minutes), Megatron's "
            "--distributed-timeout-minutes, Accelerate's InitProcessGroupKwargs."
        ),
    ),
    sources=("NVIDIA/nccl, tags v1.2.1 to v2.30.7: no match", "torch 2.13.0 wheel: no match"),
)
