"""Lines that mean by themselves what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.facts.logs import Signal
from holdfast.facts.shortages import killed
from holdfast.report.evidence import size_text
from holdfast.rules.logs.absent import absent
from holdfast.rules.logs.heard import Candidate, Heard, first_to_speak
from holdfast.rules.logs.meanings import MEANINGS, Meaning, Tier

#: A longer number is no rank.
MOST_RANK_DIGITS = 6
#: So many steps after a line, and it was no failure.
LEAST_AFTERWARDS = 3
#: What is told of a job that failed after all.
FAILURES = ("exit-code", "failed-code", "watchdog-timeout", "segfault", "killed", "terminated")


def machine(heard: Heard) -> Iterable[Candidate]:
    """What the kernel and the driver say."""
    return _of(heard, Tier.MACHINE)


def named(heard: Heard) -> Iterable[Candidate]:
    """Errors that name their own cause, and those of a device."""
    return (*_of(heard, Tier.NAMED), *_of(heard, Tier.DEVICE))


def crashed(heard: Heard) -> Iterable[Candidate]:
    """Signals that ended a process, where nothing tells why; what follows on a time-out is torch's own doing."""
    if "watchdog-timeout" in heard:
        return
    yield from _of(heard, Tier.CRASH)
    if "finished" not in heard:  # gloo sometimes aborts at the exit of a script whose work is done
        yield from _of(heard, Tier.SILENCE)


#: Said by those who are left about a peer that they do not name by its rank.
OF_SURVIVORS = frozenset({"peer-closed", "store-lost", "connect-refused", "connect-timed-out", "no-route"})
#: Said by a rank that was where it should be.
OF_WAITERS = ("peer-closed", "gloo-timeout", "watchdog-timeout", "store-lost")

#: Weighed together with other lines, in the files beside this one.
_ELSEWHERE = frozenset({"nan", "checkpoint-slow", "no-space"})


def _of(heard: Heard, tier: Tier) -> list[Candidate]:
    found = []
    for name, meaning in MEANINGS.items():
        if meaning.tier is not tier or name in _ELSEWHERE:
            continue
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals:
            found.append(candidate(heard, meaning, signals))
    return found


def candidate(heard: Heard, meaning: Meaning, signals: list[Signal]) -> Candidate:
    """What signals of one meaning offer."""
    first = signals[0]
    rank = rank_of(heard, signals)
    who = f"rank {rank}: " if rank is not None else ""
    where = f" on {first.line.host}" if first.line.host and rank is None else ""
    lines = tuple(signal.line for signal in signals)
    return Candidate(
        meaning.cause, meaning.tier, meaning.confidence, f"{who}{meaning.sentence}{where}{_victim(signals)}", lines,
        rank, first.line.host,
    )  # fmt: skip


def _victim(signals: list[Signal]) -> str:
    """Whom the kernel's out-of-memory killer ended, and how much it had; empty where no line says so."""
    told = (killed(signal.line.text) for signal in signals if signal.name == "oom-killer")
    victim = next((each for each in told if each is not None and each.resident), None)
    if victim is None:
        return ""
    limit = ", where a control group's limit was met" if victim.cgroup else ""
    return f": {victim.name or 'process'} ({victim.pid}) had {size_text(victim.resident or 0)} resident{limit}"


def rank_of(heard: Heard, signals: list[Signal]) -> int | None:
    """The rank that signals are about: what they name, whose lines they are, or whom the launcher lists first.

    None where the lines are a survivor's: it tells of somebody else.
    """
    if signals[0].name in OF_SURVIVORS:
        if signals[0].name not in OF_WAITERS:
            return None
        asked = next((one for one in heard.all("unique-id", "barrier-reached") if "origin" in one.fields), None)
        return int(asked.fields["origin"]) if asked else absent(heard, heard.ranks(*OF_WAITERS))
    named = [rank for signal in signals if (rank := _named(signal)) is not None]
    if named:
        return named[0]
    ranks = {signal.line.rank for signal in signals if signal.line.rank is not None}
    first = heard.first_failed_of(ranks)
    if first is not None and (not ranks or first in ranks or len(heard.failed_ranks) > 1):
        return first
    return first_to_speak(signal.line for signal in signals) if ranks else told_by_launchers(heard, signals)


def _named(signal: Signal) -> int | None:
    """The rank that the line itself speaks of."""
    said = str(signal.fields.get("rank", signal.fields.get("missing", ""))).split(",")[0].strip()
    return int(said) if said.isdigit() and len(said) <= MOST_RANK_DIGITS else None


def told_by_launchers(heard: Heard, signals: Sequence[Signal] = ()) -> int | None:
    """The rank that those tell of who started the processes, or that ``signals`` leave; None where it is not one."""
    spoken = heard.all("mpi-process", "mpi-signal", "failed-rank-json", "worker-failed")
    for one in spoken:
        if (rank := one.fields.get("rank", one.fields.get("snippet"))) is not None:
            return int(rank)
    if len(heard.failed_ranks) == 1:
        return next(iter(heard.failed_ranks))
    lost = absent(heard, heard.ranks(*OF_WAITERS))
    if lost is not None:
        return lost
    local = heard.failed_local_rank
    if local is not None and not heard.failed_ranks and len(heard.facts.hosts) <= 1:
        return local  # of one node, as far as the logs go
    task = next((task for one in heard.all("slurm-task") for task in task_numbers(str(one.fields["tasks"]))), None)
    if task is not None:
        return task
    devices = [int(signal.fields["device"]) for signal in signals if "device" in signal.fields]
    return devices[0] if devices and len(heard.facts.hosts) == 1 else None


def task_numbers(tasks: str) -> list[int]:
    """The numbers of Slurm's tasks in ``[0-3,7]``: of a range, its two ends."""
    numbers = tasks.strip("[]").replace("-", ",").split(",")
    return [int(number) for number in numbers if number.isdigit() and len(number) <= MOST_RANK_DIGITS]


def overcome(heard: Heard, signal: Signal) -> bool:
    """True where the job went on well after ``signal``: it advanced, or finished, and nothing failed later.

    Where a launcher started the ranks anew, it tells of the failure first: what counts is how the new attempt went.
    """
    begun = next((one for one in reversed(heard.after(signal, "exit-code")) if _went_on(heard, one)), signal)
    failed = heard.after(begun, *FAILURES)
    return not failed and (_went_on(heard, begun) or bool(heard.after(begun, "finished")))


def _went_on(heard: Heard, signal: Signal) -> bool:
    return len(heard.after(signal, "pace", "progress")) >= LEAST_AFTERWARDS
