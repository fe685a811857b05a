"""Compute what failures cost: time between failures, goodput, GPU-hours lost by cause. Pure.

docs/history.md defines each figure. A rank counts as one GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.serve.store.queries import StoredIncident, StoredRun

HOUR_S = 3600.0
DAY_S = 86400.0
NO_VERDICT = "no-verdict"
PREEMPTION = "preemption"
_ACTIONS_THAT_CHANGE_NOTHING = ("report",)


class IncidentCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one incident cost, in seconds of the whole job.

    ``repeated_s`` was computed again, ``silent_s`` passed until the decision, ``down_s`` until the
    workers started again or the run ended.
    """

    incident: StoredIncident
    repeated_s: float
    silent_s: float
    down_s: float

    @property
    def gpu_hours(self) -> float:
        """Return the lost GPU-hours."""
        lost_s = self.repeated_s + self.silent_s + self.down_s
        return lost_s * self.incident.world_size / HOUR_S


class CauseCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one cause cost, in GPU-hours."""

    code: str
    cause: str
    incidents: int
    gpu_hours: float
    repeated_gpu_hours: float
    silent_gpu_hours: float
    down_gpu_hours: float


class DayCost(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours lost in the day that begins at ``day`` (Unix seconds, UTC), by cause."""

    day: float
    gpu_hours: dict[str, float]


class HistoryCost(msgspec.Struct, frozen=True, kw_only=True):
    """The figures from ``since`` to ``until`` (Unix seconds); None where nothing is divided."""

    since: float
    until: float
    runs: int
    failures: int
    preemptions: int
    run_hours: float
    gpu_hours: float
    lost_gpu_hours: float
    mean_hours_between_failures: float | None
    mean_gpu_hours_between_failures: float | None
    goodput: float | None
    causes: list[CauseCost]
    days: list[DayCost]


def compute_cost(runs: Sequence[StoredRun], since: float, until: float) -> HistoryCost:
    """Compute the figures of the runs in the window."""
    costs = [cost for run in runs for cost in incident_costs(run, since)]
    failures = sum(not cost.incident.preempted for cost in costs)
    run_s = sum(max(run_end(run) - max(run.began, since), 0.0) for run in runs)
    gpu_hours = sum(_gpu_seconds(run, since) for run in runs) / HOUR_S
    lost = min(sum(cost.gpu_hours for cost in costs), gpu_hours)
    run_hours = run_s / HOUR_S
    return HistoryCost(
        since=since,
        until=until,
        runs=len(runs),
        failures=failures,
        preemptions=len(costs) - failures,
        run_hours=run_hours,
        gpu_hours=gpu_hours,
        lost_gpu_hours=lost,
        mean_hours_between_failures=run_hours / failures if failures else None,
        mean_gpu_hours_between_failures=gpu_hours / failures if failures else None,
        goodput=1 - lost / gpu_hours if gpu_hours else None,
        causes=_by_cause(costs),
        days=_by_day(costs),
    )


def run_end(run: StoredRun) -> float:
    """Return when the run ended, or its newest event."""
    return run.seen if run.ended is None else run.ended


def incident_costs(run: StoredRun, since: float = 0.0) -> Iterator[IncidentCost]:
    """Yield the cost of each incident that stopped the workers.

    No second is counted twice: the time that an incident lost ends where that of the next begins.
    """
    free_from = since
    for incident in run.incidents:
        if incident.at < since or incident.decision.action in _ACTIONS_THAT_CHANGE_NOTHING:
            continue
        begin = max(incident.started, incident.saved_at or 0.0, free_from)
        progressed = max(incident.progressed, begin)
        decided = max(incident.at, progressed)
        end = max(run_end(run) if incident.recovered is None else incident.recovered, decided)
        yield IncidentCost(
            incident=incident,
            repeated_s=progressed - begin,
            silent_s=decided - progressed,
            down_s=end - decided,
        )
        free_from = end


def _gpu_seconds(run: StoredRun, since: float) -> float:
    """Return the time of the run times its world size, start by start."""
    begins = [run.began, *(start.at for start in run.starts[1:])]
    ends = [*begins[1:], run_end(run)]
    return sum(
        max(end - max(begin, since), 0.0) * start.world_size
        for start, begin, end in zip(run.starts, begins, ends, strict=True)
    )


def cause_name(incident: StoredIncident) -> str:
    """Return the name under which an incident is counted."""
    return PREEMPTION if incident.preempted else incident.cause or NO_VERDICT


def format_hours(hours: float) -> str:
    """Return hours with two decimals below 10, one below 1000, else none."""
    return f"{hours:,.{2 if hours < 10 else 1 if hours < 1000 else 0}f}"


def _by_cause(costs: Iterable[IncidentCost]) -> list[CauseCost]:
    groups: dict[str, list[IncidentCost]] = defaultdict(list)
    for cost in costs:
        groups[cause_name(cost.incident)].append(cost)

    def hours(seconds: Iterable[float], group: Sequence[IncidentCost]) -> float:
        return (
            sum(each * cost.incident.world_size for each, cost in zip(seconds, group, strict=True))
            / HOUR_S
        )

    rows = [
        CauseCost(
            code="" if name == PREEMPTION else group[0].incident.code,
            cause=name,
            incidents=len(group),
            gpu_hours=sum(cost.gpu_hours for cost in group),
            repeated_gpu_hours=hours((cost.repeated_s for cost in group), group),
            silent_gpu_hours=hours((cost.silent_s for cost in group), group),
            down_gpu_hours=hours((cost.down_s for cost in group), group),
        )
        for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.cause))


def _by_day(costs: Iterable[IncidentCost]) -> list[DayCost]:
    days: dict[float, dict[str, float]] = {}
    for cost in costs:
        lost = days.setdefault(cost.incident.at // DAY_S * DAY_S, {})
        name = cause_name(cost.incident)
        lost[name] = lost.get(name, 0.0) + cost.gpu_hours
    return [DayCost(day=day, gpu_hours=days[day]) for day in sorted(days)]
