"""The training jobs that run on this host now: found by process, name or port, or by themselves, and put together.

Ranks of one job share the address, port and name of their rendezvous and the size of the world.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import psutil
from msgspec.structs import replace

from holdfast.errors import NoJob
from holdfast.facts import spawned
from holdfast.facts.dump_requests import DumpPlace
from holdfast.facts.spawned import Family
from holdfast.facts.training_processes import Identity, ProcessTable, Seen, identify, launcher_name
from holdfast.findings import Fact, Unknown

#: What torch puts in the place of these variables where they are not set (2.13: DebugInfoWriter, DumpPipe).
_NO_DUMP = "/tmp/comm_lib_trace_rank_"  # noqa: S108 - torch's own default
_NUMBERED = "rank not in its environment; numbered in the order in which the processes were started"


class Search(msgspec.Struct, frozen=True):
    """What a job is looked for by; with nothing, all jobs of this host are meant.

    ``allocation`` is the Slurm job in which one looks: jobs of another one are left out.
    """

    pids: tuple[int, ...] = ()
    name: str = ""
    port: int | None = None
    allocation: str = ""


class JobRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on this host: its process, and the box and the place for dumps that its environment names."""

    rank: int
    pid: int
    start_ticks: int
    box: str = ""
    dumps: DumpPlace | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as far as it runs on this host. ``local_size`` is how many ranks its launcher started here, if said.

    ``numbered``: no launcher gave its ranks their numbers; they are those of the order in which they were started.
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
    facts: tuple[Fact, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """What is the same on every host of the job."""
        return self.address, self.port, self.world_size

    def __str__(self) -> str:
        many = "rank" if len(self.ranks) == 1 else "ranks"
        where = f" at port {self.port}" if self.port else ""
        pid = self.launcher_pid or self.ranks[0].pid
        return f"{self.script} with {len(self.ranks)} {many}{where} (--pid {pid})"


def find(search: Search) -> tuple[Job, ...]:
    """The jobs that ``search`` means, the oldest first.

    Raises:
        NoJob: there is none; says what was looked for and what could not be looked into.
    """
    table = ProcessTable()
    for pid in search.pids:
        if pid not in table:
            raise NoJob(f"process {pid}", why="there is no such process on this host")
    jobs = _of_allocation(_jobs(table), search.allocation, table)
    jobs = _by_name(_by_port(_by_pid(jobs, search.pids, table), search.port), search.name, table)
    if not jobs:
        jobs = _without_numbers(search, table)
    if not jobs:
        raise NoJob(_said(search), why=_why(table))
    return tuple(jobs)


def _jobs(table: ProcessTable) -> list[Job]:
    groups: dict[tuple[str, ...], list[tuple[Seen, Identity]]] = defaultdict(list)
    families = list(spawned.families(table))
    theirs = {seen.pid for family in families for seen in (family.parent, *family.ranks)}
    for pid, identity in table.ranks().items():
        if not theirs.isdisjoint((pid, *(seen.pid for seen in table.ancestors(pid)))):
            continue  # a number that was given to the script is not that of its ranks, nor of what they start
        seen = table.seen(pid)
        key = (*(seen.variable(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")),)
        groups[*key, str(identity.world_size)].append((seen, identity))
    found = [_job(members, table) for group in groups.values() for members in _apart(group, table)]
    return found + [_spawned_job(family, table) for family in families]


def _apart(group: list[tuple[Seen, Identity]], table: ProcessTable) -> list[list[tuple[Seen, Identity]]]:
    """A rank that is there twice belongs to two jobs that look alike: their launchers tell them apart.

    Under one launcher (a container, whose variables all its processes have) the one that has loaded torch is the rank.
    """
    if len({identity.rank for _, identity in group}) == len(group):
        return [group]
    by_parent: dict[int, dict[int, tuple[Seen, Identity]]] = defaultdict(dict)
    for seen, identity in sorted(group, key=lambda member: not table.has_torch(member[0].pid)):
        by_parent[seen.stat.parent].setdefault(identity.rank, (seen, identity))
    return [list(members.values()) for members in by_parent.values()]


def _job(members: Sequence[tuple[Seen, Identity]], table: ProcessTable, unseen: tuple[str, ...] = ()) -> Job:
    members = sorted(members, key=lambda member: member[1].rank)
    (first, identity), host = members[0], os.uname().nodename
    launcher = next((seen for seen in table.ancestors(first.pid) if launcher_name(seen.words)), None)
    local_size = first.variable("LOCAL_WORLD_SIZE")
    facts = [
        Fact(
            text=f"rank {who.rank} of {who.world_size} is process {seen.pid}",
            origin=f"{who.origin} in /proc/{seen.pid}/environ" if who.origin.isupper() else who.origin,
            rank=who.rank,
            host=host,
        )
        for seen, who in members
    ]
    if launcher is not None:
        text = f"started by {launcher_name(launcher.words)}, process {launcher.pid}"
        facts.append(Fact(text=text, origin=f"/proc/{launcher.pid}/cmdline", host=host))
    return Job(
        ranks=tuple(_rank(seen, who) for seen, who in members),
        world_size=identity.world_size,
        host=host,
        script=script(first.words),
        address=first.variable("MASTER_ADDR"),
        port=first.variable("MASTER_PORT"),
        launcher=launcher_name(launcher.words) if launcher else "",
        launcher_pid=launcher.pid if launcher else None,
        local_size=int(local_size) if local_size.isascii() and local_size.isdigit() else None,
        facts=tuple(facts),
        unseen=unseen,
    )


def _spawned_job(family: Family, table: ProcessTable) -> Job:
    """Ranks that a script started itself; where one script a node was started, its number says which are its ranks."""
    environ, count = family.parent.environ, len(family.ranks)
    node = None if isinstance(environ, Unknown) else identify(environ)
    first, world_size = (node.rank * count, node.world_size * count) if node is not None else (0, count)
    origin = "the order of starts" + (f" and {node.origin}" if node is not None else "")
    members = [(seen, Identity(first + at, world_size, at, origin)) for at, seen in enumerate(family.ranks)]
    by = Fact(
        text=f"started by {script(family.parent.words)} itself, process {family.parent.pid}",
        origin=f"/proc/{family.parent.pid}/cmdline",
        host=os.uname().nodename,
    )
    job = _job(members, table, (_NUMBERED,))
    return replace(
        job,
        script=script(family.parent.words),
        port=str(family.port or "") or job.port,
        launcher="multiprocessing",
        launcher_pid=family.parent.pid,
        local_size=None,
        numbered=node is None,
        facts=(*job.facts[:count], by),
    )


def _rank(seen: Seen, identity: Identity) -> JobRank:
    pipe, dump = (seen.variable(f"TORCH_NCCL_DEBUG_INFO_{name}_FILE") for name in ("PIPE", "TEMP"))
    return JobRank(
        rank=identity.rank,
        pid=seen.pid,
        start_ticks=seen.stat.started_ticks,
        box=seen.variable("HOLDFAST_BOX"),
        dumps=DumpPlace(pipe, dump or _NO_DUMP) if pipe else None,
    )


def script(words: Sequence[str]) -> str:
    """The program of a command line in short: ``train.py``, or the module after ``-m``."""
    ours = [word for word in words[1:] if not word.startswith("holdfast.")]
    named = next((word.rsplit("/", 1)[-1] for word in ours if word.endswith(".py")), None)
    if named is None and "-m" in ours:
        named = next(iter(ours[ours.index("-m") + 1 :]), None)
    return named or (words[0].rsplit("/", 1)[-1] if words else "a process without a command line")


# ---- what the user asked for


def _by_pid(jobs: list[Job], pids: Iterable[int], table: ProcessTable) -> list[Job]:
    """The jobs of these processes: a rank, a launcher above ranks, or a worker below one may be named."""
    if not pids:
        return jobs
    wanted = set(pids)
    above = {seen.pid for pid in wanted for seen in table.ancestors(pid)}

    def is_meant(rank: JobRank) -> bool:
        family = {rank.pid, *(seen.pid for seen in table.ancestors(rank.pid))}
        return not wanted.isdisjoint(family) or rank.pid in above

    return [job for job in jobs if any(is_meant(rank) for rank in job.ranks)]


def _of_allocation(jobs: list[Job], allocation: str, table: ProcessTable) -> list[Job]:
    """The jobs of this Slurm job, else those that say of no Slurm job (started over ssh)."""
    if not allocation:
        return jobs
    said = [table.seen(job.ranks[0].pid).variable("SLURM_JOB_ID") for job in jobs]
    return [job for job, number in zip(jobs, said, strict=True) if number == allocation] or [
        job for job, number in zip(jobs, said, strict=True) if not number
    ]


def _by_name(jobs: list[Job], name: str, table: ProcessTable) -> list[Job]:
    """The jobs with this text in the command line of a rank or of the launcher."""
    return [job for job in jobs if any(name in table.seen(pid).command for pid in _pids(job))]


def _pids(job: Job) -> set[int]:
    return {*(rank.pid for rank in job.ranks), *([job.launcher_pid] if job.launcher_pid is not None else [])}


def _by_port(jobs: list[Job], port: int | None) -> list[Job]:
    """The jobs whose rendezvous this port is, or of which a process listens or is connected at it."""
    if port is None:
        return jobs
    named = [job for job in jobs if job.port == str(port)]
    if named:
        return named
    users = _users(port)
    return [job for job in jobs if users & _pids(job)]


def _users(port: int) -> set[int]:
    try:
        sockets = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    ends = ((each.pid, each.laddr, each.raddr) for each in sockets if each.pid)
    return {pid for pid, *addresses in ends if any(end and end.port == port for end in addresses)}


def _without_numbers(search: Search, table: ProcessTable) -> list[Job]:
    """Processes that the user named, to which no launcher gave a number: ``mp.spawn``, or a single process."""
    pids = [pid for pid in search.pids if table.is_python(pid)]
    if not pids and search.name:
        pids = table.python_without_rank(search.name)
    parents = {table.seen(pid).stat.parent for pid in pids}
    pids = table.in_order_of_starts(set(pids) - parents) or pids
    members = [(table.seen(pid), Identity(at, len(pids), None, "the order of starts")) for at, pid in enumerate(pids)]
    if not members:
        return []
    return [replace(_job(members, table, (_NUMBERED,) if len(pids) > 1 else ()), numbered=True)]


def _said(search: Search) -> str:
    parts = [f"--pid {pid}" for pid in search.pids]
    parts += [f"--name {search.name}"] if search.name else []
    parts += [f"--port {search.port}"] if search.port is not None else []
    return " ".join(parts) or "this host"


def _why(table: ProcessTable) -> str:
    if table.closed:
        many = f"{table.closed} Python process{'es' if table.closed > 1 else ''} of other users"
        return f"no process that can be looked into has a rank in its environment, and {many} cannot be looked into"
    return "no process there has a rank in its environment (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK)"
