"""Attach to a hung job on one or several hosts: find it, sample it, judge it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.causes.data.dataloader_worker_died import DATALOADER_WORKER_DIED
from holdfast.causes.data.file_io_blocked import FILE_IO_BLOCKED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.process.rank_uninterruptible_io import RANK_UNINTERRUPTIBLE_IO
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core import exit_status, settings
from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import StackRefused
from holdfast.core.findings import RuledOut, Verdict
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessState
from holdfast.diagnose import combined_sources
from holdfast.diagnose.attach.job_observation import observe_job, observe_over_ssh
from holdfast.diagnose.attach.jobs import HostJob, JobSearch
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.stacks import stack_tree
from holdfast.diagnose.stacks.job_samples import JobSamples
from holdfast.host.processes import proc
from holdfast.host.processes.launched_copies import this_copy
from holdfast.host.processes.training_processes import ProcessTable
from holdfast.report.html import incident_page
from holdfast.report.stack_tree import StackBranch, ThreadTree
from holdfast.watcher.incidents import incident_timeline
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import hang, stall
from holdfast.watcher.rules.placeholders import fill_verdict
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.stall_detector import StallDetector, refine_with_source

#: Causes about which /proc and stacks are more reliable than the flight recorder.
_CERTAIN = frozenset(
    {
        RANK_STOPPED.name,
        RANK_UNINTERRUPTIBLE_IO.name,
        DATALOADER_WORKER_DIED.name,
        FILE_IO_BLOCKED.name,
    }
)
_PERMIT_PTRACE = (
    "run it with sudo or as the user of the job, with kernel.yama.ptrace_scope=0 (sysctl), "
    "and in a container with the capability SYS_PTRACE"
)


class AttachResult(msgspec.Struct, frozen=True):
    """The job (as the first host shows it), its samples, and the verdict.

    ``launcher`` is the program that started this command, with one copy per node.
    """

    job: HostJob
    samples: JobSamples
    verdict: Verdict
    elapsed_s: float
    launcher: str = ""

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 finding of level error, 3 inconclusive; always 0 under torchrun.

        torchrun treats any other status as a failed worker and prints a long report about it.
        """
        if self.launcher == "torchrun":
            return exit_status.OK
        if self.verdict.root is not None:
            return exit_status.status_of_root(self.verdict.root)
        observed = self.samples.has_traces or any(state.stacks for state in self.samples.ranks)
        return exit_status.OK if observed else exit_status.INCONCLUSIVE


def attach_to_job(search: JobSearch, hosts: Sequence[str] = ()) -> AttachResult | None:
    """Observe the job that matches ``search``, on this host or on ``hosts``, and judge it.

    None: a launcher started several copies of this command, and another copy prints the verdict.

    Raises:
        NoJob, SeveralJobs: no job, or more than one, matches.
        StackRefused: nothing of the job can be observed, because ptrace is not permitted.
        PeerUnreachable: the observation cannot be sent to the copy that prints the verdict.
    """
    begin = time.monotonic()
    copy = None if hosts else this_copy(ProcessTable())
    if copy is not None and not copy.speaks:
        return None
    observation = observe_over_ssh(search, hosts) if hosts else observe_job(search, copy)
    if observation is None:
        return None
    job, samples, dumps = observation
    if any("(ptrace)" in text for state in samples.ranks for text in state.unseen):
        if not samples.has_traces and not _any_rank_observed(samples):
            pid = samples.ranks[0].pid
            raise StackRefused(pid, why=_explain_refusal(pid), next_step=_PERMIT_PTRACE)
        samples = replace(samples, unseen=(*samples.unseen, f"to see all stacks, {_PERMIT_PTRACE}"))
    verdict = fill_verdict(_judge(samples, dumps), _launch_options(job), job.command)
    launcher = copy.launcher if copy is not None else ""
    return AttachResult(job, samples, verdict, round(time.monotonic() - begin, 3), launcher)


def _launch_options(job: HostJob) -> tuple[str, ...]:
    """Return the options with which `holdfast run` starts as many ranks, if all are on one host."""
    count = len(job.ranks)
    return ("--nproc-per-node", str(count)) if count == job.world_size else ()


def _judge(samples: JobSamples, dumps: DumpTable | None) -> Verdict:
    verdict = (
        _judge_traces(samples) if samples.has_traces else combined_sources.judge_stacks(samples)
    )
    if dumps is not None and verdict.root is not None and verdict.root.cause not in _CERTAIN:
        by_dumps = combined_sources.judge_dumps_with_samples(samples, dumps)
        verdict = by_dumps if by_dumps.root is not None else verdict
    rows = dumps.ranks if dumps is not None and not samples.has_traces else samples.ranks
    groups = samples.groups if dumps is None else {**dumps.groups, **samples.groups}
    verdict = refine_with_source(verdict, rows, groups)
    return replace(verdict, unseen=(*samples.unseen, *verdict.unseen))


def _judge_traces(samples: JobSamples) -> Verdict:
    """Judge as the watcher of ``holdfast run`` does, with its stall threshold."""
    limits = StallLimits(alone_s=settings.read_seconds("HOLDFAST_ALONE_S"))
    silent_s = samples.time - samples.silent_since
    threshold_s = stall.threshold_s(samples.ranks, limits)
    why = f"a rank advanced {silent_s:.1f} s ago; the stall threshold is {threshold_s:.0f} s"
    if silent_s >= threshold_s:
        outcome = StallDetector(limits).judge_silence(_job_summary(samples), silent_s)
        if outcome.verdict is not None:
            return outcome.verdict
        why = outcome.note or ""
    ruled_out = (RuledOut(RANK_MISSING_COLLECTIVE.name, why),) if why else ()
    return Verdict(question=hang.QUESTION, ruled_out=ruled_out)


def _job_summary(samples: JobSamples) -> JobSummary:
    return JobSummary(
        samples.ranks, samples.groups, samples.world_size, samples.silent_since, samples.time
    )


def _any_rank_observed(samples: JobSamples) -> bool:
    return any(
        state.stacks or state.life in (ProcessState.STOPPED, ProcessState.DISK)
        for state in samples.ranks
    )


def _explain_refusal(pid: int) -> str:
    scope = proc.read_number("/proc/sys/kernel/yama/ptrace_scope")
    if isinstance(scope, int) and scope > 0:
        return f"kernel.yama.ptrace_scope is {scope} on this machine"
    owner = proc.read_fields(f"/proc/{pid}/status")
    same = isinstance(owner, dict) and owner.get("Uid", "").split()[:1] == [str(os.geteuid())]
    return "the capability SYS_PTRACE is missing here" if same else "it belongs to another user"


# ---- reports -----------------------------------------------------------------------------------


def render_stack_tree(result: AttachResult, *, all_threads: bool = True) -> tuple[ThreadTree, ...]:
    """Return the stacks merged over ranks; by default of all threads, otherwise with user code."""
    changing = [
        state.rank
        for state in result.samples.ranks
        if len(state.stacks) > 1 and not stall.same_stack(state.stacks[-2], state.stacks[-1])
    ]
    trees = stack_tree.merge_stacks(result.samples.threads, changing)
    if all_threads:
        return trees
    return tuple(tree for tree in trees if any(_has_user_code(each) for each in tree.branches))


def _has_user_code(branch: StackBranch) -> bool:
    return any(frame.own for frame in branch.frames) or any(
        _has_user_code(each) for each in branch.branches
    )


def attach_json(result: AttachResult) -> dict[str, Any]:
    """Return the keys of ``--json`` besides findings and verdict.

    They suffice for another host to judge over the samples of all hosts.
    """
    return {
        "job": result.job,
        "stacks": render_stack_tree(result),
        "samples": result.samples,
        "elapsed_s": result.elapsed_s,
    }


def write_attach_page(result: AttachResult, file: Path) -> None:
    """Write the HTML report.

    Raises:
        MissingFile: the page cannot be written.
    """
    samples, job = result.samples, result.job
    run = {
        "job": job.script,
        "started by": f"{job.launcher}, process {job.launcher_pid}" if job.launcher else "",
        "world size": str(samples.world_size),
        "observed": describe_ranks(state.rank for state in samples.ranks),
    }
    page = incident_page(
        result.verdict,
        incident_timeline(_job_summary(samples)),
        title=f"attach to {job.script}",
        facts=job.facts,
        run={name: text for name, text in run.items() if text},
        tree=render_stack_tree(result),
    )
    write_atomic(file, page.encode(errors="backslashreplace"))
