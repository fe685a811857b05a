"""Is this set of hosts fit to train? Each host is looked at, all meet, whoever leads judges, and all say the same."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.actions import small_job
from holdfast.actions.check import COULD_NOT_JUDGE, Checked, judged
from holdfast.actions.small_job import Crew, Passage
from holdfast.facts.checks import CHECKS, Place, Seen, chosen
from holdfast.facts.checks.gpus import Gpus
from holdfast.facts.checks.running import Look, look
from holdfast.facts.checks.software import Software
from holdfast.facts.reach import Clock, Copy, Gathered, HostReport, Link, Present
from holdfast.facts.reach.meeting import Muster, Outcome, meet, ours
from holdfast.findings import Finding, Level, Unknown, Verdict
from holdfast.report.checks import State
from holdfast.report.files import write_whole
from holdfast.rules import differences, preflight, reach
from holdfast.rules.reach import attendance, matrix, pace
from holdfast.runtime import probe

#: Looked at before this command listens at ports itself.
_BEFORE = frozenset({"ports"})
#: So long a host's checks may take, all together: whoever leads waits for a report no longer than REPORT_LIMIT_S.
CHECKS_S = 7.0
#: Processes of a host in the small job, whatever is asked for.
MOST_WORKERS = 64


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """What all hosts are told. ``labels``: who came, in the order of ``picture``; ``missing``: node ranks, if known."""

    checks: tuple[Checked, ...]
    reach: tuple[Finding, ...]
    verdict: Verdict
    nodes: int
    labels: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    picture: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    clocks: tuple[Clock, ...] = ()
    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    alone: str = ""
    elapsed_s: float = 0.0
    #: Of the small job that torch makes: keys of the copies in the order of its ranks, and what each brings; whether
    #: all have torch, and the stages as this copy saw them.
    ranks: tuple[str, ...] = ()
    crew: Crew = Crew()
    torch: bool = False
    stages: tuple[Passage, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those between the hosts first, then those of each host's checks."""
        return (*self.reach, *(claim for each in self.checks for claim in each.findings))

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 an error was found, 3 nothing could be seen."""
        if any(claim.level is Level.ERROR for claim in self.findings):
            return 1
        return COULD_NOT_JUDGE if not self.labels and all(each.state is State.UNKNOWN for each in self.checks) else 0


def check_hosts(
    place: Place, muster: Muster, names: Sequence[str] = (), *, job: bool = True, now: Callable[[], float] = time.time
) -> Hosts:
    """Look at this host, meet the others, and return what all of them are told.

    Where all reach each other and ``job`` is wanted, torch makes a small job of them at the end, with ``place.workers``
    ranks a host, or as many as GPUs are visible there, or one.

    Raises:
        UnknownName: there is no such check.
    """
    begun = time.monotonic()
    checks = chosen(tuple(names))
    place = replace(place, within_s=min(place.within_s, CHECKS_S))
    # Ports are looked at before this command itself listens at some of them.
    early = look(place, [check for check in checks if check.name in _BEFORE])
    later = [check for check in checks if check.name not in _BEFORE]
    outcome, report = asyncio.run(_meet(place, muster, lambda: {**early, **look(place, later)}, now))
    told = outcome.told(Hosts)
    hosts = _alone(outcome, told, report, muster) if isinstance(told, Unknown) else told
    if job and not isinstance(told, Unknown) and not any(claim.level is Level.ERROR for claim in hosts.reach):
        hosts = _with_job(hosts, muster, outcome.copy)
    return replace(hosts, elapsed_s=round(time.monotonic() - begun, 3))


async def _meet(
    place: Place, muster: Muster, looks: Callable[[], Mapping[str, Look]], now: Callable[[], float]
) -> tuple[Outcome, HostReport]:
    looking = asyncio.ensure_future(asyncio.to_thread(looks))

    async def report() -> HostReport:
        return _report(await asyncio.shield(looking), place, now())

    outcome = await meet(muster, report, lambda gathered: msgspec.json.encode(judge(gathered)), now)
    return outcome, await report()


def _with_job(hosts: Hosts, muster: Muster, copy: Copy) -> Hosts:
    """The same after the small job; why there was none, where torch is not on all hosts. Only now is it imported."""
    if not hosts.torch or copy.key not in hosts.ranks:
        why = "the small job that torch makes: torch is not known to be installed on every host"
        return replace(hosts, verdict=replace(hosts.verdict, unseen=(*hosts.verdict.unseen, why)))
    stages: list[Passage] = []
    plan = hosts.crew.plan(hosts.ranks.index(copy.key), address=muster.host, port=muster.port)
    with probe.Probe(plan.rank) as probing:
        told = small_job.make(probing, plan, hosts.crew, stages.append)
    found = (*hosts.reach, *told)
    blamed = {claim.subject.host for claim in found if claim.level is Level.ERROR}
    failing = tuple(each for each in hosts.passing if each.split(" (node ")[0] in blamed)
    return replace(
        hosts, reach=found, stages=tuple(stages), verdict=_verdict(found, hosts.checks, hosts.verdict.unseen),
        passing=tuple(each for each in hosts.passing if each not in failing), failing=(*hosts.failing, *failing),
    )  # fmt: skip


def _report(looks: Mapping[str, Look], place: Place, at: float) -> HostReport:
    host = os.uname().nodename
    return HostReport(
        host=host, at=at, environ=ours(place.environ), workers=_workers(looks, place),
        looks={name: msgspec.Raw(msgspec.json.encode(found.seen)) for name, found in looks.items()},
        judged=msgspec.Raw(msgspec.json.encode(judged(looks, place, host, at))),
    )  # fmt: skip


def _workers(looks: Mapping[str, Look], place: Place) -> int:
    """Processes that this host brings into the small job."""
    found = looks["gpus"].seen if "gpus" in looks else None
    visible = len(found.visible.gpus) if isinstance(found, Gpus) and found.visible is not None else 0
    return min(place.workers or max(visible, 1), MOST_WORKERS)


def judge(gathered: Gathered) -> Hosts:
    """What all hosts are told of what was gathered."""
    looks = {number: dict(_seen(report)) for number, report in gathered.reports.items()}
    found = (*reach.judge(gathered), *_compared(gathered, looks))
    checks = tuple(check for number in sorted(gathered.reports) for check in _judged(gathered.reports[number]))
    labels = tuple(each.copy.label for each in gathered.present)
    failing = reach.failing(gathered, (*found, *(claim for check in checks for claim in check.findings)))
    nodes, count = attendance.missing(gathered)
    order = sorted(gathered.present, key=_leads_first)
    brought = {number: report.workers for number, report in gathered.reports.items()}
    return Hosts(
        checks=checks, reach=found, nodes=gathered.nodes, labels=labels, missing=tuple(nodes), missing_count=count,
        picture=matrix.rows(gathered, pace.slow(gathered)), links=gathered.links, clocks=gathered.clocks,
        verdict=_verdict(found, checks, (*reach.unseen(gathered), *_unseen(checks))),
        passing=tuple(each for each in labels if each not in failing),
        failing=(*(each for each in labels if each in failing), *(f"node {node}" for node in nodes)),
        torch=_have_torch(gathered, looks),
        ranks=tuple(each.copy.key for each in order),
        crew=Crew(tuple((each.copy.host, brought.get(each.number, 1)) for each in order)),
    )  # fmt: skip


def _leads_first(present: Present) -> tuple[bool, int]:
    """The job's store stands at the endpoint, which is whoever led."""
    return not present.leads, present.number


def _have_torch(gathered: Gathered, looks: Mapping[int, Mapping[str, Seen]]) -> bool:
    software = [looks.get(each.number, {}).get("software") for each in gathered.present]
    return all(isinstance(each, Software) and "torch" in each.packages for each in software)


def _compared(gathered: Gathered, looks: Mapping[int, Mapping[str, Seen]]) -> tuple[Finding, ...]:
    """What differs between the hosts that told what they are."""
    copies = {number: gathered.present[number].copy for number in gathered.reports}
    environs = {copies[number].label: each.environ for number, each in gathered.reports.items()}
    return differences.judge({copies[number].label: seen for number, seen in looks.items()}, environs)


def _seen(report: HostReport) -> Iterator[tuple[str, Seen]]:
    """What its checks saw; what cannot be read is of another version, and not compared."""
    for name in differences.COMPARED:
        with suppress(msgspec.DecodeError, KeyError):
            yield name, msgspec.json.decode(report.looks[name], type=CHECKS[name].kind)


def _judged(report: HostReport) -> tuple[Checked, ...]:
    try:
        return msgspec.json.decode(report.judged, type=tuple[Checked, ...])
    except msgspec.DecodeError:
        return ()


def _alone(outcome: Outcome, why: Unknown, report: HostReport, muster: Muster) -> Hosts:
    """What a copy says that did not meet the others."""
    found = reach.alone(outcome.copy, outcome.approach, why, muster.wait_s)
    checks = _judged(report)
    unseen = (f"the other hosts: {why.why}", *_unseen(checks))
    return Hosts(
        checks=checks, reach=found, nodes=muster.nodes, alone=why.why, failing=(outcome.copy.label,),
        verdict=_verdict(found, checks, unseen),
    )  # fmt: skip


def _unseen(checks: Sequence[Checked]) -> tuple[str, ...]:
    return tuple(f"{each.host}: {each.name}: {why}" for each in checks for why in each.unseen)


def _verdict(found: Sequence[Finding], checks: Sequence[Checked], unseen: Sequence[str]) -> Verdict:
    """What keeps the hosts apart comes before what is wrong on one of them: without the others no job starts."""
    between = preflight.verdict(found, unseen)
    claims = [claim for each in checks for claim in each.findings]
    if between.root is None:
        return preflight.verdict([*found, *claims], unseen)
    others = preflight.verdict(claims, ())
    suspects = (*between.suspects, *([others.root] if others.root else []), *others.suspects)
    return replace(between, suspects=suspects)


def write_lists(hosts: Hosts, prefix: str) -> None:
    """Write PREFIXpassing.txt and PREFIXfailing.txt, a host a line, for the scheduler.

    Raises:
        MissingFile: they cannot be written.
    """
    for name, labels in (("passing", hosts.passing), ("failing", hosts.failing)):
        lines = "".join(f"{label.split(' (node ')[0]}\n" for label in labels)
        write_whole(Path(f"{prefix}{name}.txt"), lines.encode(errors="surrogateescape"))
