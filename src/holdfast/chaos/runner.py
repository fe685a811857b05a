"""Starts a scenario's job as a user would, injects external faults, and collects the results."""

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

from holdfast.chaos.assessment import ScenarioRun, TraceRecord
from holdfast.chaos.environment import scenario_environment
from holdfast.chaos.external_faults import EXTERNAL_FAULTS, PORT, power_off
from holdfast.chaos.network_hosts import DEVICE, NetworkHost, host_address
from holdfast.chaos.scenario import PHASE_TIMEOUTS, SAVE_EVERY, STEPS, ExternalFault, Scenario
from holdfast.core import ledger, settings
from holdfast.core.errors import HoldfastError
from holdfast.core.ledger import LedgerRecord

#: A submission takes 10 to 20 s, on a busy machine ten times as long.
LIMIT_S = 240.0
#: Output of an agent that waits for other nodes.
_WAITING_TEXT = "waiting for the other nodes to join"
RESTARTS = 4
_POLL_S = 0.05
#: Time for killed processes to be reaped.
_REAP_S = 5.0
#: Agent and watcher; every other process in the folder is a rank.
_BESIDE_RANKS = 2
_SHM = Path("/dev/shm")  # noqa: S108 - where leftovers would be


class ScenarioJob:
    """One submission of the job in ``folder``; constructing it starts it on all hosts."""

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        number: int,
        command_prefix: Sequence[str] = (),
        hosts: Sequence[NetworkHost] = (),
    ) -> None:
        self.folder, self.number, self.hosts = folder, number, hosts
        self.lost: set[int] = set()
        self._elastic, self._stopped = scenario.elastic, False
        self._reports = [folder / f"report{number}.{host}.json" for host in range(scenario.hosts)]
        self._runs = [set(_entries(folder / f"runs{host}")) for host in range(scenario.hosts)]
        self._output_paths = [
            folder / f"output{number}.{host}.txt" for host in range(scenario.hosts)
        ]
        self.agents = [
            self._start(scenario, host, command_prefix) for host in range(scenario.hosts)
        ]

    def _start(
        self, scenario: Scenario, host: int, command_prefix: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        inject: list[str] = []
        if self.number == 0:
            inject = [part for text in scenario.inject for part in ("--inject", text)]
        ranks, steps = scenario.ranks // scenario.hosts, STEPS
        if scenario.shrink_after and not scenario.elastic:  # undisturbed: fewer ranks afterwards
            ranks, steps = (
                (ranks, scenario.shrink_after) if self.number == 0 else (ranks - 1, STEPS)
            )
        command = [
            *command_prefix,
            *(self.hosts[host].command_prefix if self.hosts else ()),
            "env",
            f"--chdir={self.folder}",
            sys.executable,
            *f"-m holdfast run --run-dir runs{host}".split(),
            *f"--json-report {self._reports[host].name} --max-restarts {RESTARTS}".split(),
            *f"--nproc-per-node {ranks} {_rendezvous_options(scenario, host)}".split(),
            *inject,
            *scenario.options,
            *f"train.py --mode {scenario.mode} --steps {steps} --save-every {SAVE_EVERY}".split(),
            f"--submission={self.number}",
            *scenario.trainer,
        ]
        with self._output_paths[host].open("wb") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(scenario),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, host: int = 0) -> Path | None:
        """Return the run folder on that host; None before it exists."""
        new = _entries(self.folder / f"runs{host}") - self._runs[host]
        runs = [path for path in new if (path / "run.json").exists()]  # others are shared data
        return min(runs, default=None)  # names sort by time; a later submission may have one, too

    def mark_lost(self, host: int) -> None:
        """Expect nothing further from the agent of that host."""
        self.lost.add(host)

    def stop_stranded_agents(self) -> None:
        """Stop agents that wait for a node that will not return, as a scheduler does."""
        exited = [agent.poll() is not None for agent in self.agents]
        if self._elastic or self._stopped or not any(exited) or all(exited):
            return
        if all(
            agent_exited or _WAITING_TEXT in path.read_text(errors="replace")
            for agent_exited, path in zip(exited, self._output_paths, strict=True)
        ):
            self._stopped = True
            for agent in self.agents:
                agent.terminate()

    @property
    def status(self) -> int | None:
        """Return the first non-zero status of hosts not lost; None: still running."""
        statuses = [agent.poll() for agent in self.agents]
        if any(status is None for status in statuses):
            return None
        return next(
            (status for host, status in enumerate(statuses) if status and host not in self.lost), 0
        )

    @property
    def records(self) -> Sequence[LedgerRecord]:
        """Return the ledger of the first host that has one."""
        for host in range(len(self.agents)):
            with suppress(HoldfastError):
                if host not in self.lost and (run := self.run(host)) is not None:
                    return ledger.read_ledger(run)
        return ()

    @property
    def traces(self) -> dict[int, Sequence[TraceRecord]]:
        """Return what each rank did so far, in all submissions."""
        return _read_traces(self.folder)

    def live_processes(self) -> Iterator[psutil.Process]:
        """Return all processes whose working directory is the folder."""
        return _live_processes(self.folder)

    @property
    def output(self) -> str:
        """Return the job's output."""
        return "".join(path.read_text(errors="replace") for path in self._output_paths)

    @property
    def report(self) -> Mapping[str, Any]:
        """Return the JSON report of the first host that was not lost; empty if there is none."""
        for host, path in enumerate(self._reports):
            with suppress(OSError, msgspec.DecodeError):
                if host not in self.lost:
                    report: Mapping[str, Any] = msgspec.json.decode(path.read_bytes())
                    return report
        return {}


def _rendezvous_options(scenario: Scenario, host: int) -> str:
    """Return the rendezvous options: a fixed number of nodes, or elastic."""
    if scenario.hosts == 1:
        return "--standalone"
    leader = host_address(0)
    if scenario.elastic:
        endpoint = f"--rdzv-backend c10d --rdzv-id chaos --rdzv-endpoint {leader}:{PORT}"
        return f"--nnodes 1:{scenario.hosts} {endpoint}"
    nodes = f"--nnodes {scenario.hosts} --node-rank {host}"
    return f"{nodes} --master-addr {leader} --master-port {PORT}"


def _environment(scenario: Scenario) -> Mapping[str, str]:
    interfaces = (
        {"GLOO_SOCKET_IFNAME": DEVICE, "TP_SOCKET_IFNAME": DEVICE} if scenario.hosts > 1 else {}
    )
    engine = {"DS_ACCELERATOR": "cpu"} if scenario.mode.startswith("zero") else {}
    return {
        **settings.current_environment(),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        **PHASE_TIMEOUTS,
        **interfaces,
        **engine,
    }


def run_scenario(scenario: Scenario, folder: Path, *, limit_s: float = LIMIT_S) -> ScenarioRun:
    """Run the scenario in ``folder``, which must be empty.

    Takes as long as the job, at most ``limit_s`` seconds per submission; then it is killed.

    Raises:
        InvalidValue: this machine does not support the scenario.
    """
    spec = find_spec("holdfast.chaos.torch_trainer")
    shutil.copy(str(spec and spec.origin), folder / "train.py")
    with scenario_environment(scenario, folder) as (command_prefix, hosts):
        try:
            return _run_submissions(scenario, folder, command_prefix, hosts, limit_s)
        finally:  # recorded by now, or interrupted
            for name in _shared_memory_names(folder, set()):
                shutil.rmtree(_SHM / name, ignore_errors=True)


def _run_submissions(
    scenario: Scenario,
    folder: Path,
    command_prefix: Sequence[str],
    hosts: Sequence[NetworkHost],
    limit_s: float,
) -> ScenarioRun:
    began = time.monotonic()
    job_pids: set[int] = set()
    jobs: list[ScenarioJob] = []
    statuses: list[int | None] = []
    applied_faults: list[str] = []
    for number in range(
        2 if scenario.shrink_after and not scenario.elastic else scenario.submissions
    ):
        job = ScenarioJob(scenario, folder, number, command_prefix, hosts)
        jobs.append(job)
        pending = list(scenario.external_faults) if number == 0 else []
        statuses.append(_watch_until_end(job, pending, applied_faults, job_pids, limit_s))
        for host in hosts:
            host.heal()
    took_s = time.monotonic() - began
    left = _leftover_processes(folder)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return ScenarioRun(
        statuses=tuple(statuses),
        reports=tuple(job.report for job in jobs),
        traces=_read_traces(folder),
        ledgers=tuple(job.records for job in jobs),
        processes=tuple(_describe_process(process) for process in left),
        shared_memory=(
            *_shared_memory_names(folder, job_pids),
            *_host_shared_memory(hosts, jobs[-1].lost),
        ),
        applied_faults=tuple(applied_faults),
        output="".join(job.output for job in jobs),
        took_s=took_s,
    )


def _watch_until_end(
    job: ScenarioJob,
    pending: list[ExternalFault],
    applied_faults: list[str],
    job_pids: set[int],
    limit_s: float,
) -> int | None:
    """Inject faults until the job ends; return its status, None if it was killed."""
    until = time.monotonic() + limit_s
    due: dict[int, float] = {}
    try:
        while (status := job.status) is None:
            job_pids |= {process.pid for process in _live_processes(job.folder)}
            now = time.monotonic()
            if now > until:
                return None
            job.stop_stranded_agents()
            for fault in [fault for fault in pending if _is_due(fault, job, job_pids)]:
                if now >= due.setdefault(id(fault), now + fault.delay_s):
                    pending.remove(fault)
                    applied_faults.append(
                        f"{fault.kind}: {EXTERNAL_FAULTS[fault.kind](job, fault)}"
                    )
            time.sleep(_POLL_S)
        return status
    finally:  # also on an interrupt
        if job.status is None:
            power_off(job)
            for agent in job.agents:
                agent.wait()


def _is_due(fault: ExternalFault, job: ScenarioJob, job_pids: set[int]) -> bool:
    if fault.what == "submitted":
        return True
    if fault.what == "start":
        return job.run(0) is not None and len(job_pids) > _BESIDE_RANKS
    facts = (fact for trace in job.traces.values() for fact in trace)
    return any(fact.what == fault.what and fact.step >= fault.step for fact in facts)


def _read_traces(folder: Path) -> dict[int, Sequence[TraceRecord]]:
    traces: dict[int, Sequence[TraceRecord]] = {}
    for path in sorted(folder.glob("trace-rank*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        rank = int(path.stem.removeprefix("trace-rank"))
        traces[rank] = tuple(
            msgspec.json.decode(line, type=TraceRecord) for line in lines if line.endswith(b"\n")
        )
    return traces


def _entries(folder: Path) -> set[Path]:
    with suppress(OSError):
        return set(folder.iterdir())
    return set()


def _live_processes(folder: Path) -> Iterator[psutil.Process]:
    """Yield all processes working in ``folder``, whatever their parent is."""
    wanted = str(folder.resolve())
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd() == wanted and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _leftover_processes(folder: Path) -> list[psutil.Process]:
    until = time.monotonic() + _REAP_S
    while (processes := list(_live_processes(folder))) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return processes


def _describe_process(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    return str(process.pid)


def _host_shared_memory(hosts: Sequence[NetworkHost], lost: set[int]) -> Iterator[str]:
    """Yield names in shared memory of all hosts that were not lost."""
    for host in hosts:
        if host.number not in lost:
            yield from host.shared_memory()


def _shared_memory_names(folder: Path, job_pids: set[int]) -> Iterator[str]:
    """Yield shared-memory names of the runs, or of the job's processes (torch's loaders)."""
    runs = [path.name for base in folder.glob("runs*") for path in _entries(base)]
    for path in sorted(_entries(_SHM)):
        if any(run in path.name for run in runs) or any(
            path.name.startswith(f"torch_{pid}_") for pid in job_pids
        ):
            yield path.name
