"""Combine stack files: assign each process to a rank, and build one table of ranks.

The rank of a process is taken from the first of these sources: ``RANK`` in its command line or in
the lines above it; the file name; other evidence about its process id; its rank on its host. If no
source has it, the process is not used. Two files of one rank are two samples.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState, ThreadStack
from holdfast.diagnose.evidence import EvidenceFile, SkippedEvidence
from holdfast.diagnose.logs.file_names import rank_in_name
from holdfast.diagnose.stacks.job_samples import JobSamples
from holdfast.diagnose.stacks.stack_dumps import SampledProcess, parse_processes
from holdfast.host.processes.stack_text import MAIN_THREAD

#: Maximum bytes read from one file.
MAX_BYTES = 32 << 20
MAX_RANKS = 1 << 17
_MAX_PIDS = 6

_RANK = re.compile(
    r"(?:^|[\s,;\[(])(?:RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)=(\d{1,6})\b|--rank[= ](\d{1,6})\b"
)
_LOCAL_RANK = re.compile(r"(?:^|[\s,;\[(])LOCAL_RANK=(\d{1,4})\b|--local[-_]rank[= ](\d{1,4})\b")
_HEADING = re.compile(r"\b(?:global[ _-]?rank|rank|task)\s*[:=#_-]?\s*(\d{1,6})\b", re.IGNORECASE)
#: Frames of processes that accompany a rank: data-loader and compile workers, torchrun.
_HELPER_FILE = re.compile(
    r"/torch/(?:utils/data/_utils/worker|_inductor/compile_worker/\w+|distributed/(?:run|launch)"
    r"|distributed/launcher/\w+|distributed/elastic/(?:agent|multiprocessing)/.*)\.py$"
)


class StackTable(msgspec.Struct, frozen=True, kw_only=True):
    """The content of stack files; ``samples`` is None if no process could be assigned to a rank.

    ``running`` are the ranks whose main thread was on a core in every sample.
    """

    samples: JobSamples | None = None
    running: frozenset[int] = frozenset()
    skipped: tuple[SkippedEvidence, ...] = ()
    unseen: tuple[str, ...] = ()


class _RankedProcess(msgspec.Struct, frozen=True):
    """A process with its rank; ``local``: the rank is that on its host only."""

    process: SampledProcess
    file: str
    rank: int
    local: bool


def read_stack_files(
    files: Iterable[EvidenceFile], by_pid: Mapping[int, int] | None = None, world_size: int = 0
) -> StackTable:
    """Return the table of the ranks in these files.

    ``by_pid`` maps process ids to ranks, from other evidence. ``world_size`` is 0 if unknown.
    """
    ranked: list[_RankedProcess] = []
    skipped: list[SkippedEvidence] = []
    unseen: list[str] = []
    for file in files:
        with file.open() as stream:
            found = parse_processes(stream.read(MAX_BYTES), file.name)
            if stream.read(1):
                unseen.append(f"{file.name}: everything after the first {MAX_BYTES >> 20} MiB")
        if isinstance(found, Unknown):
            skipped.append(SkippedEvidence(file.name, found.why, lost=True))
            continue
        of_file, unassigned = _assign_ranks(_without_helpers(found), file.name, by_pid or {})
        ranked += of_file
        if unassigned:
            pids = ", ".join(str(process.pid or "?") for process in unassigned[:_MAX_PIDS])
            unseen.append(f"{file.name}: the ranks of these processes are unknown: {pids}")
    ranked, ambiguous = _resolve_ranks(ranked, world_size)
    return _build_table(ranked, world_size, skipped, (*unseen, *ambiguous))


def _without_helpers(found: Sequence[SampledProcess]) -> list[SampledProcess]:
    """Return the processes without launchers and the workers of ranks."""
    pids = {process.pid for process in found} - {None}
    return [process for process in found if process.parent not in pids and not _is_helper(process)]


def _is_helper(process: SampledProcess) -> bool:
    main = _main_stack(process)
    return main is not None and any(_HELPER_FILE.search(frame.file) for frame in main.frames)


def _main_stack(process: SampledProcess) -> ThreadStack | None:
    return next((stack for stack in process.threads if stack.thread == MAIN_THREAD), None)


# ---- ranks of processes ------------------------------------------------------------------------


def _assign_ranks(
    found: Sequence[SampledProcess], file: str, by_pid: Mapping[int, int]
) -> tuple[list[_RankedProcess], list[SampledProcess]]:
    """Return the processes with their ranks, and those without a known rank."""
    ranked, unassigned = [], []
    single = len({process.pid for process in found}) == 1
    for process in found:
        text = f"{process.heading}\n{process.command}"
        sources = (
            _parse_number(_RANK, text),
            _parse_number(_HEADING, process.heading),
            rank_in_name(file) if single else None,
            by_pid.get(process.pid or -1),
        )
        rank = next((rank for rank in sources if rank is not None), None)
        local_rank = _parse_number(_LOCAL_RANK, text)
        if rank is not None:
            ranked.append(_RankedProcess(process, file, rank, local=False))
        elif local_rank is not None:
            ranked.append(_RankedProcess(process, file, local_rank, local=True))
        else:
            unassigned.append(process)
    return ranked, unassigned


def _parse_number(expression: re.Pattern[str], text: str) -> int | None:
    match = expression.search(text)
    number = next((int(group) for group in match.groups() if group), None) if match else None
    return number if number is not None and number < MAX_RANKS else None


def _resolve_ranks(
    ranked: Sequence[_RankedProcess], world_size: int
) -> tuple[list[_RankedProcess], list[str]]:
    """Return one process per rank; local ranks count only if one host has all ranks of the job."""
    local = {each.rank for each in ranked if each.local}
    unseen: list[str] = []
    if local:
        contested = _contested_ranks([each for each in ranked if each.local])
        mixed = len(local) < len(ranked) and len(local) != len({each.rank for each in ranked})
        if contested or mixed or (world_size and len(local) != world_size):
            ranked = [each for each in ranked if not each.local]
            unseen.append("stacks with LOCAL_RANK only are not used: their host is unknown")
        else:
            unseen.append("LOCAL_RANK is used as the rank, assuming that the job has one host")
    last = {each.rank: each for each in ranked}
    unseen += [
        f"rank {rank} has stacks of several processes: those of {last[rank].file} are used"
        for rank in _contested_ranks(ranked)
    ]
    return [each for each in ranked if each.process.pid == last[each.rank].process.pid], unseen


def _contested_ranks(ranked: Iterable[_RankedProcess]) -> list[int]:
    """Return the ranks that are assigned to several processes."""
    pids: dict[int, set[int | None]] = defaultdict(set)
    for each in ranked:
        pids[each.rank].add(each.process.pid)
    return sorted(rank for rank, of_rank in pids.items() if len(of_rank) > 1)


# ---- the table ---------------------------------------------------------------------------------


def _build_table(
    ranked: Sequence[_RankedProcess],
    world_size: int,
    skipped: Sequence[SkippedEvidence],
    unseen: tuple[str, ...],
) -> StackTable:
    by_rank: dict[int, list[SampledProcess]] = defaultdict(list)
    for each in sorted(ranked, key=lambda each: each.rank):
        by_rank[each.rank].append(each.process)
    if not by_rank:
        return StackTable(skipped=tuple(skipped), unseen=unseen)
    if not world_size:
        assumed = (
            f"the world size: {describe_ranks(by_rank)} are assumed to include the highest rank"
        )
        unseen = (*unseen, assumed)
    samples = JobSamples(
        ranks=tuple(_rank_state(rank, sampled) for rank, sampled in by_rank.items()),
        threads={rank: sampled[-1].threads for rank, sampled in by_rank.items()},
        world_size=max(world_size, max(by_rank) + 1),
        time=0.0,
    )
    running = frozenset(
        rank
        for rank, sampled in by_rank.items()
        if all(process.running for process in sampled[-2:])
    )
    return StackTable(samples=samples, running=running, skipped=tuple(skipped), unseen=unseen)


def _rank_state(rank: int, sampled: Sequence[SampledProcess]) -> RankState:
    """Return the row of a rank: the main thread in its two newest samples, ordered by file name."""
    mains = tuple(main for process in sampled[-2:] if (main := _main_stack(process)) is not None)
    unseen: tuple[str, ...] = ()
    if not mains:
        unseen = ("its stacks contain no main thread",)
    elif len(mains) == 1:
        unseen = (
            "only one sample of its stack: two, some seconds apart, show whether it advances",
        )
    return RankState(rank=rank, pid=sampled[-1].pid or 0, stacks=mains, unseen=unseen)
