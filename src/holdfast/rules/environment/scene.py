"""What the rules of variables know besides the variables, and how they make a finding."""

from __future__ import annotations

import msgspec

from holdfast.facts.environment import without_secret
from holdfast.facts.variables import ENVIRONMENT, Given
from holdfast.findings import Fact, Finding, Level, Remedy, Safety, Subject, finding
from holdfast.rules.causes import by_name

_MOST_SHOWN = 120


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Versions that are installed ("" where they are not known), and this host's interfaces (None: not looked at).

    ``elastic``: torchrun or holdfast run starts the workers, or that is to be expected. ``infiniband``: the host has
    RDMA devices; None where nobody looked.
    """

    nccl: str = ""
    torch: str = ""
    elastic: bool = True
    interfaces: tuple[str, ...] | None = None
    infiniband: bool | None = None


def shown(given: Given) -> str:
    """``NAME=value`` as it may be shown, in a sentence too."""
    return given.name if given.value is None else f"{given.name}={cut(without_secret(given.name, given.value))}"


def cut(text: str) -> str:
    """A text of the user's for a sentence."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def claim(
    cause: str,
    message: str,
    given: Given,
    *others: Given,
    level: Level = Level.WARNING,
    command: str = "",
    advice: str = "",
    confidence: float = 0.9,
) -> Finding:
    """A finding about ``given``: its sentence, all variables as evidence, and what to do where that is special."""
    what = by_name(cause)
    file = None if given.origin == ENVIRONMENT else given.origin
    text = advice or (f"Change it in {given.place}." if file else "Change it where the job is started.")
    if cause == "variable-value-unusable" and not command:
        command = f"holdfast explain {given.name}"
    own = Remedy(text=text, command=command or None, safety=Safety.DISRUPTIVE)
    return finding(
        what,
        message,
        level=level,
        subject=Subject(file=file, line=given.line),
        evidence=tuple(Fact(text=shown(each), origin=each.place) for each in (given, *others)),
        remedies=(own,),
        confidence=confidence,
    )
