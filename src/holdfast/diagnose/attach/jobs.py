"""Find the training jobs that run on this host, by process id, name or port, or all of them.

Ranks of one job share the address, port and run id of their rendezvous, and the world size.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import psutil
from msgspec.structs import replace

from holdfast.core import settings
from holdfast.core.errors import NoJob
from holdfast.core.findings import Fact, Unknown
from holdfast.core.text import pluralize
from holdfast.diagnose.attach import spawned_ranks
from holdfast.diagnose.attach.job_command import launch_options, script_command
from holdfast.diagnose.attach.script_launched_ranks import find_script_launched_ranks
from holdfast.diagnose.attach.spawned_ranks import SpawnedRanks
from holdfast.host.processes import namespaces
from holdfast.host.processes.training_processes import (
    ProcessTable,
    RankIdentity,
    TrainingProcess,
    identify_rank,
    launcher_name,
)
from holdfast.watcher.agent_messages import DumpLocation

#: torch's default where these variables are not set (2.13: DebugInfoWriter, DumpPipe).
_DEFAULT_DUMP = "/tmp/comm_lib_trace_rank_"  # noqa: S108 - torch's own default
_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
_NUMBERED = "rank not in its environment; numbered in the order in which the processes were started"
_START_ORDER = "the start order"

_RankProcess = tuple[TrainingProcess, RankIdentity]


class JobSearch(msgspec.Struct, frozen=True):
    """The criteria of a search; without any, all jobs of this host match.

    ``allocation`` is the Slurm job in which the search runs; jobs of other allocations are
    excluded.
    """

    pids: tuple[int, ...] = ()
    name: str = ""
    port: int | None = None
    allocation: str = ""


class JobRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on this host: its process, and trace file and dump location if configured."""

    rank: int
    pid: int
    start_ticks: int
    trace_path: str = msgspec.field(default="", name="box")
    dumps: DumpLocation | None = None


class HostJob(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one job that runs on this host.

    ``local_size`` is the number of ranks that the launcher started here, if it provides it.
    ``numbered``: the launcher assigned no ranks; they follow the start order of the processes.
    ``command`` is the script with its arguments, ``options`` are those of `holdfast run` that start
    it in the same way; both without secrets.
    """

    ranks: tuple[JobRank, ...]
    world_size: int
    host: str
    script: str
    address: str = ""
    port: str = ""
    launcher: str = ""
    launcher_pid: int | None = None
    local_size: int | None = None
    numbered: bool = False
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """The identity of the job, equal on all of its hosts."""
        return self.address, self.port, self.world_size

    @property
    def pids(self) -> set[int]:
        """The processes of the ranks and the launcher."""
        launcher = {self.launcher_pid} if self.launcher_pid is not None else set()
        return {rank.pid for rank in self.ranks} | launcher

    def __str__(self) -> str:
        port = f" at port {self.port}" if self.port else ""
        pid = self.launcher_pid or self.ranks[0].pid
        return f"{self.script} with {pluralize(len(self.ranks), 'rank')}{port} (--pid {pid})"


def find_jobs(search: JobSearch) -> tuple[HostJob, ...]:
    """Return the jobs that match ``search``, oldest first.

    Raises:
        NoJob: no job matches; the error states the criteria and which processes were not readable.
    """
    table = ProcessTable()
    for pid in search.pids:
        if pid not in table:
            raise NoJob(f"process {pid}", why="there is no such process on this host")
    jobs = _filter_by_allocation(_all_jobs(table), search.allocation, table)
    jobs = _filter_by_port(_filter_by_pid(jobs, search.pids, table), search.port)
    jobs = [
        job for job in jobs if any(search.name in table.process(pid).command for pid in job.pids)
    ]
    jobs = jobs or _unnumbered_job(search, table)
    if not jobs:
        raise NoJob(_describe_search(search), why=_explain_no_job(table))
    return tuple(jobs)


def _all_jobs(table: ProcessTable) -> list[HostJob]:
    groups: dict[tuple[str, ...], list[_RankProcess]] = defaultdict(list)
    launched = list(find_script_launched_ranks(table))
    launched_pids = {process.pid for members in launched for process, _ in members}
    spawned = [
        group
        for group in spawned_ranks.find_spawned_ranks(table)
        if launched_pids.isdisjoint(process.pid for process in group.ranks)
    ]
    spawned_pids = launched_pids | {
        process.pid for group in spawned for process in (group.parent, *group.ranks)
    }
    for pid, identity in table.ranks().items():
        if not spawned_pids.isdisjoint((pid, *(above.pid for above in table.ancestors(pid)))):
            continue  # the number belongs to the script, not to the ranks that it spawned
        process = table.process(pid)
        key = (
            *(process.variable(name) for name in _RENDEZVOUS_VARIABLES),
            str(identity.world_size),
        )
        groups[key].append((process, identity))
    jobs = [
        _build_job(members, table)
        for group in groups.values()
        for members in _split_identical_jobs(group, table)
    ]
    jobs += [_script_launched_job(members, table) for members in launched]
    return jobs + [_spawned_job(group, table) for group in spawned]


def _split_identical_jobs(
    group: list[_RankProcess], table: ProcessTable
) -> list[list[_RankProcess]]:
    """Split by launcher if a rank occurs twice: these are two jobs with the same rendezvous.

    Under one launcher (a container whose variables all processes inherit), the process that has
    loaded torch is the rank.
    """
    if len({identity.rank for _, identity in group}) == len(group):
        return [group]
    by_parent: dict[int, dict[int, _RankProcess]] = defaultdict(dict)
    for process, identity in sorted(group, key=lambda member: not table.has_torch(member[0].pid)):
        by_parent[process.stat.parent].setdefault(identity.rank, (process, identity))
    return [list(members.values()) for members in by_parent.values()]


def _build_job(
    members: Sequence[_RankProcess], table: ProcessTable, unseen: tuple[str, ...] = ()
) -> HostJob:
    members = sorted(members, key=lambda member: member[1].rank)
    (first, identity), host = members[0], os.uname().nodename
    launcher = next(
        (process for process in table.ancestors(first.pid) if launcher_name(process.words)), None
    )
    text = first.variable("LOCAL_WORLD_SIZE")
    local_size = int(text) if text.isascii() and text.isdigit() else None
    command = script_command(first.words)
    facts = [_rank_fact(process, identity, host) for process, identity in members]
    if launcher is not None:
        text = f"started by {launcher_name(launcher.words)}, process {launcher.pid}"
        facts.append(Fact(text=text, origin=f"/proc/{launcher.pid}/cmdline", host=host))
    return HostJob(
        ranks=tuple(_build_rank(process, identity) for process, identity in members),
        world_size=identity.world_size,
        host=host,
        script=program_name(first.words),
        address=first.variable("MASTER_ADDR"),
        port=first.variable("MASTER_PORT"),
        launcher=launcher_name(launcher.words) if launcher else "",
        launcher_pid=launcher.pid if launcher else None,
        local_size=local_size,
        command=command,
        options=launch_options(launcher.words if launcher else (), command, local_size),
        facts=tuple(facts),
        unseen=unseen,
    )


def _rank_fact(process: TrainingProcess, identity: RankIdentity, host: str) -> Fact:
    origin = identity.origin
    return Fact(
        text=f"rank {identity.rank} of {identity.world_size} is process {process.pid}",
        origin=f"{origin} in /proc/{process.pid}/environ" if origin.isupper() else origin,
        rank=identity.rank,
        host=host,
    )


def _script_launched_job(members: Sequence[_RankProcess], table: ProcessTable) -> HostJob:
    """Return the job of ranks that their script started; local rank 0 is the launcher, too."""
    (first, _), (copy, _) = members[0], members[1]
    return replace(
        _build_job(members, table),
        address=copy.variable("MASTER_ADDR"),
        port=copy.variable("MASTER_PORT"),
        launcher="its own script",
        launcher_pid=first.pid,
        local_size=len(members),
        options=("--nproc-per-node", str(len(members))),
    )


def _spawned_job(group: SpawnedRanks, table: ProcessTable) -> HostJob:
    """Return the job of ranks that a script spawned.

    If one such script runs on each node, its own number gives the offset of its ranks.
    """
    environ, count = group.parent.environ, len(group.ranks)
    node = None if isinstance(environ, Unknown) else identify_rank(environ)
    first, world_size = (
        (node.rank * count, node.world_size * count) if node is not None else (0, count)
    )
    origin = _START_ORDER + (f" and {node.origin}" if node is not None else "")
    members = [
        (process, RankIdentity(first + index, world_size, index, origin))
        for index, process in enumerate(group.ranks)
    ]
    name = program_name(group.parent.words)
    started_by = Fact(
        text=f"spawned by {name}, process {group.parent.pid}",
        origin=f"/proc/{group.parent.pid}/cmdline",
        host=os.uname().nodename,
    )
    job = _build_job(members, table, (_NUMBERED,))
    return replace(
        job,
        script=name,
        command=script_command(group.parent.words),
        options=(),  # the script starts its ranks itself
        port=str(group.port or "") or job.port,
        launcher="multiprocessing",
        launcher_pid=group.parent.pid,
        local_size=None,
        numbered=node is None,
        facts=(*job.facts[:count], started_by),
    )


def _build_rank(process: TrainingProcess, identity: RankIdentity) -> JobRank:
    pipe, dump = (
        process.variable(f"TORCH_NCCL_DEBUG_INFO_{name}_FILE") for name in ("PIPE", "TEMP")
    )
    trace = next(filter(None, map(process.variable, settings.all_names("HOLDFAST_TRACE"))), "")
    root = namespaces.file_root(process.pid)
    return JobRank(
        rank=identity.rank,
        pid=process.pid,
        start_ticks=process.stat.started_ticks,
        trace_path=root + trace if trace else "",
        dumps=DumpLocation(root + pipe, root + (dump or _DEFAULT_DUMP)) if pipe else None,
    )


def program_name(words: Sequence[str]) -> str:
    """Return the program of a command line: ``train.py``, or the module after ``-m``."""
    arguments = [word for word in words[1:] if not word.startswith("holdfast.")]
    name = next((word.rsplit("/", 1)[-1] for word in arguments if word.endswith(".py")), None)
    if name is None and "-m" in arguments:
        name = next(iter(arguments[arguments.index("-m") + 1 :]), None)
    return name or (words[0].rsplit("/", 1)[-1] if words else "a process without a command line")


# ---- search criteria ---------------------------------------------------------------------------


def _filter_by_pid(jobs: list[HostJob], pids: Iterable[int], table: ProcessTable) -> list[HostJob]:
    """Return the jobs of these processes: a rank, a launcher above ranks, or a worker below one."""
    if not pids:
        return jobs
    wanted = set(pids)
    above = {process.pid for pid in wanted for process in table.ancestors(pid)}

    def matches(rank: JobRank) -> bool:
        lineage = {rank.pid, *(process.pid for process in table.ancestors(rank.pid))}
        return not wanted.isdisjoint(lineage) or rank.pid in above

    return [job for job in jobs if any(matches(rank) for rank in job.ranks)]


def _filter_by_allocation(
    jobs: list[HostJob], allocation: str, table: ProcessTable
) -> list[HostJob]:
    """Return the jobs of this Slurm job, otherwise those of no Slurm job (started over ssh)."""
    if not allocation:
        return jobs
    numbers = [table.process(job.ranks[0].pid).variable("SLURM_JOB_ID") for job in jobs]
    pairs = list(zip(jobs, numbers, strict=True))
    return [job for job, number in pairs if number == allocation] or [
        job for job, number in pairs if not number
    ]


def _filter_by_port(jobs: list[HostJob], port: int | None) -> list[HostJob]:
    """Return the jobs with this rendezvous port, otherwise those with a TCP socket at this port."""
    if port is None:
        return jobs
    named = [job for job in jobs if job.port == str(port)]
    if named:
        return named
    users = _port_users(port)
    return [job for job in jobs if users & job.pids]


def _port_users(port: int) -> set[int]:
    try:
        sockets = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    return {
        socket.pid
        for socket in sockets
        if socket.pid and any(end and end.port == port for end in (socket.laddr, socket.raddr))
    }


def _unnumbered_job(search: JobSearch, table: ProcessTable) -> list[HostJob]:
    """Return the selected processes as one job without assigned ranks (``mp.spawn``)."""
    pids = [pid for pid in search.pids if table.is_python(pid)]
    if not pids and search.name:
        pids = table.python_without_rank(search.name)
    if not pids:
        return []
    parents = {table.process(pid).stat.parent for pid in pids}
    pids = table.in_order_of_starts(set(pids) - parents) or pids
    members = [
        (table.process(pid), RankIdentity(index, len(pids), None, _START_ORDER))
        for index, pid in enumerate(pids)
    ]
    unseen = (_NUMBERED,) if len(pids) > 1 else ()
    return [replace(_build_job(members, table, unseen), numbered=True)]


def _describe_search(search: JobSearch) -> str:
    parts = [f"--pid {pid}" for pid in search.pids]
    parts += [f"--name {search.name}"] if search.name else []
    parts += [f"--port {search.port}"] if search.port is not None else []
    return " ".join(parts) or "a search of this host"


def _explain_no_job(table: ProcessTable) -> str:
    if table.closed:
        closed = pluralize(table.closed, "Python process")
        return (
            "no readable process has a rank in its environment, "
            f"and {closed} of other users cannot be read"
        )
    return "no process has a rank in its environment (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK)"
