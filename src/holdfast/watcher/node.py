"""Observes the ranks of one node from outside: cheaply all the time, closely while they are silent.

Each node reports a :class:`.JobSummary` of its ranks; the leader combines them into one table.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from holdfast.core import trace_file
from holdfast.core.errors import TraceUnreadable
from holdfast.core.findings import Fact, Unknown
from holdfast.core.rank_table import (
    ProcessGroupInfo,
    ProcessState,
    RaisedException,
    RankState,
    ThreadStack,
)
from holdfast.core.text import shorten
from holdfast.host.host_summary import gpu_models
from holdfast.host.memory_kills import read_kill_counters, was_oom_killed
from holdfast.host.processes import child_processes, inspection, python_stacks
from holdfast.host.processes.child_processes import ChildrenUsage, ChildrenWatch
from holdfast.host.processes.inspection import Activity, ProcessSample
from holdfast.watcher.agent_messages import DumpLocation, StackAnswer, StackQuestion
from holdfast.watcher.call_latency import CallLatencies
from holdfast.watcher.flight_recorder import completion
from holdfast.watcher.flight_recorder.dump_requests import DumpRequests
from holdfast.watcher.job_summary import JobSummary, agree_on_groups
from holdfast.watcher.repeated_stacks import RepeatedStacks
from holdfast.watcher.rules.helper_threads import thread_at_work
from holdfast.watcher.rules.roots import CRASHES
from holdfast.watcher.rules.stall import BUSY_CPU_SHARE, same_stack
from holdfast.watcher.trace_reader import STEP_CALLS, TraceReading, step_seconds
from holdfast.watcher.tracebacks import read_crash, read_exception, stderr_file
from holdfast.watcher.wait_times import WaitTimes

#: Recent calls per rank in a close observation, and in all ranks together: it bounds the leader's
#: table.
RECENT_CALLS = 256
RECENT_CALLS_OF_ALL = 1 << 16
STACK_LIMIT_S = 1.5
#: Frames of a stack that somebody asked for, and characters of each: it goes through the store.
MAX_FRAMES, MAX_FRAME = 128, 200
#: The outermost frames of a worker: the script starts above them.
BOOTSTRAP = "/holdfast/recorder/bootstrap.py"
STEPS_EVERY_S = 5.0
#: Steps from which the longest one is left out of the step time.
MIN_STEPS = 8
CHILDREN_EVERY_S = 1.0
#: A child that exited earlier before the silence than this belongs to another epoch.
CHILD_MARGIN_S = 5.0
#: A rank that advanced within this time is running; /proc is not read.
TRUSTED_S = 2.0


@dataclass(frozen=True)
class WorkerProcess:
    """A local rank: its process, its trace file, and where its flight recorder dumps to."""

    rank: int
    pid: int
    trace: Path
    dumps: DumpLocation | None = None


class NodeSensor:
    """Observes the local ranks of one generation.

    ``window_s``: seconds over which the time in collectives is measured; 0 disables it.
    """

    def __init__(
        self, workers: Sequence[WorkerProcess], world_size: int, window_s: float = 0.0
    ) -> None:
        self._wait_times = WaitTimes(window_s)
        self._latencies = CallLatencies()
        self._ranks = {worker.rank: _RankSensor(worker) for worker in workers}
        self._world_size = world_size
        self._recent = max(4, min(RECENT_CALLS, RECENT_CALLS_OF_ALL // max(world_size, 1)))

    def set_exit_codes(self, codes: Mapping[int, int]) -> None:
        """Store the exit codes that the agent collected; negative: ended by that signal."""
        for rank, code in codes.items():
            if rank in self._ranks:
                self._ranks[rank].set_exit_code(code)

    def new_warnings(self) -> list[tuple[int, str, str]]:
        """Return the warnings of ranks since the last call: rank, topic, sentence."""
        return [
            (number, *warning)
            for number, rank in self._ranks.items()
            for warning in rank.new_warnings()
        ]

    def children(self) -> list[int]:
        """Return the living children of the ranks when they were last listed."""
        return [pid for rank in self._ranks.values() for pid in rank.children.living]

    def observe(self) -> JobSummary:
        """Read trace files and process states, without stacks."""
        traces = {
            number: rank.trace for number, rank in self._ranks.items() if rank.trace is not None
        }
        self._wait_times.measure(traces, time.time())
        summary = self._summary([self._with_times(rank) for rank in self._ranks.values()])
        latencies = self._latencies.measure(traces, summary.groups, summary.time)
        return replace(summary, timings=self._wait_times.timings, latencies=latencies)

    def _with_times(self, rank: _RankSensor) -> RankState:
        """Return the state of ``rank`` with its times in the newest window."""
        state = rank.state()
        loader, collector = self._wait_times.host_shares(state.rank)
        self._wait_times.sample_phase(state.rank, in_phase=state.phase is not None)
        return replace(
            state,
            waits=self._wait_times.slices(state.rank),
            device=rank.device(),
            loader_share=loader,
            collector_share=collector,
            extra_work=self._wait_times.extra_work(state.rank),
        )

    def observe_closely(self, *, stacks: bool = True) -> JobSummary:
        """Add recent calls and, with ``stacks``, one stack sample per rank, within a time limit.

        With the stacks, ranks whose backend does not report completion get a request for a
        flight-recorder dump; a later observation reads it.
        """
        self._sample(stacks=stacks)
        return self._summary([rank.detailed_state(self._recent) for rank in self._ranks.values()])

    def _sample(self, *, stacks: bool) -> None:
        living = [rank for rank in self._ranks.values() if rank.exit_code is None]
        for rank in living:
            rank.processes.append(inspection.sample_process(rank.worker.pid))
            rank.children_usage.append(child_processes.total_usage(rank.worker.pid))
        if stacks:
            self.request_dumps()
            stack_files = {rank.worker.pid: Path(f"{rank.worker.trace}.stacks") for rank in living}
            samples = _sample_stacks(stack_files)
            for rank in living:
                rank.add_sample(samples[rank.worker.pid])

    def sample_stack(self, question: StackQuestion) -> StackAnswer:
        """Return where a local rank is now: its innermost frames, within STACK_LIMIT_S."""
        sensor = self._ranks.get(question.rank)
        if sensor is None or sensor.exit_code is not None:
            return StackAnswer(nonce=question.nonce, why="its process has ended")
        pid = sensor.worker.pid
        stack = _main_stack(_sample_stacks({pid: Path(f"{sensor.worker.trace}.stacks")})[pid])
        if isinstance(stack, Unknown):
            return StackAnswer(nonce=question.nonce, why=stack.why)
        frames = (shorten(str(frame), MAX_FRAME) for frame in stack.frames[:MAX_FRAMES])
        return StackAnswer(nonce=question.nonce, frames=tuple(frames))

    def request_dumps(self) -> None:
        """Request dumps from living ranks where they help; a later observation reads them."""
        for rank in self._ranks.values():
            if rank.exit_code is None:
                rank.request_dump()

    def _summary(self, states: list[RankState]) -> JobSummary:
        groups, states = agree_on_groups(
            [(state, self._ranks[state.rank].groups()) for state in states]
        )
        facts = next((rank.facts() for rank in self._ranks.values() if rank.trace is not None), ())
        newest = max((state.progress for state in states), default=time.time())
        return JobSummary(tuple(states), groups, self._world_size, newest, time.time(), facts)


def _sample_stacks(
    stack_files: Mapping[int, Path],
) -> Mapping[int, tuple[ThreadStack, ...] | Unknown]:
    return python_stacks.sample_many_stacks(
        stack_files, timeout_s=STACK_LIMIT_S, fallback_signal=trace_file.STACK_SIGNAL
    )


def _main_stack(threads: tuple[ThreadStack, ...] | Unknown) -> ThreadStack | Unknown:
    if isinstance(threads, Unknown):
        return threads
    return _without_launcher(python_stacks.main_thread(threads))


def _without_launcher(stack: ThreadStack | Unknown) -> ThreadStack | Unknown:
    """Cut off the outermost frames, those of the bootstrap."""
    if isinstance(stack, Unknown):
        return stack
    cut = next(
        (at for at, frame in enumerate(stack.frames) if frame.file.endswith(BOOTSTRAP)),
        len(stack.frames),
    )
    return replace(stack, frames=stack.frames[:cut] or stack.frames)


class _RankSensor:
    """Observations of one local rank so far."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.exit_code: int | None = None
        self.exited = 0.0
        self.trace: TraceReading | None = None
        self.processes: deque[ProcessSample | Unknown] = deque(maxlen=2)
        self.children_usage: deque[ChildrenUsage] = deque(maxlen=2)
        self.stacks: deque[ThreadStack | Unknown] = deque(maxlen=2)
        self._helper: ThreadStack | None = None
        self._active = 0.0
        self._repeated = RepeatedStacks()
        self._repeated_since = 0.0
        self._trace_error = "its trace file does not exist yet"
        self.children = ChildrenWatch(worker.pid)
        self._children_at = 0.0
        self._memory_bytes: int | None = None
        self._started = time.time()
        self._memory = read_kill_counters(worker.pid)
        self._steps_at = 0.0
        self._p99: float | None = None
        self._dumps = DumpRequests(worker.pid, worker.dumps) if worker.dumps is not None else None
        self._begun_calls = 0
        self._warnings_returned = 0
        self._stderr = stderr_file(worker.pid)
        self._printed: RaisedException | None = None
        self._device = ""
        self._facts: tuple[Fact, ...] = ()

    def _open(self) -> TraceReading | None:
        if self.trace is None and self.worker.trace.exists():
            # A standby worker gets its stderr when it becomes a rank.
            self._stderr = stderr_file(self.worker.pid) or self._stderr
            try:
                self.trace = TraceReading(self.worker.trace)
            except TraceUnreadable as error:
                self._trace_error = str(error)
        return self.trace

    def set_exit_code(self, code: int) -> None:
        """Store the exit code; after a failure, read the exception that the rank printed."""
        if self.exit_code is None:
            self.exited = time.time()
            aborted = code == -signal.SIGABRT
            if self._stderr is not None and (code > 0 or aborted):
                self._printed = read_exception(self._stderr, aborted=aborted)
            if -code in CRASHES:
                self._read_crash()
        self.exit_code = code

    def _read_crash(self) -> None:
        """Store the stack at which the rank crashed, from our faulthandler or the script's."""
        files = (Path(f"{self.worker.trace}.stacks"), self._stderr)
        found = next((stack for file in files if file and (stack := read_crash(file))), None)
        if found is not None:
            self.add_stack(_without_launcher(found))

    def groups(self) -> dict[str, ProcessGroupInfo]:
        """Return the process groups of this rank."""
        return self.trace.groups() if self.trace is not None else {}

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts in the trace file."""
        facts = self.trace.read_notes().facts if self.trace is not None else []
        if len(facts) != len(self._facts):
            self._facts = tuple(msgspec.convert(fact, Fact, strict=False) for fact in facts)
            self._device = gpu_models(fact.text for fact in self._facts)
        return self._facts

    def device(self) -> str:
        """Return the model of the GPUs of this host; of several models, all."""
        self.facts()
        return self._device

    def new_warnings(self) -> list[tuple[str, str]]:
        """Return the warnings since the last call."""
        if self.trace is None:
            return []
        warnings = self.trace.read_notes().warnings[self._warnings_returned :]
        self._warnings_returned += len(warnings)
        return warnings

    def state(self) -> RankState:
        """Return the state without stacks."""
        trace = self._open()
        self._remember_children()
        if trace is None:
            return RankState(
                rank=self.worker.rank,
                pid=self.worker.pid,
                life=self._process_state(0.0),
                exit_code=self.exit_code,
                started=self._started,
                progress=self._started,
                raised=self._printed,
                exited=self.exited,
                unseen=(self._trace_error,),
                memory_bytes=self._memory_bytes,
            )
        notes, step = trace.read_notes(), trace.step()
        progress = max(
            trace.last_change(),
            step.since if step.counted else 0.0,
            notes.ended.time if notes.ended else 0.0,
            self._last_completion(trace),
        )
        return RankState(
            rank=self.worker.rank,
            host=trace.header.host,
            pid=self.worker.pid,
            life=self._process_state(progress),
            exit_code=self.exit_code,
            started=trace.header.started,
            progress=progress,
            step=step.number if step.counted else None,
            counted=step.counted,
            saved=notes.saved,
            saved_at=notes.saved_at,
            loaded=notes.loaded,
            preempted=notes.preempted,
            trouble=notes.troubles[-1] if notes.troubles else None,
            phase=step.phase or None,
            phase_budget_s=step.budget_s if step.phase else None,
            phase_since=step.phase_since if step.phase else 0.0,
            step_p99_s=self._step_p99(trace),
            groups=trace.progress(),
            pending=tuple(trace.pending()),
            raised=notes.raised or self._printed,
            ended=notes.ended,
            exited=self.exited,
            memory_bytes=self._memory_bytes,
        )

    def detailed_state(self, calls: int) -> RankState:
        """Return the state with the newest ``calls``, the stacks and the last two samples."""
        if self._dumps is not None:
            self._dumps.read()
        state = self._with_completion(self.state())
        self._discard_old_samples(state.progress)
        stacks = [stack for stack in self.stacks if isinstance(stack, ThreadStack)]
        unseen = [stack.why for stack in list(self.stacks)[-1:] if isinstance(stack, Unknown)]
        samples = [sample for sample in self.processes if isinstance(sample, ProcessSample)]
        activity = inspection.compare_samples(*samples) if len(samples) == 2 else None
        children_share = child_processes.cpu_share(*self.children_usage)
        self._note_activity(activity, children_share)
        return replace(
            state,
            recent=tuple(self.trace.recent(calls)) if self.trace is not None else (),
            stacks=tuple(stacks),
            helper=self._helper if stacks else None,
            unseen=(*state.unseen, *unseen),
            children=self.children.sample(since=state.progress - CHILD_MARGIN_S),
            cpu_share=activity.cpu_share if activity else None,
            io_bytes=activity.io_bytes if activity else None,
            runnable=len(samples) == 2 and all(sample.state == "R" for sample in samples),
            children_cpu_share=children_share,
            steady=self._repeated.steady_lines(),
            active=self._active,
            blocked_on=samples[-1].blocked_on if samples else None,
            out_of_memory=self._is_out_of_memory(),
            printed=self._read_stderr(),
        )

    def _discard_old_samples(self, progress: float) -> None:
        """Discard samples from before the rank advanced: they do not show where it is now."""
        while self.stacks and _time_of(self.stacks[0], progress) < progress:
            self.stacks.popleft()
        while self.processes and _time_of(self.processes[0], progress) < progress:
            self.processes.popleft()
        if progress > self._repeated_since:
            self._repeated_since = progress
            self._repeated.clear()

    def _read_stderr(self) -> RaisedException | None:
        """Return the exception with which the stderr of a living rank ends."""
        if self._stderr is None or self.exit_code is not None:
            return None
        return read_exception(self._stderr)

    def _note_activity(self, activity: Activity | None, children_share: float | None) -> None:
        """Remember when the rank last showed a sign of progress between two observations."""
        stacks = [stack for stack in self.stacks if isinstance(stack, ThreadStack)]
        if (
            (activity is not None and (activity.io_bytes or 0) > 0)
            or (activity is not None and (activity.cpu_share or 0.0) >= BUSY_CPU_SHARE)
            or (children_share or 0.0) >= BUSY_CPU_SHARE
            or (len(stacks) > 1 and not same_stack(*stacks))
        ):
            self._active = time.time()

    def add_sample(self, threads: tuple[ThreadStack, ...] | Unknown) -> None:
        """Store the stacks of all threads: the main thread's, and that of a thread at work."""
        self.add_stack(_main_stack(threads))
        self._helper = None if isinstance(threads, Unknown) else thread_at_work(threads)

    def add_stack(self, stack: ThreadStack | Unknown) -> None:
        """Store a stack sample."""
        self.stacks.append(stack)
        if isinstance(stack, ThreadStack):
            self._repeated.add(stack)

    def request_dump(self) -> None:
        """Request a dump if the trace file holds collectives of unknown completion."""
        trace = self._open()
        if (
            self._dumps is not None
            and trace is not None
            and any(call.is_doubtful for call in trace.pending())
        ):
            self._discard_old_dumps(trace, self._dumps)
            self._dumps.request()

    def _with_completion(self, state: RankState) -> RankState:
        """Add what the flight recorder reports of collectives of unknown completion."""
        if self.trace is None or not any(call.is_doubtful for call in state.pending):
            return state
        if self._dumps is not None and self._dumps.dump is not None:
            return completion.mark_completed(state, self._dumps.dump, self.trace.collective)
        error = "no dump was requested" if self._dumps is None else self._dumps.error
        if not error or len(self.stacks) < 2:  # the first observation has only sent the request
            return state
        return replace(state, unseen=(*state.unseen, f"completion on NCCL: {error}"))

    def _last_completion(self, trace: TraceReading) -> float:
        """Return when the device last completed a call, according to a dump that is up to date."""
        if self._dumps is None:
            return 0.0
        self._discard_old_dumps(trace, self._dumps)
        dump = self._dumps.dump
        return completion.last_completion(dump, time.time()) if dump is not None else 0.0

    def _discard_old_dumps(self, trace: TraceReading, dumps: DumpRequests) -> None:
        """Discard dumps and requests from before the newest call."""
        if trace.begun != self._begun_calls:
            self._begun_calls = trace.begun
            dumps.discard()

    def _remember_children(self) -> None:
        """List the children periodically, so that an exited data-loader worker is known.

        Also reads the memory of the rank.
        """
        if self.exit_code is None and time.monotonic() - self._children_at > CHILDREN_EVERY_S:
            self._children_at = time.monotonic()
            self.children.sample()
            self._memory_bytes = inspection.resident_bytes(self.worker.pid)

    def _process_state(self, advanced: float) -> ProcessState:
        if self.exit_code is not None:
            return ProcessState.DEAD
        if time.time() - advanced < TRUSTED_S:
            return ProcessState.RUNNING
        sample = inspection.sample_process(self.worker.pid)
        return sample.life if isinstance(sample, ProcessSample) else ProcessState.UNKNOWN

    def _is_out_of_memory(self) -> bool:
        return self.exit_code == -9 and was_oom_killed(self.worker.pid, self._memory) is True

    def _step_p99(self, trace: TraceReading) -> float | None:
        if time.monotonic() - self._steps_at > STEPS_EVERY_S:
            self._steps_at = time.monotonic()
            durations = step_seconds(trace.newest(STEP_CALLS))
            if len(durations) >= MIN_STEPS:  # the first step, or a checkpoint, is no usual one
                durations = np.sort(durations)[:-1]
            self._p99 = float(np.percentile(durations, 99)) if len(durations) else None
        return self._p99


def _time_of(sample: ThreadStack | ProcessSample | Unknown, progress: float) -> float:
    return progress if isinstance(sample, Unknown) else sample.time
