"""Starts the job of a scenario as a user would, strikes when it is time, and looks at what is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil

from holdfast import settings
from holdfast.actions.chaos.assess import Fact, Played
from holdfast.actions.chaos.blows import BLOWS, power_off
from holdfast.actions.chaos.places import place
from holdfast.actions.chaos.scenarios import PATIENCE, SAVE_EVERY, STEPS, Blow, Scenario

LIMIT_S = 150.0
RESTARTS = 4
_LOOK_S = 0.05
#: What the kernel may need to bury what was killed.
_BURIAL_S = 5.0
#: The agent, its watcher: whoever else works in the folder is a rank.
_BESIDE_RANKS = 2
_SHM = Path("/dev/shm")  # noqa: S108 - that is where a leftover would lie


class Job:
    """One submission of the job in ``folder``: started when this is made."""

    def __init__(self, scenario: Scenario, folder: Path, number: int, words: Sequence[str] = ()) -> None:
        self.folder, self.number = folder, number
        self._report, self._said = folder / f"report{number}.json", folder / f"output{number}.txt"
        self._runs = set(_entries(folder / "runs"))
        inject = [part for text in scenario.inject for part in ("--inject", text)] if number == 0 else []
        command = [
            *words, sys.executable, "-m", "holdfast", "run", "--run-dir", "runs", "--json-report", self._report.name,
            "--standalone", "--nproc-per-node", str(scenario.ranks), "--max-restarts", str(RESTARTS), *inject,
            "train.py", "--mode", scenario.mode, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY),
            *scenario.trainer,
        ]  # fmt: skip
        environment = {**settings.environment(), "OMP_NUM_THREADS": "1", "COLUMNS": "120", **PATIENCE}
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )

    @property
    def run(self) -> Path | None:
        """The folder of this run, once there is one."""
        return next(iter(_entries(self.folder / "runs") - self._runs), None)

    @property
    def traces(self) -> dict[int, Sequence[Fact]]:
        """What each rank did so far, in all submissions."""
        return _traces(self.folder)

    def living(self) -> Iterator[psutil.Process]:
        """The processes that work in the folder, except its own."""
        return (process for process in _living(self.folder) if process.pid != self.process.pid)

    @property
    def output(self) -> str:
        """What it said."""
        return self._said.read_text(errors="replace")

    @property
    def report(self) -> Mapping[str, Any]:
        """The JSON report, empty where none was written."""
        with suppress(OSError, msgspec.DecodeError):
            found: Mapping[str, Any] = msgspec.json.decode(self._report.read_bytes())
            return found
        return {}


def play(scenario: Scenario, folder: Path, *, limit_s: float = LIMIT_S) -> Played:
    """Play the scenario in ``folder``, which is empty, and tell what was seen.

    Takes as long as the job does, at most ``limit_s`` for each submission; what lives then is killed.

    Raises:
        BadValue: the scenario wants what this machine does not allow.
    """
    spec = find_spec("holdfast.runtime.chaos_trainer")
    shutil.copy(str(spec and spec.origin), folder / "train.py")
    with place(scenario, folder) as words:
        return _play(scenario, folder, words, limit_s)


def _play(scenario: Scenario, folder: Path, words: Sequence[str], limit_s: float) -> Played:
    began = time.monotonic()
    met: set[int] = set()
    jobs: list[Job] = []
    statuses: list[int | None] = []
    struck: list[str] = []
    for number in range(scenario.starts):
        job = Job(scenario, folder, number, words)
        jobs.append(job)
        waiting = list(scenario.blows) if number == 0 else []
        statuses.append(_until_the_end(job, waiting, struck, met, limit_s))
    took_s = time.monotonic() - began
    left = _left(folder)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return Played(
        statuses=tuple(statuses), reports=tuple(job.report for job in jobs), traces=_traces(folder),
        processes=tuple(_named(process) for process in left), shared=tuple(_shared(folder, met)), struck=tuple(struck),
        output="".join(job.output for job in jobs), took_s=took_s,
    )  # fmt: skip


def _until_the_end(job: Job, waiting: list[Blow], struck: list[str], met: set[int], limit_s: float) -> int | None:
    """Watch and strike until the job's own process ends; its status, None where it had to be killed."""
    until = time.monotonic() + limit_s
    due: dict[int, float] = {}
    while (status := job.process.poll()) is None:
        met |= {process.pid for process in _living(job.folder)}
        now = time.monotonic()
        if now > until:
            power_off(job)
            job.process.wait()
            return None
        for blow in [blow for blow in waiting if _is_due(blow, job, met)]:
            if now >= due.setdefault(id(blow), now + blow.delay_s):
                waiting.remove(blow)
                struck.append(f"{blow.kind}: {BLOWS[blow.kind](job)}")
        time.sleep(_LOOK_S)
    return status


def _is_due(blow: Blow, job: Job, met: set[int]) -> bool:
    if blow.what == "start":
        return job.run is not None and len(met) > _BESIDE_RANKS
    facts = (fact for trace in job.traces.values() for fact in trace)
    return any(fact.what == blow.what and fact.step >= blow.step for fact in facts)


def _traces(folder: Path) -> dict[int, Sequence[Fact]]:
    found: dict[int, Sequence[Fact]] = {}
    for path in sorted(folder.glob("trace-rank*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        rank = int(path.stem.removeprefix("trace-rank"))
        found[rank] = tuple(msgspec.json.decode(line, type=Fact) for line in lines if line.endswith(b"\n"))
    return found


def _entries(folder: Path) -> set[Path]:
    with suppress(OSError):
        return set(folder.iterdir())
    return set()


def _living(folder: Path) -> Iterator[psutil.Process]:
    """All processes that work in ``folder``: whatever the job started, whoever its parent is by now."""
    wanted = str(folder.resolve())
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd() == wanted and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _left(folder: Path) -> list[psutil.Process]:
    until = time.monotonic() + _BURIAL_S
    while (found := list(_living(folder))) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return found


def _named(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    return str(process.pid)


def _shared(folder: Path, met: set[int]) -> Iterator[str]:
    """Names in shared memory that carry the name of one of the runs, or of a process of the job (torch's loaders)."""
    runs = [path.name for path in _entries(folder / "runs")]
    for path in sorted(_entries(_SHM)):
        if any(run in path.name for run in runs) or any(path.name.startswith(f"torch_{pid}_") for pid in met):
            yield path.name
