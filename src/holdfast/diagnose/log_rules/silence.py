"""Logs without an error: the job stopped logging, or became slower."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from holdfast.causes.data.dataloader_worker_died import DATALOADER_WORKER_DIED
from holdfast.causes.gpu.gpu_throttled import GPU_THROTTLED
from holdfast.causes.gpu.iommu_acs_p2p_hang import IOMMU_ACS_P2P_HANG
from holdfast.causes.performance.watchdog_timeout_straggler import WATCHDOG_TIMEOUT_STRAGGLER
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.log_rules.watchdog import is_early
from holdfast.diagnose.logs import LoggedSignal

#: Scheduler reports continue for this long after the last line of the training.
SILENT_S = 1800.0
#: The last steps are all slower than the first by this factor.
SLOWER, MIN_STEPS = 1.04, 4
#: A log that ends this many lines after NCCL's setup ends in it.
NEAR_END_LINES = 4
#: NCCL's lines about a communicator between the GPUs of one host.
_COMMUNICATOR_SIGNALS = ("nccl-p2p", "nccl-made")


def find_stalled_output(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a hang: the scheduler reports a running job that logs nothing more."""
    words = index.all("progress", "pace", "evaluation", "finished")
    if not words or "finished" in index:
        return
    reports = index.after(words[-1], "scheduler-status")
    timed = [(time, one) for one in reports if (time := one.line.time) is not None]
    if len(timed) < 2 or timed[-1][0] - timed[0][0] < SILENT_S:
        return
    hours = (timed[-1][0] - timed[0][0]) / 3600
    in_evaluation = "evaluation" in index
    after = "an evaluation" if in_evaluation else "its last step"
    message = (
        f"the job is silent after {after}: the scheduler reported it as running for {hours:.1f} h "
        "without another line"
    )
    lines = (words[-1].line, timed[-1][1].line)
    yield CauseCandidate(RANK_MISSING_COLLECTIVE.name, Tier.SILENCE, 0.35, message, lines)
    if in_evaluation:
        yield CauseCandidate(DATALOADER_WORKER_DIED.name, Tier.SILENCE, 0.34, message, lines)


def find_slowdown(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield steps that become slower and stay so; a GPU that lowers its clocks is the cause."""
    reason = index.first("gpu-slowdown")
    # Single steps vary too much to show a slowdown on their own.
    names = ("seconds",) if reason is None else ("seconds", "step_seconds")
    paces = [one for one in index.all("pace") if any(one.fields.get(name) for name in names)]
    if len(paces) < MIN_STEPS:
        return
    seconds = [
        float(next(one.fields[name] for name in names if name in one.fields)) for one in paces
    ]
    early = statistics.median(seconds[: len(seconds) // 2])
    late = seconds[-max(2, len(seconds) // 3) :]
    if min(late) < SLOWER * early:
        return
    message = f"steps became slower without an error: from {early:.2f} s to {late[-1]:.2f} s"
    lines = (paces[0].line, paces[-1].line)
    if reason is None:
        yield CauseCandidate(WATCHDOG_TIMEOUT_STRAGGLER.name, Tier.SILENCE, 0.5, message, lines)
        return
    message += ", and a GPU lowers its clocks because of heat or power"
    shown = (reason.line, *lines)
    yield CauseCandidate(GPU_THROTTLED.name, Tier.SILENCE, 0.7, message, shown)


def find_p2p_hang(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield GPUs of one host that connect by P2P while no collective completes."""
    first = index.first("nccl-p2p", "iommu-warned")
    if (
        first is None
        or len(index.facts.hosts) != 1
        or index.has_any("finished", "progress", "pace")
    ):
        return
    timeouts = [signal for signal in index.all("watchdog-timeout") if is_early(signal)]
    if not timeouts and not _ends_in_setup(index, first):
        return
    message = "the GPUs of one host connect by P2P, and no collective completes"
    lines = (first.line, *lines_of(timeouts, 2))
    tier = Tier.WAITING if timeouts else Tier.SILENCE
    yield CauseCandidate(IOMMU_ACS_P2P_HANG.name, tier, 0.5, message, lines)


def _ends_in_setup(index: LogIndex, first: LoggedSignal) -> bool:
    """Return whether the logs end with NCCL's setup."""
    last = index.facts.last
    if last is None:
        return False
    line = (index.all(*_COMMUNICATOR_SIGNALS) or [first])[-1].line
    is_near = line.source == last.source and last.number - line.number < NEAR_END_LINES
    return is_near or last.text.startswith("NCCL INFO")
