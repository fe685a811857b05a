"""The cause that a signal indicates unless another line contradicts it.

Derived from the catalogue: each cause declares its signals, with tier and confidence, in its file.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.causes import all_causes
from holdfast.core.log_signals import LogSignal, Tier

__all__ = ["SIGNAL_CAUSES", "SignalCause", "Tier"]


@dataclass(frozen=True)
class SignalCause:
    """A cause by name, and the tier, confidence and sentence of one such line.

    ``weighed``: a rule reads the signal together with other lines; ``explained_by``: it is the
    effect of that signal.
    """

    cause: str
    tier: Tier
    confidence: float
    sentence: str
    weighed: bool
    explained_by: str = ""


def _signal_causes() -> dict[str, SignalCause]:
    """Return the cause of every signal, in the order that breaks ties."""
    declared: list[tuple[LogSignal, str]] = [
        (signal, cause.name) for cause in all_causes() for signal in cause.signals
    ]
    declared.sort(key=lambda pair: pair[0].precedence)
    return {
        one.name: SignalCause(
            cause, one.tier, one.confidence, one.sentence, one.weighed, one.explained_by
        )
        for one, cause in declared
    }


#: Cause by name of a signal.
SIGNAL_CAUSES = _signal_causes()
