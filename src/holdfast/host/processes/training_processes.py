"""Finds the ranks of training jobs on this host by environment, command line, ancestors.

A rank is a Python process to which a launcher assigned a rank number. Data-loader and compile
workers inherit that environment: they have an ancestor with the same number. No process is
modified; unreadable processes of other users are counted.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC, ProcessStat

#: Variables for rank, world size and local rank: torch's, then those of launchers.
IDENTITIES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_LAUNCHERS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "ft_launcher": "ft_launcher",
    "holdfast": "holdfast run",
    "srun": "srun",
    "slurmstepd:": "srun",
    "slurmstepd": "srun",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "orted": "mpirun",
    "prted": "mpirun",
    "hydra_pmi_proxy": "mpirun",
}
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
    "holdfast": "holdfast run",
}
_PYTHON = re.compile(r"python|pypy|pt_main_thread")
_MAX_ANCESTORS = 64
_MAX_MAPS_BYTES = 8 << 20


class TrainingProcess(msgspec.Struct, frozen=True):
    """One process: its stat line, command line, and initial environment."""

    stat: ProcessStat
    words: tuple[str, ...]
    environ: Mapping[str, str] | Unknown

    @property
    def pid(self) -> int:
        """The process id."""
        return self.stat.pid

    @property
    def command(self) -> str:
        """The command line as one string."""
        return " ".join(self.words)

    def variable(self, name: str) -> str:
        """Return a variable of the initial environment; empty if it is not set or unreadable."""
        return "" if isinstance(self.environ, Unknown) else self.environ.get(name, "")


class RankIdentity(msgspec.Struct, frozen=True):
    """The rank number that a launcher assigned, and the variable that contains it."""

    rank: int
    world_size: int
    local_rank: int | None
    origin: str


class ProcessTable:
    """A snapshot of all processes of this host; ``closed`` counts unreadable Python processes."""

    def __init__(self, proc_root: Path = PROC) -> None:
        self._root = proc_root
        self._stats = {stat.pid: stat for stat in _stats(proc_root)}
        self._processes: dict[int, TrainingProcess] = {}
        pid_max = proc.read_text(proc_root / "sys" / "kernel" / "pid_max")
        self._pid_max = _number(pid_max.strip()) if isinstance(pid_max, str) else None
        self.closed = 0

    def __contains__(self, pid: int) -> bool:
        return pid in self._stats

    def process(self, pid: int) -> TrainingProcess:
        """Return one process of the table."""
        if pid not in self._processes:
            self._processes[pid] = TrainingProcess(
                self._stats[pid], self._words(pid), self._environ(pid)
            )
        return self._processes[pid]

    def ancestors(self, pid: int) -> Iterator[TrainingProcess]:
        """Yield the parent, its parent, and so on, up to the first process."""
        stat = self._stats.get(pid)
        for _ in range(_MAX_ANCESTORS):
            stat = self._stats.get(stat.parent) if stat is not None else None
            if stat is None:
                return
            yield self.process(stat.pid)

    def python(self) -> list[int]:
        """Return the living Python processes, oldest first, without this one and its ancestors."""
        own = {os.getpid(), *(ancestor.pid for ancestor in self.ancestors(os.getpid()))}
        living = [
            pid
            for pid, stat in self._stats.items()
            if stat.life != ProcessState.DEAD and pid not in own
        ]
        return [pid for pid in self.in_order_of_starts(living) if self.is_python(pid)]

    def in_order_of_starts(self, pids: Iterable[int]) -> list[int]:
        """Sort by start time, oldest first.

        Within one clock tick (10 ms) by pid, taking wrap-around into account.
        """
        by_tick: dict[int, list[int]] = defaultdict(list)
        for pid in sorted(pids):
            by_tick[self._stats[pid].started_ticks].append(pid)
        return [
            pid
            for _, same_tick in sorted(by_tick.items())
            for pid in _unwrap_pids(same_tick, self._pid_max)
        ]

    def ranks(self) -> dict[int, RankIdentity]:
        """Return the identities of the processes that are ranks, by pid."""
        candidates: dict[int, RankIdentity] = {}
        for pid in self.python():
            process = self.process(pid)
            if isinstance(process.environ, Unknown):
                self.closed += 1
                continue
            identity = identify_rank(process.environ)
            if identity is None or launcher_name(process.words):
                continue
            if identity.origin == "RANK" or self.has_torch(pid):
                candidates[pid] = identity
        return {
            pid: identity
            for pid, identity in candidates.items()
            if not self._is_child(pid, identity, candidates)
        }

    def python_without_rank(self, text: str) -> list[int]:
        """Return Python processes with torch and ``text`` in their command line; no launchers."""
        return [
            pid
            for pid in self.python()
            if text in self.process(pid).command
            and not launcher_name(self.process(pid).words)
            and self.has_torch(pid)
        ]

    def is_python(self, pid: int) -> bool:
        """Return whether the process runs Python, by its executable, else by its name."""
        try:
            program = (self._root / str(pid) / "exe").readlink().name
        except OSError:
            program = self._stats[pid].name
        return bool(_PYTHON.match(program) or _PYTHON.match(self._stats[pid].name))

    def has_torch(self, pid: int) -> bool:
        """Return whether the process has loaded torch's library."""
        maps = proc.read_text(self._root / str(pid) / "maps", _MAX_MAPS_BYTES)
        return isinstance(maps, str) and "/libtorch" in maps

    def _is_child(
        self, pid: int, identity: RankIdentity, candidates: Mapping[int, RankIdentity]
    ) -> bool:
        process = self.process(pid)
        return any(
            (other := candidates.get(ancestor.pid)) is not None
            and (other.rank, other.world_size) == (identity.rank, identity.world_size)
            and ancestor.variable("MASTER_PORT") == process.variable("MASTER_PORT")
            for ancestor in self.ancestors(pid)
        )

    def _words(self, pid: int) -> tuple[str, ...]:
        line = proc.read_text(self._root / str(pid) / "cmdline")
        return tuple(word for word in line.split("\0") if word) if isinstance(line, str) else ()

    def _environ(self, pid: int) -> Mapping[str, str] | Unknown:
        content = proc.read_text(self._root / str(pid) / "environ")
        if isinstance(content, Unknown):
            return content
        pairs = (entry.partition("=") for entry in content.split("\0"))
        return {name: value for name, sign, value in pairs if sign}


def identify_rank(environ: Mapping[str, str]) -> RankIdentity | None:
    """Return the rank identity in an environment; None if no launcher assigned one."""
    for rank_name, world_name, local_name in IDENTITIES:
        rank, world, local = (
            _number(environ.get(name, "")) for name in (rank_name, world_name, local_name)
        )
        if rank is not None and world is not None and rank < world:
            return RankIdentity(rank, world, local, rank_name)
    return None


def launcher_name(words: tuple[str, ...]) -> str:
    """Return ``torchrun``, ``srun`` and so on for the command line of a launcher.

    Empty for any other.
    """
    for word in words[:2]:
        # a process that sets its title has one word: "slurmstepd: [12.0]"
        if name := _LAUNCHERS.get(word.rsplit("/", 1)[-1].partition(" ")[0]):
            return name
    if "-m" in words[1:6]:
        module = words[words.index("-m") + 1 :][:1]
        return _LAUNCHER_MODULES.get(module[0], "") if module else ""
    return ""


def _stats(proc_root: Path) -> Iterator[ProcessStat]:
    for entry in os.scandir(proc_root):
        if entry.name.isdigit():
            stat = proc.read_stat(int(entry.name), proc_root)
            if isinstance(stat, ProcessStat):
                yield stat


def _unwrap_pids(pids: Sequence[int], pid_max: int | None) -> Sequence[int]:
    """Order sorted pids as they were assigned: after ``pid_max`` they start again."""
    gaps = [after - before for before, after in pairwise(pids)]
    widest = max(gaps, default=0)
    if pid_max is None or 2 * widest <= pid_max:
        return pids
    first = gaps.index(widest) + 1
    return [*pids[first:], *pids[:first]]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
