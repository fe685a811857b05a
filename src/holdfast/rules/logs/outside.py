"""Who ended the job from outside: the scheduler, a person, the loss of a node."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import candidate, overcome


def ended(heard: Heard) -> Iterable[Candidate]:
    """The scheduler's word first, then what the processes heard."""
    for signal in heard.all("slurm-cancelled"):
        why = str(signal.fields.get("why", "")).strip()
        if "NODE" in why:
            message = f"Slurm ended the job because of {why.lower()}"
            yield Candidate("peer-lost", Tier.OUTSIDE, 0.9, message, (signal.line,))
            continue
        message = "the scheduler ended the job" + (f" ({why.lower()})" if why else ": it was cancelled")
        yield Candidate("signal-sigterm-preempted", Tier.OUTSIDE, 0.9, message, (signal.line,))
    for name in ("node-failure", "time-limit", "preempted", "terminated"):
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals:
            yield candidate(heard, MEANINGS[name], signals)
