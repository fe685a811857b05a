"""Logs without an error: the job stood still, or became slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import Tier
from holdfast.rules.logs.watchdog import EARLY_WORK

#: The scheduler's reports go on for so long (s) after the last word of the training.
STILL_S = 1800.0
#: The last steps are slower than the first ones by this factor, and all of them are.
SLOWER, LEAST_STEPS = 1.04, 4
#: Lines from the end within which NCCL's set-up is the last thing that a log tells.
NEAR_END = 4


def stood_still(heard: Heard) -> Iterable[Candidate]:
    """The scheduler says that the job runs, and the job says nothing more."""
    words = heard.all("progress", "pace", "evaluation", "finished")
    if not words or "finished" in heard:
        return
    later = [signal for signal in heard.after(words[-1], "scheduler-status") if signal.line.time is not None]
    if len(later) < 2 or (later[-1].line.time or 0.0) - (later[0].line.time or 0.0) < STILL_S:
        return
    after = "an evaluation" if words[-1].name == "evaluation" or "evaluation" in heard else "its last step"
    hours = ((later[-1].line.time or 0.0) - (later[0].line.time or 0.0)) / 3600
    message = f"the job stands still after {after}: {hours:.1f} hours of the scheduler's reports and no other line"
    lines = (words[-1].line, later[-1].line)
    yield Candidate("rank-missing-collective", Tier.SILENCE, 0.35, message, lines)
    if after == "an evaluation":
        yield Candidate("dataloader-worker-died", Tier.SILENCE, 0.34, message, lines)


def slowed(heard: Heard) -> Iterable[Candidate]:
    """The steps become slower and stay so."""
    paces = [signal for signal in heard.all("pace") if signal.fields.get("seconds")]
    if len(paces) < LEAST_STEPS:
        return
    seconds = [float(signal.fields["seconds"]) for signal in paces]
    early = statistics.median(seconds[: len(seconds) // 2])
    late = seconds[-max(2, len(seconds) // 3) :]
    if min(late) < SLOWER * early:
        return
    message = f"the steps became slower: {early:.2f} s at first, {late[-1]:.2f} s in the end, without an error"
    yield Candidate("watchdog-timeout-straggler", Tier.SILENCE, 0.5, message, (paces[0].line, paces[-1].line))


#: NCCL's lines of a communicator between GPUs of one host that is being made, or was.
_MADE = ("nccl-p2p", "nccl-made")


def stuck_between_gpus(heard: Heard) -> Iterable[Candidate]:
    """GPUs of one host connect to each other directly, and not one collective comes through."""
    direct = heard.first("nccl-p2p", "iommu-warned")
    if direct is None or len(heard.facts.hosts) != 1 or any(name in heard for name in ("finished", "progress", "pace")):
        return
    waits = [signal for signal in heard.all("watchdog-timeout") if int(signal.fields.get("seq", 0)) <= EARLY_WORK]
    last = heard.facts.last
    made = heard.all(*_MADE) or [direct]
    near = last is not None and made[-1].line.source == last.source and last.number - made[-1].line.number < NEAR_END
    silent = near or (last is not None and last.text.startswith("NCCL INFO"))
    if not waits and not silent:
        return
    message = "the GPUs of one host connect to each other directly, and no collective completes"
    lines = (direct.line, *(signal.line for signal in waits[:2]))
    yield Candidate("iommu-acs-p2p-hang", Tier.WAITING if waits else Tier.SILENCE, 0.5, message, lines)
