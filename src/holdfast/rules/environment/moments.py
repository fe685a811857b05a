"""Is a variable set by the program before whoever reads it has read it?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment.scene import claim, shown
from holdfast.variables import MOMENTS, Moment, Status, table

#: How the moment shows in the source.
_SEEN_AS = {
    Moment.IMPORT: "torch is imported",
    Moment.CUDA: "CUDA is used",
    Moment.GROUP: "init_process_group is called",
    Moment.COMMUNICATOR: "a collective is called",
}


def judge(given: Given) -> Iterator[Finding]:
    """``given`` is set by a program; of what a launcher sets nothing is known to be too late."""
    row = table().get(given.name)
    if row is None or row.status not in (Status.ACTIVE, Status.ALIAS, Status.DEPRECATED):
        return
    passed = dict(given.passed)
    moment = row.read_at
    if moment is Moment.COMMUNICATOR and moment not in passed and Moment.GROUP in passed:
        yield claim("variable-set-too-late", f"{shown(given)} is set after init_process_group (line "
                    f"{passed[Moment.GROUP]}); it is read {MOMENTS[moment]}", given, level=Level.NOTE,
                    advice="Set it before init_process_group, or better where the job is started.",
                    confidence=0.6)  # fmt: skip
    elif moment in passed:
        yield claim("variable-set-too-late", f"{shown(given)} has no effect: {_SEEN_AS[moment]} in line "
                    f"{passed[moment]}, and it is read {MOMENTS[moment]}", given,
                    advice="Set it where the job is started, or above that line.", confidence=0.85)  # fmt: skip
    elif moment is Moment.LAUNCH and given.origin.endswith(".py"):
        yield claim(
            "variable-set-too-late",
            f"{shown(given)} has no effect in the program: it is read {MOMENTS[moment]}",
            given,
            level=Level.NOTE,
            confidence=0.6,
        )
