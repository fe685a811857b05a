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
from holdfast.actions import ledger
from holdfast.actions.chaos.assess import Fact, Played
from holdfast.actions.chaos.blows import BLOWS, PORT, power_off
from holdfast.actions.chaos.hosts import DEVICE, Host, address
from holdfast.actions.chaos.places import place
from holdfast.actions.chaos.scenario import PATIENCE, SAVE_EVERY, STEPS, Blow, Scenario
from holdfast.actions.ledger import Record
from holdfast.errors import HoldfastError

#: A submission takes 10 to 20 s; where others work on the machine too, ten times that.
LIMIT_S = 240.0
#: What an agent says that waits for others.
_WAITS = "waiting for the other nodes to join"
RESTARTS = 4
_LOOK_S = 0.05
#: What the kernel may need to bury what was killed.
_BURIAL_S = 5.0
#: The agent, its watcher: whoever else works in the folder is a rank.
_BESIDE_RANKS = 2
_SHM = Path("/dev/shm")  # noqa: S108 - that is where a leftover would lie


class Job:
    """One submission of the job in ``folder``, started on all hosts when this is made."""

    def __init__(
        self, scenario: Scenario, folder: Path, number: int, words: Sequence[str] = (), hosts: Sequence[Host] = ()
    ) -> None:
        self.folder, self.number, self.hosts = folder, number, hosts
        self.lost: set[int] = set()
        self._elastic, self._ended = scenario.elastic, False
        self._reports = [folder / f"report{number}.{host}.json" for host in range(scenario.hosts)]
        self._runs = [set(_entries(folder / f"runs{host}")) for host in range(scenario.hosts)]
        self._said = [folder / f"output{number}.{host}.txt" for host in range(scenario.hosts)]
        self.agents = [self._start(scenario, host, words) for host in range(scenario.hosts)]

    def _start(self, scenario: Scenario, host: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
        inject = [part for text in scenario.inject for part in ("--inject", text)] if self.number == 0 else []
        ranks, steps = scenario.ranks // scenario.hosts, STEPS
        if scenario.apart_at and not scenario.elastic:  # in peace: fewer ranks from there on
            ranks, steps = (ranks, scenario.apart_at) if self.number == 0 else (ranks - 1, STEPS)
        command = [
            *words, *(self.hosts[host].words if self.hosts else ()), "env", f"--chdir={self.folder}",
            sys.executable, "-m", "holdfast", "run", "--run-dir", f"runs{host}",
            "--json-report", self._reports[host].name, *_meeting(scenario, host),
            "--nproc-per-node", str(ranks), "--max-restarts", str(RESTARTS), *inject, *scenario.options,
            "train.py", "--mode", scenario.mode, "--steps", str(steps), "--save-every", str(SAVE_EVERY),
            "--submission", str(self.number), *scenario.trainer,
        ]  # fmt: skip
        with self._said[host].open("wb") as said:
            return subprocess.Popen(
                command, cwd=self.folder, env=_environment(scenario), stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def run(self, host: int = 0) -> Path | None:
        """The folder of this run on that host, once there is one."""
        new = _entries(self.folder / f"runs{host}") - self._runs[host]
        mine = [path for path in new if (path / "run.json").exists()]  # beside it: what runs have learned
        return min(mine, default=None)  # their names tell when; a later submission's may be there too

    def lose(self, host: int) -> None:
        """Expect nothing any more of the agent of that host."""
        self.lost.add(host)

    def end_if_halved(self) -> None:
        """End the agents that wait for one that will not come back, as a scheduler does before it submits again."""
        gone = [each.poll() is not None for each in self.agents]
        if self._elastic or self._ended or not any(gone) or all(gone):
            return
        if all(each or _WAITS in path.read_text(errors="replace") for each, path in zip(gone, self._said, strict=True)):
            self._ended = True
            for each in self.agents:
                each.terminate()

    @property
    def status(self) -> int | None:
        """The exit status once all agents have ended: the first that is not 0, of hosts that were not lost."""
        found = [agent.poll() for agent in self.agents]
        if any(each is None for each in found):
            return None
        return next((each for host, each in enumerate(found) if each and host not in self.lost), 0)

    @property
    def records(self) -> Sequence[Record]:
        """Its ledger, that of the first host that has one."""
        for host in range(len(self.agents)):
            with suppress(HoldfastError):
                if host not in self.lost and (run := self.run(host)) is not None:
                    return ledger.read(run)
        return ()

    @property
    def traces(self) -> dict[int, Sequence[Fact]]:
        """What each rank did so far, in all submissions."""
        return _traces(self.folder)

    def living(self) -> Iterator[psutil.Process]:
        """All processes that work in the folder."""
        return _living(self.folder)

    @property
    def output(self) -> str:
        """What it said."""
        return "".join(path.read_text(errors="replace") for path in self._said)

    @property
    def report(self) -> Mapping[str, Any]:
        """The JSON report of the first host that was not lost, empty where none was written."""
        for host, path in enumerate(self._reports):
            with suppress(OSError, msgspec.DecodeError):
                if host not in self.lost:
                    found: Mapping[str, Any] = msgspec.json.decode(path.read_bytes())
                    return found
        return {}


def _meeting(scenario: Scenario, host: int) -> Sequence[str]:
    """How the hosts come together: a fixed number at the first one's store, or any number."""
    if scenario.hosts == 1:
        return ("--standalone",)
    if scenario.elastic:
        return ("--nnodes", f"1:{scenario.hosts}", "--rdzv-backend", "c10d", "--rdzv-id", "chaos", "--rdzv-endpoint",
                f"{address(0)}:{PORT}")  # fmt: skip
    return ("--nnodes", str(scenario.hosts), "--node-rank", str(host), "--master-addr", address(0), "--master-port",
            str(PORT))  # fmt: skip


def _environment(scenario: Scenario) -> Mapping[str, str]:
    meeting = {"GLOO_SOCKET_IFNAME": DEVICE, "TP_SOCKET_IFNAME": DEVICE} if scenario.hosts > 1 else {}
    engine = {"DS_ACCELERATOR": "cpu"} if scenario.mode.startswith("zero") else {}
    return {**settings.environment(), "OMP_NUM_THREADS": "1", "COLUMNS": "120", **PATIENCE, **meeting, **engine}


def play(scenario: Scenario, folder: Path, *, limit_s: float = LIMIT_S) -> Played:
    """Play the scenario in ``folder``, which is empty, and tell what was seen.

    Takes as long as the job does, at most ``limit_s`` for each submission; what lives then is killed.

    Raises:
        BadValue: the scenario wants what this machine does not allow.
    """
    spec = find_spec("holdfast.runtime.chaos_trainer")
    shutil.copy(str(spec and spec.origin), folder / "train.py")
    with place(scenario, folder) as (words, hosts):
        try:
            return _play(scenario, folder, words, hosts, limit_s)
        finally:  # what was found there has been told by now, or somebody interrupts
            for name in _shared(folder, set()):
                shutil.rmtree(_SHM / name, ignore_errors=True)


def _play(scenario: Scenario, folder: Path, words: Sequence[str], hosts: Sequence[Host], limit_s: float) -> Played:
    began = time.monotonic()
    met: set[int] = set()
    jobs: list[Job] = []
    statuses: list[int | None] = []
    struck: list[str] = []
    for number in range(2 if scenario.apart_at and not scenario.elastic else scenario.starts):
        job = Job(scenario, folder, number, words, hosts)
        jobs.append(job)
        waiting = list(scenario.blows) if number == 0 else []
        statuses.append(_until_the_end(job, waiting, struck, met, limit_s))
        for host in hosts:
            host.mend()
    took_s = time.monotonic() - began
    left = _left(folder)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return Played(
        statuses=tuple(statuses), reports=tuple(job.report for job in jobs), traces=_traces(folder),
        ledgers=tuple(job.records for job in jobs), processes=tuple(_named(process) for process in left),
        shared=(*_shared(folder, met), *_shared_on(hosts, jobs[-1].lost)), struck=tuple(struck),
        output="".join(job.output for job in jobs), took_s=took_s,
    )  # fmt: skip


def _until_the_end(job: Job, waiting: list[Blow], struck: list[str], met: set[int], limit_s: float) -> int | None:
    """Watch and strike until the job's own processes end; its status, None where it had to be killed."""
    until = time.monotonic() + limit_s
    due: dict[int, float] = {}
    try:
        while (status := job.status) is None:
            met |= {process.pid for process in _living(job.folder)}
            now = time.monotonic()
            if now > until:
                return None
            job.end_if_halved()
            for blow in [blow for blow in waiting if _is_due(blow, job, met)]:
                if now >= due.setdefault(id(blow), now + blow.delay_s):
                    waiting.remove(blow)
                    struck.append(f"{blow.kind}: {BLOWS[blow.kind](job, blow)}")
            time.sleep(_LOOK_S)
        return status
    finally:  # also where somebody interrupts
        if job.status is None:
            power_off(job)
            for agent in job.agents:
                agent.wait()


def _is_due(blow: Blow, job: Job, met: set[int]) -> bool:
    if blow.what == "submitted":
        return True
    if blow.what == "start":
        return job.run(0) is not None and len(met) > _BESIDE_RANKS
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


def _shared_on(hosts: Sequence[Host], lost: set[int]) -> Iterator[str]:
    """All names in shared memory of the hosts; what a lost one had went with it."""
    for host in hosts:
        if host.number not in lost:
            yield from host.shared()


def _shared(folder: Path, met: set[int]) -> Iterator[str]:
    """Names in shared memory that carry the name of one of the runs, or of a process of the job (torch's loaders)."""
    runs = [path.name for base in folder.glob("runs*") for path in _entries(base)]
    for path in sorted(_entries(_SHM)):
        if any(run in path.name for run in runs) or any(path.name.startswith(f"torch_{pid}_") for pid in met):
            yield path.name
