"""Run a script with 1, 2, 4, … processes on this host; measure speed, efficiency and memory.

Each rung is one ``holdfast run``: its recorder counts the steps of the unchanged script, and its
verdict names the cause if it fails. Steps are counted from the end of the warm-up, in rank 0's
trace file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import verdicts
from holdfast.core.errors import TraceUnreadable
from holdfast.core.findings import Unknown, Verdict
from holdfast.host import line_rates
from holdfast.host.gpus.driver import query_driver
from holdfast.host.processes.proc import PROC
from holdfast.watcher.trace_reader import StepSlot, TraceReading

QUESTION = "how does throughput grow with the number of processes?"
_POLL_S, _MEMORY_EVERY_S, _STOP_S = 0.05, 0.5, 60.0
#: Called with the number of processes, the steps so far, and the seconds since the rung began.
ProgressCallback = Callable[[int, int, float], None]


class ScalingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: each rung is measured for ``seconds`` after ``warmup`` steps.

    A rung fails if its warm-up takes longer than ``within_s``. ``global_batch``: the script divides
    one batch among the processes (strong scaling); otherwise each process has a batch of its own.
    """

    script: str
    arguments: tuple[str, ...] = ()
    processes: tuple[int, ...] = (1, 2, 4, 8)
    warmup: int = 10
    seconds: float = 20.0
    within_s: float = 300.0
    global_batch: bool = False
    folder: Path


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One number of processes: its speed, efficiency, and memory of the largest process.

    ``throughput`` is in batches of one process per second, or in global batches. ``efficiency`` is
    the throughput per process relative to the smallest rung (for a global batch as well). Without
    a ``failure``, all numbers but those of the memory are known.
    """

    processes: int
    steps: int = 0
    seconds: float = 0.0
    steps_per_s: float | None = None
    throughput: float | None = None
    efficiency: float | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    failure: str = ""
    run_folder: str = ""


class ScalingResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rungs up to the first failure, and the verdict on that one."""

    rungs: tuple[Rung, ...]
    verdict: Verdict
    threads: int

    @property
    def first_failure(self) -> Rung | None:
        """Return the smallest number of processes that failed; None if all succeeded."""
        return next((rung for rung in self.rungs if rung.failure), None)

    @property
    def exit_status(self) -> int:
        """Return 0, or 1 if a rung failed."""
        return 1 if self.first_failure else 0


def run_ladder(
    request: ScalingRequest,
    environ: Mapping[str, str],
    *,
    on_rung: Callable[[Rung], None] = lambda _: None,
    on_progress: ProgressCallback = lambda *_: None,
) -> ScalingResult:
    """Run the rungs in order, up to the first that fails.

    On a host with GPUs, rungs of more processes than GPUs are left out.
    """
    gpus = len(line_rates.kernel_gpu_ids()) if line_rates.has_gpu_driver() else 0
    chosen = [count for count in request.processes if not gpus or count <= gpus]
    unseen = tuple(
        f"{count} processes: this host has {gpus} GPUs"
        for count in request.processes
        if count not in chosen
    )
    threads = max(1, len(os.sched_getaffinity(0)) // max(chosen, default=1))
    # The same number in all rungs: torchrun sets 1 for several processes, but not for one.
    variables = {"OMP_NUM_THREADS": str(threads), **environ}
    rungs: list[Rung] = []
    verdict = verdicts.host_verdict((), unseen, QUESTION)
    for count in chosen:
        job = _RungJob(request, count, variables)
        rung = _compare(job.measure(on_progress), rungs, global_batch=request.global_batch)
        rungs.append(rung)
        on_rung(rung)
        if rung.failure:
            verdict = job.verdict or verdict
            break
    return ScalingResult(
        rungs=tuple(rungs), verdict=verdict, threads=int(variables["OMP_NUM_THREADS"] or threads)
    )


def _compare(rung: Rung, earlier: list[Rung], *, global_batch: bool) -> Rung:
    """Return the rung with throughput, and efficiency relative to the smallest one."""
    if rung.steps_per_s is None:
        return rung
    throughput = rung.steps_per_s * (1 if global_batch else rung.processes)
    base = next((each for each in earlier if each.throughput), None)
    efficiency = 1.0
    if base is not None and base.throughput:
        efficiency = (throughput / rung.processes) / (base.throughput / base.processes)
    return msgspec.structs.replace(rung, throughput=throughput, efficiency=efficiency)


class _RungJob:
    """One ``holdfast run`` of the script."""

    def __init__(self, request: ScalingRequest, processes: int, environ: Mapping[str, str]) -> None:
        self._request, self._processes, self._environ = request, processes, environ
        self._folder = request.folder / f"{processes}-processes"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._report = self._folder / "report.json"
        self._traces: dict[Path, TraceReading] = {}
        self._memory_bytes: int | None = None
        self._gpu_memory_bytes: int | None = None
        self._begin: StepSlot | None = None
        self.verdict: Verdict | None = None

    def measure(self, on_progress: ProgressCallback) -> Rung:
        """Run until enough steps were measured, the job ended, or the warm-up took too long."""
        with (self._folder / "output.log").open("wb") as log:
            job = subprocess.Popen(
                self._command(),
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                stopped = self._observe(job, on_progress)
            finally:
                self._end(job)
        return self._rung(None if stopped else job.returncode)

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "holdfast", "run", "--standalone"),
            *("--nproc-per-node", str(self._processes), "--spares", "off"),
            *("--run-dir", str(self._folder), "--json-report", str(self._report)),
            *(self._request.script, *self._request.arguments),
        ]

    def _observe(self, job: subprocess.Popen[bytes], on_progress: ProgressCallback) -> bool:
        """Return whether the job was still running when it had been measured long enough."""
        request, began, next_memory = self._request, time.monotonic(), 0.0
        while job.poll() is None:
            now = time.monotonic()
            slot = self._step()
            if now >= next_memory:
                self._read_memory()
                next_memory = now + _MEMORY_EVERY_S
            if slot is not None:
                on_progress(self._processes, slot.counted, now - began)
                if self._begin is None and slot.counted > request.warmup:
                    self._begin = slot
            if (
                self._begin is not None
                and slot
                and slot.since - self._begin.since >= request.seconds
            ):
                self._read_memory()
                self._read_gpu_memory()
                return True
            if self._begin is None and now - began > request.within_s:
                return True
            time.sleep(_POLL_S)
        return False

    def _step(self) -> StepSlot | None:
        """Return rank 0's current step; None before it has begun one."""
        if not self._traces:
            self._open_traces()
        first = next((each for each in self._traces.values() if each.header.rank == 0), None)
        slot = first.step() if first is not None else None
        return slot if slot is not None and slot.counted else None

    def _open_traces(self) -> None:
        """Map the trace files once all ranks have written theirs; they stay readable."""
        found: dict[Path, TraceReading] = {}
        for run in self._folder.glob("*/run.json"):
            with suppress(OSError, msgspec.DecodeError, TraceUnreadable, KeyError, TypeError):
                traces = Path(msgspec.json.decode(run.read_bytes())["traces"])
                found |= {path: TraceReading(path) for path in traces.glob("rank*.trace")}
        if len(found) == self._processes:
            self._traces = found

    def _pids(self) -> Iterator[int]:
        return (each.header.pid for each in self._traces.values())

    def _read_memory(self) -> None:
        """Keep the peak resident memory of the largest process."""
        peaks = [peak for pid in self._pids() if (peak := _peak_memory(pid)) is not None]
        self._memory_bytes = max([*peaks, self._memory_bytes or 0]) or None

    def _read_gpu_memory(self) -> None:
        report = query_driver() if line_rates.has_gpu_driver() else Unknown("no GPU")
        if isinstance(report, Unknown):
            return
        pids = set(self._pids())
        used = [
            process.memory_bytes
            for gpu in report.gpus
            for process in (() if isinstance(gpu.processes, Unknown) else gpu.processes)
            if process.pid in pids and process.memory_bytes is not None
        ]
        self._gpu_memory_bytes = max(used, default=None)

    def _end(self, job: subprocess.Popen[bytes]) -> None:
        """End the launcher, which ends its workers; its watcher ends those of a killed launcher."""
        if job.poll() is None:
            job.terminate()
            try:
                job.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()

    def _rung(self, status: int | None) -> Rung:
        """Return the measurement; ``status`` is that of a job that ended by itself."""
        begin, end = self._begin, self._step()
        steps = end.counted - begin.counted if begin is not None and end is not None else 0
        seconds = end.since - begin.since if begin is not None and end is not None else 0.0
        failure = self._failure(status, end.counted if end is not None else 0, steps)
        return Rung(
            processes=self._processes,
            steps=steps,
            seconds=seconds,
            steps_per_s=None if failure or not seconds else steps / seconds,
            memory_bytes=self._memory_bytes,
            gpu_memory_bytes=self._gpu_memory_bytes,
            failure=failure,
            run_folder=str(self._folder),
        )

    def _failure(self, status: int | None, counted: int, measured: int) -> str:
        """Return what failed, empty if nothing did."""
        if status:
            self.verdict = self._read_verdict()
            root = self.verdict.root if self.verdict is not None else None
            return (
                f"{root.message} ({root.code} {root.cause})"
                if root
                else (f"the job ended with status {status}; see {self._folder / 'output.log'}")
            )
        if self._begin is None and status is None:
            return (
                f"{counted} steps within {self._request.within_s:g} s, and the warm-up has "
                f"{self._request.warmup}"
            )
        if not measured:
            return (
                f"the script ended after {counted} steps, and the warm-up has "
                f"{self._request.warmup}: let it run longer, or lower --warmup"
            )
        return ""

    def _read_verdict(self) -> Verdict | None:
        try:
            return msgspec.convert(
                msgspec.json.decode(self._report.read_bytes())["verdict"], Verdict
            )
        except (OSError, msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
            return None


def _peak_memory(pid: int) -> int | None:
    """Return the peak resident memory of a process in bytes; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
