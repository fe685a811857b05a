"""Sample a running job from outside: thread stacks, resource use and wait states, one second apart.

If the first two samples show a rank at the same line, and the kernel does not report that a rank
has slept for long, a third sample some seconds later separates a long step from a hang.

The job is not modified: py-spy reads stacks without stopping the process, and a signal is sent only
to ranks of ``holdfast run``, whose recorder handles it. Trace files and torch's flight recorder are
read in place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core import trace_file
from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState, RankState, SourceLine, ThreadStack
from holdfast.diagnose.attach.jobs import HostJob, JobRank
from holdfast.diagnose.stacks.job_samples import JobSamples, Threads
from holdfast.host.processes import inspection, python_stacks, thread_idle_time
from holdfast.host.processes.child_processes import list_children
from holdfast.host.processes.inspection import ProcessSample
from holdfast.watcher.node import BOOTSTRAP, NodeSensor, WorkerProcess

SAMPLE_INTERVAL_S = 1.0
#: With a rank that has slept this long, no third sample is taken.
LONG_SLEEP_S = 10.0
LAST_SAMPLE_DELAY_S = 4.0
#: A thread that sleeps this long at a time does not poll: if it ran, it had work.
_NO_POLLING_S = 0.25
_CLOCK_SLACK_S = 0.1
STACK_TIMEOUT_S = 1.5


class _SampleRound(msgspec.Struct, frozen=True):
    """One sample of all ranks, by process id; ``taken_s`` is monotonic."""

    taken_s: float
    processes: Mapping[int, ProcessSample | Unknown]
    stacks: Mapping[int, Threads | Unknown]
    asleep_s: Mapping[int, float]


def sample_job(
    job: HostJob,
    interval_s: float = SAMPLE_INTERVAL_S,
    last_delay_s: float = LAST_SAMPLE_DELAY_S,
    root: str = "",
) -> JobSamples:
    """Sample the ranks of ``job`` twice, or three times if it is unclear whether they are stuck.

    ``root``: the folder below which their source files lie, if they run in a container.
    """
    node = _open_traces(job)
    rounds = [_sample_once(job, root)]
    if node is not None:
        node.request_dumps()
        node.observe_closely(stacks=False)
    _wait_after(rounds[-1], interval_s)
    rounds.append(_sample_once(job, root))
    if node is None and _is_unclear(job, rounds):
        _wait_after(rounds[-1], last_delay_s)
        rounds.append(_sample_once(job, root))
    summary = node.observe_closely(stacks=False) if node is not None else None
    recorded = {state.rank: state for state in summary.ranks} if summary is not None else {}
    newest = rounds[-1].stacks
    return JobSamples(
        ranks=tuple(_rank_state(rank, job, rounds, recorded.get(rank.rank)) for rank in job.ranks),
        threads={
            rank.rank: threads
            for rank in job.ranks
            if isinstance(threads := newest[rank.pid], tuple)
        },
        groups=summary.groups if summary is not None else {},
        world_size=job.world_size,
        has_traces=summary is not None,
        silent_since=summary.silent_since if summary is not None else 0.0,
        time=time.time(),
        gone=_missing_ranks(job),
        unseen=job.unseen,
    )


def _wait_after(sampled: _SampleRound, seconds: float) -> None:
    time.sleep(max(0.0, sampled.taken_s + seconds - time.monotonic()))


def _is_unclear(job: HostJob, rounds: Sequence[_SampleRound]) -> bool:
    """Return whether a rank did not move, and no rank is stopped or has slept for long."""
    last = [sample for sample in rounds[-1].processes.values() if isinstance(sample, ProcessSample)]
    if any(sample.life in (ProcessState.STOPPED, ProcessState.DISK) for sample in last):
        return False
    if any(slept >= LONG_SLEEP_S for slept in rounds[-1].asleep_s.values()):
        return False
    frames = ([_main_frames(sampled, rank.pid) for sampled in rounds] for rank in job.ranks)
    return any(
        first is not None and all(other == first for other in others) for first, *others in frames
    )


def _main_frames(sampled: _SampleRound, pid: int) -> tuple[SourceLine, ...] | None:
    main = _main_stack(sampled.stacks[pid])
    return main.frames if main is not None else None


def _main_stack(threads: Threads | Unknown) -> ThreadStack | None:
    main = python_stacks.main_thread(threads) if isinstance(threads, tuple) else None
    return main if isinstance(main, ThreadStack) else None


def _missing_ranks(job: HostJob) -> tuple[int, ...]:
    """Return the ranks without a process, if all ranks of the job were started on this host."""
    if job.local_size != job.world_size:
        return ()
    present = {rank.rank for rank in job.ranks}
    return tuple(rank for rank in range(job.world_size) if rank not in present)


def _open_traces(job: HostJob) -> NodeSensor | None:
    """Return the reader of the trace files if every rank has one."""
    if not all(rank.trace_path and Path(rank.trace_path).is_file() for rank in job.ranks):
        return None
    workers = [
        WorkerProcess(rank.rank, rank.pid, Path(rank.trace_path), rank.dumps) for rank in job.ranks
    ]
    return NodeSensor(workers, job.world_size)


def _sample_once(job: HostJob, root: str) -> _SampleRound:
    taken_s = time.monotonic()
    processes = {
        rank.pid: inspection.sample_process(rank.pid, rank.start_ticks) for rank in job.ranks
    }
    slept = {rank.pid: thread_idle_time.thread_idle_s(rank.pid) for rank in job.ranks}
    stack_files = {
        rank.pid: Path(f"{rank.trace_path}.stacks") if rank.trace_path else None
        for rank in job.ranks
    }
    stacks = python_stacks.sample_many_stacks(
        stack_files, STACK_TIMEOUT_S, fallback_signal=trace_file.STACK_SIGNAL, root=root
    )
    return _SampleRound(
        taken_s,
        processes,
        {pid: _without_launcher(threads) for pid, threads in stacks.items()},
        {pid: seconds for pid, seconds in slept.items() if isinstance(seconds, float)},
    )


def _without_launcher(threads: Threads | Unknown) -> Threads | Unknown:
    """Remove the outermost frames of our bootstrap and of runpy; the script begins above them."""
    if isinstance(threads, Unknown):
        return threads
    return tuple(replace(stack, frames=_script_frames(stack)) for stack in threads)


def _script_frames(stack: ThreadStack) -> tuple[SourceLine, ...]:
    end = next(
        (index for index, frame in enumerate(stack.frames) if frame.file.endswith(BOOTSTRAP)),
        len(stack.frames),
    )
    return stack.frames[:end] or stack.frames


def _rank_state(
    rank: JobRank, job: HostJob, rounds: Sequence[_SampleRound], recorded: RankState | None
) -> RankState:
    """Return the row of one rank: the recorded state with the sampled values on top."""
    pid = rank.pid
    samples = [
        sample for sampled in rounds if isinstance(sample := sampled.processes[pid], ProcessSample)
    ]
    change = inspection.compare_samples(samples[0], samples[-1]) if len(samples) > 1 else None
    mains = [main for sampled in rounds if (main := _main_stack(sampled.stacks[pid])) is not None]
    newest = rounds[-1].stacks[pid]
    state = recorded or RankState(rank=rank.rank, host=job.host, pid=pid)
    return replace(
        state,
        host=state.host or job.host,
        life=samples[-1].life if samples else ProcessState.UNKNOWN,
        stacks=tuple(mains),
        cpu_share=change.cpu_share if change else None,
        asleep_s=rounds[-1].asleep_s.get(pid),
        woke=any(_woke(pid, *pair) for pair in pairwise(rounds)),
        io_bytes=change.io_bytes if change else None,
        blocked_on=samples[-1].blocked_on if samples else None,
        children=list_children(pid),
        unseen=(*state.unseen, *([newest.why] if isinstance(newest, Unknown) else [])),
    )


def _woke(pid: int, before: _SampleRound, after: _SampleRound) -> bool:
    """Return whether the main thread slept (too long to be polling) and ran between two samples."""
    first, second = before.asleep_s.get(pid), after.asleep_s.get(pid)
    if first is None or second is None or first < _NO_POLLING_S:
        return False
    return second < after.taken_s - before.taken_s - _CLOCK_SLACK_S
