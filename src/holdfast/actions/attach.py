"""Looks into a job that hangs now, on this host and others: find it, sample it twice, judge, and change nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import settings
from holdfast.actions import whole_job, witnesses
from holdfast.actions.incident import timeline
from holdfast.actions.judgement import Judgement, held_against_source
from holdfast.errors import StackRefused
from holdfast.facts import proc, stack_tree
from holdfast.facts.dumps import DumpTable
from holdfast.facts.job_samples import Samples
from holdfast.facts.jobs import Job, Search
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life, RankState
from holdfast.findings import Level, RuledOut, Verdict
from holdfast.report.files import write_whole
from holdfast.report.html import incident_page
from holdfast.report.ranksets import say_ranks
from holdfast.report.stacks import Branch, ThreadTree
from holdfast.rules import stacks, stall
from holdfast.rules.stall import Limits

COULD_NOT_JUDGE = 3
#: What the flight recorder cannot tell better.
_CERTAIN = frozenset({"rank-stopped", "rank-uninterruptible-io", "dataloader-worker-died", "file-io-blocked"})


class Attached(msgspec.Struct, frozen=True):
    """What came of it: the job (as the first host shows it), what was seen, and the verdict.

    ``launcher`` is what started this command, one copy a node.
    """

    job: Job
    samples: Samples
    verdict: Verdict
    elapsed_s: float
    launcher: str = ""

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 an error was found, 3 could not judge.

        Under torchrun it is 0: another one is a failed worker to it, of which it tells a long story after the verdict.
        """
        if self.launcher == "torchrun":
            return 0
        root = self.verdict.root
        if root is None:
            return 0 if any(state.stacks for state in self.samples.ranks) or self.samples.boxes else COULD_NOT_JUDGE
        return {Level.ERROR: 1, Level.UNKNOWN: COULD_NOT_JUDGE}.get(root.level, 0)


def attach(search: Search, hosts: Sequence[str] = ()) -> Attached | None:
    """Look into the job that is meant, here or on ``hosts``, and judge.

    None: this is one of several copies that a launcher started, and another one judges.

    Raises:
        NoJob, SeveralJobs: there is none, or more than one.
        StackRefused: nothing of the job can be seen, because tracing is not allowed.
        CopyUnreachable: the copy that judges cannot be told what is seen here.
    """
    begun = time.monotonic()
    copy = None if hosts else whole_job.found_copy()
    if copy is not None and not copy.speaks:
        return None
    whole = whole_job.over_ssh(search, hosts) if hosts else whole_job.look(search, copy)
    if whole is None:
        return None
    job, samples, dumps = whole
    if _refused_ranks(samples):
        if not samples.boxes and not any(_is_seen(state) for state in samples.ranks):
            raise StackRefused(samples.ranks[0].pid, why=_refused(samples.ranks[0].pid), next_step=_leave())
        samples = replace(samples, unseen=(*samples.unseen, f"to see all stacks, {_leave()}"))
    verdict = _judge(samples, dumps)
    launcher = copy.launcher if copy is not None else ""
    return Attached(job, samples, verdict, round(time.monotonic() - begun, 3), launcher)


def _judge(samples: Samples, dumps: DumpTable | None) -> Verdict:
    verdict = _by_boxes(samples) if samples.boxes else witnesses.by_stacks(samples)
    if dumps is not None and verdict.root is not None and verdict.root.cause not in _CERTAIN:
        told = witnesses.by_dumps(samples, dumps)
        verdict = told if told.root is not None else verdict
    rows = dumps.ranks if dumps is not None and not samples.boxes else samples.ranks
    verdict = held_against_source(
        verdict, rows, samples.groups if dumps is None else {**dumps.groups, **samples.groups}
    )
    return replace(verdict, unseen=(*samples.unseen, *verdict.unseen))


def _by_boxes(samples: Samples) -> Verdict:
    """As the watcher of ``holdfast run`` judges, with its patience."""
    limits = Limits(alone_s=settings.seconds("HOLDFAST_ALONE_S"))
    silent_s = samples.time - samples.silent_since
    patience_s = stall.threshold_s(samples.ranks, limits)
    if silent_s < patience_s:
        why = f"a rank advanced {silent_s:.1f} s ago, and it is {patience_s:.0f} s of silence that count"
        return Verdict(question=stacks.QUESTION, ruled_out=(RuledOut("rank-missing-collective", why),))
    table = Summary(samples.ranks, samples.groups, samples.world_size, samples.silent_since, samples.time)
    outcome = Judgement(limits).decide(table, silent_s)
    if outcome.verdict is not None:
        return outcome.verdict
    notes = (RuledOut("rank-missing-collective", outcome.note),) if outcome.note else ()
    return Verdict(question=stacks.QUESTION, ruled_out=notes)


def _is_seen(state: RankState) -> bool:
    return bool(state.stacks) or state.life in (Life.STOPPED, Life.DISK)


def _refused_ranks(samples: Samples) -> list[int]:
    """Ranks whose stack the system does not let us read."""
    return [state.rank for state in samples.ranks if any("(ptrace)" in text for text in state.unseen)]


def _refused(pid: int) -> str:
    scope = proc.number("/proc/sys/kernel/yama/ptrace_scope")
    if isinstance(scope, int) and scope > 0:
        return f"kernel.yama.ptrace_scope is {scope} on this machine"
    owner = proc.fields(f"/proc/{pid}/status")
    same = isinstance(owner, dict) and owner.get("Uid", "").split()[:1] == [str(os.geteuid())]
    return "the capability SYS_PTRACE is missing here" if same else "it belongs to another user"


def _leave() -> str:
    return (
        "run it with sudo or as the user of the job, with kernel.yama.ptrace_scope=0 (sysctl), and in a container with "
        "the capability SYS_PTRACE"
    )


# ---- for the reports


def tree(found: Attached, *, everything: bool = True) -> tuple[ThreadTree, ...]:
    """The stacks merged over ranks; without ``everything`` only threads in which code of the user's runs."""
    changing = [
        state.rank
        for state in found.samples.ranks
        if len(state.stacks) > 1 and not stall.same_stack(state.stacks[-2], state.stacks[-1])
    ]
    trees = stack_tree.merge(found.samples.threads, changing)
    return trees if everything else tuple(each for each in trees if any(_has_own(one) for one in each.branches))


def _has_own(branch: Branch) -> bool:
    return any(frame.own for frame in branch.frames) or any(_has_own(each) for each in branch.branches)


def document(found: Attached) -> dict[str, Any]:
    """What ``--json`` has beside findings and verdict; enough for another host to judge over all of them."""
    return {"job": found.job, "stacks": tree(found), "samples": found.samples, "elapsed_s": found.elapsed_s}


def write_page(found: Attached, file: Path) -> None:
    """The report as one page.

    Raises:
        MissingFile: the page cannot be written there.
    """
    samples, job = found.samples, found.job
    table = Summary(samples.ranks, samples.groups, samples.world_size, samples.silent_since, samples.time)
    run = {
        "job": job.script,
        "started by": f"{job.launcher}, process {job.launcher_pid}" if job.launcher else "",
        "world size": str(samples.world_size),
        "looked at": say_ranks(state.rank for state in samples.ranks),
    }
    page = incident_page(
        found.verdict,
        timeline(table),
        title=f"attach to {job.script}",
        facts=job.facts,
        run={name: text for name, text in run.items() if text},
        tree=tree(found),
    )
    write_whole(file, page.encode(errors="backslashreplace"))
