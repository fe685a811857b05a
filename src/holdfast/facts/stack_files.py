"""Files of stacks put together: whose each process is, two files of one rank as two samples, one table of ranks.

A rank is told, in this order, by ``RANK`` in the command line or in the lines above a process, by the file's name, by
the process number where somebody else knows whose that is, and by the rank on its host. Where nothing tells, nothing
is numbered.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.facts.evidence import Ignored, Piece
from holdfast.facts.job_samples import Samples
from holdfast.facts.logs.reader import rank_of
from holdfast.facts.ranks import RankState, Stack
from holdfast.facts.stack_dumps import SampledProcess, processes
from holdfast.facts.stack_text import MAIN
from holdfast.findings import Unknown
from holdfast.report.ranksets import say_ranks

#: Bytes of one file that are read.
MOST_BYTES = 32 << 20
MOST_RANKS = 1 << 17

_RANK = re.compile(r"(?:^|[\s,;\[(])(?:RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)=(\d{1,6})\b|--rank[= ](\d{1,6})\b")
_LOCAL = re.compile(r"(?:^|[\s,;\[(])LOCAL_RANK=(\d{1,4})\b|--local[-_]rank[= ](\d{1,4})\b")
_HEADED = re.compile(r"\b(?:global[ _-]?rank|rank|task)\s*[:=#_-]?\s*(\d{1,6})\b", re.IGNORECASE)
#: Frames of processes that a rank or a launcher keeps beside itself: data-loader and compile workers, torchrun.
_BESIDE = re.compile(
    r"/torch/(?:utils/data/_utils/worker|_inductor/compile_worker/\w+|distributed/(?:run|launch)"
    r"|distributed/launcher/\w+|distributed/elastic/(?:agent|multiprocessing)/.*)\.py$"
)


class StackTable(msgspec.Struct, frozen=True, kw_only=True):
    """What files of stacks tell. ``samples`` is None where the rank of no process is told.

    ``running`` are the ranks whose main thread the system ran in every sample.
    """

    samples: Samples | None = None
    running: frozenset[int] = frozenset()
    ignored: tuple[Ignored, ...] = ()
    unseen: tuple[str, ...] = ()


class _Claim(msgspec.Struct, frozen=True):
    """A process, whose it is, and whether that is only its rank on its host."""

    process: SampledProcess
    name: str
    rank: int
    local: bool


def read(pieces: Iterable[Piece], by_pid: Mapping[int, int] | None = None, world_size: int = 0) -> StackTable:
    """The table of the ranks whose stacks these files hold.

    ``by_pid`` says which rank a process is, as other evidence tells. ``world_size`` is 0 where nothing tells it.
    """
    claims: list[_Claim] = []
    ignored: list[Ignored] = []
    unseen: list[str] = []
    for piece in pieces:
        with piece.open() as stream:
            found = processes(stream.read(MOST_BYTES), piece.name)
            if stream.read(1):
                unseen.append(f"{piece.name}: what comes after the first {MOST_BYTES >> 20} MiB")
        if isinstance(found, Unknown):
            ignored.append(Ignored(piece.name, found.why, lost=True))
            continue
        mine, nameless = _claimed(_own(found), piece.name, by_pid or {})
        claims += mine
        if nameless:
            pids = ", ".join(str(process.pid or "?") for process in nameless[:6])
            unseen.append(f"{piece.name}: nothing tells which ranks these processes are: {pids}")
    claims, doubts = _settled(claims, world_size)
    return _table(claims, world_size, ignored, (*unseen, *doubts))


def _own(found: Sequence[SampledProcess]) -> list[SampledProcess]:
    """Without the processes that ranks and launchers keep beside themselves."""
    pids = {process.pid for process in found} - {None}
    return [process for process in found if process.parent not in pids and not _is_beside(process)]


def _is_beside(process: SampledProcess) -> bool:
    main = _main(process)
    return main is not None and any(_BESIDE.search(frame.file) for frame in main.frames)


def _main(process: SampledProcess) -> Stack | None:
    return next((stack for stack in process.threads if stack.thread == MAIN), None)


# ---- whose they are


def _claimed(
    found: Sequence[SampledProcess], name: str, by_pid: Mapping[int, int]
) -> tuple[list[_Claim], list[SampledProcess]]:
    """The processes with their ranks, and those of which nothing tells it."""
    claims, nameless = [], []
    alone = len({process.pid for process in found}) == 1
    of_file = rank_of(name)
    for process in found:
        said = f"{process.heading}\n{process.command}"
        local = _number(_LOCAL, said)
        told = (
            _number(_RANK, said),
            _number(_HEADED, process.heading),
            of_file if alone else None,
            by_pid.get(process.pid or -1),
        )
        rank = next((rank for rank in told if rank is not None), None)
        if rank is None and local is None:
            nameless.append(process)
            continue
        claims.append(_Claim(process, name, local if rank is None else rank, rank is None))  # type: ignore[arg-type]
    return claims, nameless


def _number(expression: re.Pattern[str], text: str) -> int | None:
    found = expression.search(text)
    number = next((int(group) for group in found.groups() if group), None) if found else None
    return number if number is not None and number < MOST_RANKS else None


def _settled(claims: Sequence[_Claim], world_size: int) -> tuple[list[_Claim], list[str]]:
    """One process a rank. Ranks on a host are ranks of the job only where one host has all of them."""
    local = {claim.rank for claim in claims if claim.local}
    unseen: list[str] = []
    if local:
        twice = _contested([claim for claim in claims if claim.local])
        elsewhere = len(local) < len(claims) and len(local) != len({claim.rank for claim in claims})
        if twice or elsewhere or (world_size and len(local) != world_size):
            claims = [claim for claim in claims if not claim.local]
            unseen.append("stacks tell ranks on their hosts (LOCAL_RANK) alone, and not of which host: not numbered")
        else:
            unseen.append("ranks are those on their host (LOCAL_RANK): the job is taken to have no other host")
    last = {claim.rank: claim for claim in claims}
    unseen += [
        f"rank {rank} has stacks of several processes: those of {last[rank].name} count" for rank in _contested(claims)
    ]
    return [claim for claim in claims if claim.process.pid == last[claim.rank].process.pid], unseen


def _contested(claims: Iterable[_Claim]) -> list[int]:
    """Ranks that more than one process is said to be."""
    pids: dict[int, set[int | None]] = defaultdict(set)
    for claim in claims:
        pids[claim.rank].add(claim.process.pid)
    return sorted(rank for rank, its in pids.items() if len(its) > 1)


# ---- the table


def _table(
    claims: Sequence[_Claim], world_size: int, ignored: Sequence[Ignored], unseen: tuple[str, ...]
) -> StackTable:
    by_rank: dict[int, list[SampledProcess]] = defaultdict(list)
    for claim in claims:
        by_rank[claim.rank].append(claim.process)
    if not by_rank:
        return StackTable(ignored=tuple(ignored), unseen=unseen)
    if not world_size:
        unseen = (*unseen, f"how many ranks the job has: {say_ranks(by_rank)} are taken for all up to the highest")
    samples = Samples(
        ranks=tuple(_state(rank, its) for rank, its in sorted(by_rank.items())),
        threads={rank: its[-1].threads for rank, its in sorted(by_rank.items())},
        world_size=max(world_size, max(by_rank) + 1),
        time=0.0,
    )
    running = frozenset(rank for rank, its in by_rank.items() if all(process.running for process in its[-2:]))
    return StackTable(samples=samples, running=running, ignored=tuple(ignored), unseen=unseen)


def _state(rank: int, found: Sequence[SampledProcess]) -> RankState:
    """The row of a rank: the main thread in its two newest samples, in the order of the files' names."""
    mains = tuple(main for process in found[-2:] if (main := _main(process)) is not None)
    unseen = () if len(mains) > 1 else (_ONE if mains else "its stacks name no main thread",)
    return RankState(rank=rank, pid=found[-1].pid or 0, stacks=mains, unseen=unseen)


_ONE = "one sample of its stack: two, some seconds apart, would tell whether it advances"
