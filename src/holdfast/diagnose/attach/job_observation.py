"""Observe a job on this host, on several hosts over ssh, or with one copy per node.

The observations of all hosts become one table with one verdict; a host that does not reply is
listed as unseen.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import settings
from holdfast.core.errors import HoldfastError, NoJob, PeerUnreachable, SeveralJobs
from holdfast.diagnose.attach import gathering
from holdfast.diagnose.attach.gathering import CopyRendezvous, NodeReport
from holdfast.diagnose.attach.job_dumps import request_dumps
from holdfast.diagnose.attach.jobs import HostJob, JobSearch, find_jobs
from holdfast.diagnose.attach.remote import HostObservation, observe_remote_host
from holdfast.diagnose.attach.sampling import sample_job
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.stacks.job_samples import JobSamples, combine_samples
from holdfast.host.processes import namespaces
from holdfast.host.processes.launched_copies import LaunchedCopy

MAX_PARALLEL_HOSTS = 64
#: Maximum names of nodes without a report; the others are counted.
MAX_NAMED_NODES = 16


class JobObservation(NamedTuple):
    """A job as its first host shows it, the samples of all hosts, and the dumps if any."""

    job: HostJob
    samples: JobSamples
    dumps: DumpTable | None = None


def observe_job(search: JobSearch, copy: LaunchedCopy | None) -> JobObservation | None:
    """Observe the job on this host, and combine the reports if this is one of several copies.

    None: another copy prints the verdict, and this copy's report was sent to it.

    Raises:
        NoJob, SeveralJobs: no job, or more than one, matches ``search``.
        PeerUnreachable: the report cannot be sent to the first copy.
    """
    if copy is not None and copy.allocation and not search.pids:
        search = replace(search, allocation=copy.allocation)
    if copy is None or copy.nodes == 1:
        return _observe_here(search)
    if copy.node == 0:
        return _observe_copies(search, copy)
    failure = asyncio.run(_send_own_report(search, copy))
    if failure:
        raise PeerUnreachable(copy.address, why=failure)
    return None


def _select_job(search: JobSearch) -> HostJob:
    """Return the one job of this host that matches.

    Raises:
        NoJob, SeveralJobs: no job, or more than one, matches.
    """
    found = find_jobs(search)
    if len(found) > 1:
        raise SeveralJobs("; ".join(str(job) for job in found))
    return found[0]


def _observe_here(search: JobSearch) -> JobObservation:
    job = _select_job(search)
    # Call sites in trace files have no such root, and another host cannot read below it.
    recorded = any(rank.trace_path for rank in job.ranks)
    root = "" if recorded else namespaces.file_root(job.ranks[0].pid)
    with ThreadPoolExecutor(1, "holdfast-dumps") as pool:
        dumps = pool.submit(request_dumps, job)
        return JobObservation(job, sample_job(job, root=root), dumps.result())


# ---- several copies, started by srun or torchrun -----------------------------------------------


def _rendezvous(copy: LaunchedCopy) -> CopyRendezvous:
    """Return the rendezvous of the copies of one launch, one user and one token."""
    token = settings.read_text("HOLDFAST_TOKEN") or ""
    identity = f"{copy.word}\0{os.geteuid()}\0{token}"
    secret = hashlib.sha256(identity.encode(errors="surrogateescape")).digest()
    return CopyRendezvous(copy.address, secret)


async def _send_own_report(search: JobSearch, copy: LaunchedCopy) -> str:
    failure = await gathering.send_report(_rendezvous(copy), await _own_report(search, copy))
    return failure.why if failure is not None else ""


async def _own_report(search: JobSearch, copy: LaunchedCopy) -> NodeReport:
    """Return the report of this node; that it runs no such job is a report too."""
    try:
        job = _select_job(search)
        samples = await asyncio.to_thread(sample_job, job)
        return NodeReport(copy.node, HostObservation(job, samples))
    except HoldfastError as error:
        return NodeReport(copy.node, why=str(error))


def _observe_copies(search: JobSearch, copy: LaunchedCopy) -> JobObservation:
    reports, failure = asyncio.run(
        gathering.collect_reports(_rendezvous(copy), copy.nodes, lambda: _own_report(search, copy))
    )
    observed, unseen = [], []
    for node, report in sorted(reports.items()):
        if report.observation is not None:
            observed.append(report.observation)
        else:
            unseen.append(f"{copy.name(node)}: {report.why}")
    return _combine_hosts(
        observed, [*unseen, *_missing_nodes(reports, copy, failure)], copy.launcher
    )


def _missing_nodes(
    reports: Mapping[int, NodeReport], copy: LaunchedCopy, failure: str
) -> list[str]:
    missing = [node for node in range(copy.nodes) if node not in reports]
    if not missing:
        return []
    names = ", ".join(copy.name(node) for node in missing[:MAX_NAMED_NODES])
    hidden = len(missing) - MAX_NAMED_NODES
    more = f" and {hidden} more" if hidden > 0 else ""
    why = failure or f"no report within {gathering.GATHER_TIMEOUT_S:.0f} s from the copy there"
    return [f"{names}{more}: {why}"]


# ---- several hosts over ssh --------------------------------------------------------------------


def observe_over_ssh(search: JobSearch, hosts: Sequence[str]) -> JobObservation:
    """Observe the job on all ``hosts``; if they run several, the one with the most ranks.

    Raises:
        NoJob: no host replied, or none runs such a job.
    """
    with ThreadPoolExecutor(min(len(hosts), MAX_PARALLEL_HOSTS), "holdfast-hosts") as pool:
        replies = list(pool.map(lambda host: observe_remote_host(host, search), hosts))
    observed = [reply for reply in replies if isinstance(reply, HostObservation)]
    unseen = [reply.why for reply in replies if not isinstance(reply, HostObservation)]
    return _combine_hosts(observed, unseen, "--hosts " + ",".join(hosts))


def _combine_hosts(
    observed: Sequence[HostObservation], unseen: Sequence[str], search: str
) -> JobObservation:
    """Return the job that most ranks belong to, with the samples of its hosts."""
    if not observed:
        raise NoJob(search, why="; ".join(unseen))
    ranks_per_job: Counter[tuple[str, str, int]] = Counter()
    for each in observed:
        ranks_per_job[each.job.key] += len(each.job.ranks)
    key = ranks_per_job.most_common(1)[0][0]
    others = [
        f"host {each.job.host} runs another job: {each.job}"
        for each in observed
        if each.job.key != key
    ]
    hosts = [each for each in observed if each.job.key == key]
    if all(each.job.numbered for each in hosts):
        hosts = _renumber_ranks(hosts)
    samples = combine_samples([each.samples for each in hosts])
    return JobObservation(
        hosts[0].job, replace(samples, unseen=(*samples.unseen, *unseen, *others))
    )


def _renumber_ranks(hosts: Sequence[HostObservation]) -> list[HostObservation]:
    """Number ranks over all hosts, in the order of the hosts, if each host numbered from 0."""
    world_size = sum(host.samples.world_size for host in hosts)
    renumbered, first = [], 0
    for host in hosts:
        samples = replace(
            host.samples,
            ranks=tuple(replace(state, rank=state.rank + first) for state in host.samples.ranks),
            threads={rank + first: stacks for rank, stacks in host.samples.threads.items()},
            gone=tuple(rank + first for rank in host.samples.gone),
            world_size=world_size,
        )
        renumbered.append(HostObservation(host.job, samples))
        first += host.samples.world_size
    return renumbered
