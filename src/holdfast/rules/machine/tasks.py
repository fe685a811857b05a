"""May the workers start their processes and threads?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.tasks import Tasks
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

#: A rank under torch 2.13 has some 20 threads on a CPU; with a loader, NCCL and numeric libraries some 100.
_LEAST_PER_WORKER, _USUAL_PER_WORKER = 20, 200


def judge(seen: Tasks, place: Place) -> Iterator[Finding]:
    """An error where the workers alone are too many, a warning where they hardly fit."""
    workers = place.workers or 1
    if seen.room is None or seen.room >= workers * _USUAL_PER_WORKER:
        return
    of_group = seen.limit is not None and seen.used is not None and seen.room == seen.limit - seen.used
    yield finding(
        by_name("process-limit"),
        f"{'the control group' if of_group else 'the kernel'} has room for {max(0, seen.room)} more processes and "
        f"threads, and {workers} worker{'s' * (workers > 1)} may need {workers * _USUAL_PER_WORKER}",
        level=Level.ERROR if seen.room < workers * _LEAST_PER_WORKER else Level.WARNING,
        evidence=seen.facts(),
        confidence=0.7,
    )
