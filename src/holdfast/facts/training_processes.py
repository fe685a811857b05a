"""Which processes of this host are ranks of training jobs, as their environment, command line and ancestors tell.

A rank is a Python process that a launcher gave its number. Data-loader and compile workers inherit that environment:
they are told from ranks by an ancestor that has the same number. Nothing here touches a process; what belongs to other
users cannot be read and is counted.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.facts import proc
from holdfast.facts.proc import PROC, Stat
from holdfast.facts.ranks import Life
from holdfast.findings import Unknown

#: Variables for rank, world size and local rank: torch's own, then those of launchers whose scripts read them instead.
IDENTITIES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_LAUNCHERS = {
    "torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate", "ft_launcher": "ft_launcher",
    "holdfast": "holdfast run", "srun": "srun", "slurmstepd:": "srun", "slurmstepd": "srun", "mpirun": "mpirun",
    "mpiexec": "mpirun", "orted": "mpirun", "prted": "mpirun", "hydra_pmi_proxy": "mpirun",
}  # fmt: skip
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun", "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed", "accelerate.commands.launch": "accelerate", "holdfast": "holdfast run",
}  # fmt: skip
_PYTHON = re.compile(r"python|pypy|pt_main_thread")
_MOST_ANCESTORS = 64
_MOST_MAPS_BYTES = 8 << 20


class Seen(msgspec.Struct, frozen=True):
    """One process: its stat line, its command line, and its environment when it was started."""

    stat: Stat
    words: tuple[str, ...]
    environ: Mapping[str, str] | Unknown

    @property
    def pid(self) -> int:
        """The process id."""
        return self.stat.pid

    @property
    def command(self) -> str:
        """The command line, its words joined by blanks."""
        return " ".join(self.words)

    def variable(self, name: str) -> str:
        """A variable of the environment that it was started with; empty where it was not set, or cannot be read."""
        return "" if isinstance(self.environ, Unknown) else self.environ.get(name, "")


class Identity(msgspec.Struct, frozen=True):
    """The number that a launcher gave a process, and the variable that says so."""

    rank: int
    world_size: int
    local_rank: int | None
    origin: str


class ProcessTable:
    """All processes of this host at one moment; ``closed`` counts Python processes that could not be looked into."""

    def __init__(self, proc_root: Path = PROC) -> None:
        self._root = proc_root
        self._stats = {stat.pid: stat for stat in _stats(proc_root)}
        self._seen: dict[int, Seen] = {}
        said = proc.text(proc_root / "sys" / "kernel" / "pid_max")
        self._highest = _number(said.strip()) if isinstance(said, str) else None
        self.closed = 0

    def __contains__(self, pid: int) -> bool:
        return pid in self._stats

    def seen(self, pid: int) -> Seen:
        """One process of the table."""
        if pid not in self._seen:
            self._seen[pid] = Seen(self._stats[pid], self._words(pid), self._environ(pid))
        return self._seen[pid]

    def ancestors(self, pid: int) -> Iterator[Seen]:
        """Parent, its parent, and so on, up to the first process."""
        stat = self._stats.get(pid)
        for _ in range(_MOST_ANCESTORS):
            stat = self._stats.get(stat.parent) if stat is not None else None
            if stat is None:
                return
            yield self.seen(stat.pid)

    def python(self) -> list[int]:
        """The living processes that run Python, the oldest first, without this one and those above it."""
        own = {os.getpid(), *(seen.pid for seen in self.ancestors(os.getpid()))}
        living = [pid for pid, stat in self._stats.items() if stat.life != Life.DEAD and pid not in own]
        return [pid for pid in self.in_order_of_starts(living) if self.is_python(pid)]

    def in_order_of_starts(self, pids: Iterable[int]) -> list[int]:
        """The oldest first. Within one tick of the clock (10 ms) it is the order of the ids, which begin again."""
        by_tick: dict[int, list[int]] = defaultdict(list)
        for pid in sorted(pids):
            by_tick[self._stats[pid].started_ticks].append(pid)
        return [pid for _, together in sorted(by_tick.items()) for pid in _around(together, self._highest)]

    def ranks(self) -> dict[int, Identity]:
        """The processes that are ranks, by process id, with what they are in their job."""
        found: dict[int, Identity] = {}
        for pid in self.python():
            seen = self.seen(pid)
            if isinstance(seen.environ, Unknown):
                self.closed += 1
                continue
            identity = identify(seen.environ)
            if identity is None or launcher_name(seen.words):
                continue
            if identity.origin == "RANK" or self.has_torch(pid):
                found[pid] = identity
        return {pid: identity for pid, identity in found.items() if not self._is_child(pid, identity, found)}

    def python_without_rank(self, text: str) -> list[int]:
        """Python processes with torch whose command line holds ``text``, launchers and their like left out."""
        return [
            pid
            for pid in self.python()
            if text in self.seen(pid).command and not launcher_name(self.seen(pid).words) and self.has_torch(pid)
        ]

    def is_python(self, pid: int) -> bool:
        """True for a process that runs a Python interpreter, by its program, else (another user's) by its name."""
        try:
            program = (self._root / str(pid) / "exe").readlink().name
        except OSError:
            program = self._stats[pid].name
        return bool(_PYTHON.match(program) or _PYTHON.match(self._stats[pid].name))

    def has_torch(self, pid: int) -> bool:
        """True for a process that has loaded torch's library."""
        maps = proc.text(self._root / str(pid) / "maps", _MOST_MAPS_BYTES)
        return isinstance(maps, str) and "/libtorch" in maps

    def _is_child(self, pid: int, identity: Identity, found: Mapping[int, Identity]) -> bool:
        mine = self.seen(pid)
        return any(
            (other := found.get(seen.pid)) is not None
            and (other.rank, other.world_size) == (identity.rank, identity.world_size)
            and seen.variable("MASTER_PORT") == mine.variable("MASTER_PORT")
            for seen in self.ancestors(pid)
        )

    def _words(self, pid: int) -> tuple[str, ...]:
        line = proc.text(self._root / str(pid) / "cmdline")
        return tuple(word for word in line.split("\0") if word) if isinstance(line, str) else ()

    def _environ(self, pid: int) -> Mapping[str, str] | Unknown:
        content = proc.text(self._root / str(pid) / "environ")
        if isinstance(content, Unknown):
            return content
        pairs = (entry.partition("=") for entry in content.split("\0"))
        return {name: value for name, mark, value in pairs if mark}


def identify(environ: Mapping[str, str]) -> Identity | None:
    """What the environment says that the process is; None where no launcher gave it a number."""
    for rank_name, world_name, local_name in IDENTITIES:
        rank, world, local = (_number(environ.get(name, "")) for name in (rank_name, world_name, local_name))
        if rank is not None and world is not None and rank < world:
            return Identity(rank, world, local, rank_name)
    return None


def launcher_name(words: tuple[str, ...]) -> str:
    """``torchrun``, ``srun`` and so on for the command line of a launcher; empty for every other."""
    for word in words[:2]:
        # a process that names itself leaves one word: "slurmstepd: [12.0]"
        if name := _LAUNCHERS.get(word.rsplit("/", 1)[-1].partition(" ")[0]):
            return name
    if "-m" in words[1:6]:
        module = words[words.index("-m") + 1 :][:1]
        return _LAUNCHER_MODULES.get(module[0], "") if module else ""
    return ""


def _stats(proc_root: Path) -> Iterator[Stat]:
    for entry in os.scandir(proc_root):
        if entry.name.isdigit():
            stat = proc.stat(int(entry.name), proc_root)
            if isinstance(stat, Stat):
                yield stat


def _around(pids: Sequence[int], highest: int | None) -> Sequence[int]:
    """Ids that were given out one after the other: after the ``highest`` they begin again."""
    gaps = [after - before for before, after in pairwise(pids)]
    widest = max(gaps, default=0)
    if highest is None or 2 * widest <= highest:
        return pids
    first = gaps.index(widest) + 1
    return [*pids[first:], *pids[:first]]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
