"""Explains one rank that the others wait for, or that died, by the most specific observation.

In order: it was killed, it crashed, it ended early, it is stopped, its disk or file does not
respond, its data-loader worker is dead, it holds the GIL, or it is elsewhere in Python.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.causes.checkpoint.checkpoint_of_another_model import CHECKPOINT_OF_ANOTHER_MODEL
from holdfast.causes.checkpoint.checkpoint_of_newer_version import CHECKPOINT_OF_NEWER_VERSION
from holdfast.causes.data.dataloader_worker_died import DATALOADER_WORKER_DIED
from holdfast.causes.memory.gpu_oom_all_ranks import GPU_OOM_ALL_RANKS
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.causes.numerics.loss_jumped import LOSS_JUMPED
from holdfast.causes.numerics.mixed_precision_nan import MIXED_PRECISION_NAN
from holdfast.causes.process.exit_nonzero import EXIT_NONZERO
from holdfast.causes.process.group_left_at_exit import GROUP_LEFT_AT_EXIT
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.python_exception_all_ranks import PYTHON_EXCEPTION_ALL_RANKS
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.segfault_in_worker import SEGFAULT_IN_WORKER
from holdfast.causes.process.signal_sigterm_preempted import SIGNAL_SIGTERM_PREEMPTED
from holdfast.causes.process.stalled_outside_collectives import STALLED_OUTSIDE_COLLECTIVES
from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.causes.sync.rank_exits_early import RANK_EXITS_EARLY
from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.findings import Cause, Fact, Finding
from holdfast.core.rank_table import ProcessState, RaisedException, RankState, SourceLine
from holdfast.host.processes.user_code import is_other_library
from holdfast.watcher.rules.blocked_ranks import (
    BLOCK_RULES,
    RankRule,
    explain_elsewhere,
)
from holdfast.watcher.rules.call_sites import (
    SourceContexts,
    exception_swallowed_in_loop,
    iterating_loop_line,
    left_loop_line,
)
from holdfast.watcher.rules.gpu_memory import add_oom_details
from holdfast.watcher.rules.named_exceptions import cause_of_message
from holdfast.watcher.rules.rank_findings import (
    HEADLINE_CHARACTERS,
    Evidence,
    at_line,
    describe_exception,
    last_line,
    rank_finding,
)
from holdfast.watcher.rules.stall import (
    is_busy,
)

#: Signals of a crash in native code.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
_LEAVES_GROUP = "destroy_process_group"
_LOADER_EXITED = re.compile(r"DataLoader worker \(pid(?:\(s\))?")
#: Causes of exceptions that holdfast raises, usually on all ranks.
_CAUSES_OF_OWN_EXCEPTIONS = {
    "LossNotFinite": MIXED_PRECISION_NAN,
    "LossSpike": LOSS_JUMPED,
    "CheckpointMismatch": CHECKPOINT_OF_ANOTHER_MODEL,
    "CheckpointUnreadable": CHECKPOINT_CORRUPT,
    "CheckpointVersion": CHECKPOINT_OF_NEWER_VERSION,
}
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|OutOfMemoryError|can't allocate memory|MemoryError"
)
_TIMED_OUT = re.compile(r"time[d ]?.?out", re.IGNORECASE)
#: Exceptions of a rank that lost a peer; such an exception is never the root.
_ECHO = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|Socket Timeout|Timed out waiting|recv"
    r"|remote (peer|process)|peer closed|NCCL (remote|communicator was aborted)"
    r"|DistNetworkError|DistStoreError|gloo|Watchdog (caught|thread)",
    re.IGNORECASE,
)
#: Errors of a backend about the arguments of a call: its own check, or what the peers sent.
_SIZES_DIFFER = re.compile(
    r"data size doesn't match|preamble\.length|invalid tensor size|mismatch between collectives"
    r"|appears not to match sizes"
)
_INVALID_CALL = re.compile(rf"{_SIZES_DIFFER.pattern}|ProcessGroup\w+::\w+: |ncclInvalid")


def is_echo(state: RankState) -> bool:
    """Return whether the rank died of a lost connection, and not of its own work.

    Without an exception: whether it exited after its newest call had failed. An exception of a
    library that makes connections of its own, such as an HTTP client, is no lost peer.
    """
    raised = state.raised
    newest = max(state.recent, key=lambda call: call.entered, default=None)
    if raised is None:
        return (state.exit_code or 0) > 0 and newest is not None and newest.failed
    text = f"{raised.type} {raised.text}"
    if not _ECHO.search(text) or _INVALID_CALL.search(text):
        return False
    is_outside = newest is None or not (newest.failed or newest.completed is None)
    if is_outside and raised.frames and is_other_library(raised.frames[0].file):
        return False
    named = cause_of_message(raised)  # a port in use is no lost connection
    return named is None or named.family in ("SYNC", "PROC")


def sizes_differ(state: RankState) -> bool:
    """Return whether the rank died because a backend found that the sizes in a call differ."""
    return state.raised is not None and bool(_SIZES_DIFFER.search(state.raised.text))


def backend_errors(ranks: Iterable[RankState]) -> tuple[Fact, ...]:
    """Return what a backend reported about the sizes."""
    return tuple(
        Fact(
            text=describe_exception(state.raised, 300),
            origin=state.raised.origin or f"trace of rank {state.rank}",
            rank=state.rank,
        )
        for state in ranks
        if state.raised is not None and sizes_differ(state)
    )[:2]


def timed_out(state: RankState) -> bool:
    """Return whether the wait of the rank timed out; the awaited rank may be alive."""
    return state.raised is not None and bool(
        _TIMED_OUT.search(f"{state.raised.type} {state.raised.text}")
    )


def died(state: RankState) -> bool:
    """Return whether the process ended by a signal, a status other than 0, or an exception."""
    return state.raised is not None or (state.exit_code is not None and state.exit_code != 0)


def time_of_death(state: RankState) -> float:
    """Return when the script ended, else when the exit was reported, else 0 (Unix s)."""
    return state.ended.time if state.ended is not None else state.exited


def is_killed(state: RankState) -> bool:
    """Return whether a signal ended the rank that no exit of a peer causes."""
    return state.exit_code is not None and -state.exit_code in (CRASHES | {signal.SIGKILL}) - {
        signal.SIGABRT
    }


def is_unobserved(state: RankState) -> bool:
    """Return whether neither the process state, nor an end, nor a stack of the rank is known."""
    has_ended = state.raised is not None or state.ended is not None or state.exit_code is not None
    return state.life == ProcessState.UNKNOWN and not has_ended and not state.stacks


def severity(state: RankState) -> int:
    """Return the sort key of roots: lower is more likely the first cause."""
    if died(state):
        return 5 if is_echo(state) else 0
    if state.life == ProcessState.DEAD:
        return 1
    return {ProcessState.STOPPED: 1, ProcessState.DISK: 2}.get(
        state.life, 4 if is_busy(state) else 3
    )


def explain_root(state: RankState, source: SourceContexts, waited: str) -> Finding:
    """Explain the rank that others wait for in ``waited`` (``all_reduce #31``).

    ``waited`` is empty if no rank waits for it.
    """
    for rule in (*_END_RULES, *BLOCK_RULES):
        finding = rule(state, source, waited)
        if finding is not None:
            return finding
    return explain_elsewhere(state, source, waited)


def explain_single_rank(state: RankState, source: SourceContexts, others: str) -> Finding:
    """Explain a rank that no other waits for; ``others`` describes the rest of the job."""
    for rule in BLOCK_RULES:
        finding = rule(state, source, "")
        if finding is not None:
            return finding
    line = last_line(state) if state.stacks else None
    message = (
        f"rank {state.rank} is blocked outside of any collective{at_line(line, ' at ')}{others}"
    )
    if state.ended is not None:
        message = (
            f"the script of rank {state.rank} ended but its process still runs"
            f"{at_line(line, ' at ')}{others}"
        )
    activity = Evidence(
        f"process {state.pid}", f"{state.cpu_share or 0:.0%} CPU between two samples"
    )
    return rank_finding(STALLED_OUTSIDE_COLLECTIVES, state, message, line, activity, confidence=0.8)


def explain_disappearance(state: RankState, lost_in: str) -> Finding:
    """Explain a rank without an exit record, if others lost a peer in the call ``lost_in``."""
    line = last_line(state)
    message = (
        f"rank {state.rank} disappeared without an exit record{at_line(line, ' after ')}; other "
        f"ranks lost their connection in {lost_in}: it was killed, crashed, or called os._exit"
    )
    missing = Evidence(
        f"trace of rank {state.rank}", "no exception and no end of the script is recorded"
    )
    return rank_finding(PEER_LOST, state, message, line, missing, confidence=0.8)


# ---- ranks that ended


def _explain_signal(state: RankState, _source: SourceContexts, waited: str) -> Finding | None:
    if (
        state.exit_code is None
        or state.exit_code >= 0
        or (state.raised is not None and not _is_cpp(state.raised))
    ):
        return None
    if waited and _crashed_after_script_end(state):
        return None
    number = -state.exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    exit_status = Evidence(f"exit status of process {state.pid}", f"ended by {name}")
    if state.out_of_memory:
        message = f"rank {state.rank} was killed because host memory ran out"
        oom_kill = Evidence(
            "cgroup memory.events", "the OOM killer killed a process in this rank's memory cgroup"
        )
        return rank_finding(HOST_OOM_KILLED, state, message, None, exit_status, oom_kill)
    line = last_line(state)
    if number in CRASHES:
        return _explain_native_crash(state, name, exit_status, line)
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        message = f"rank {state.rank} was terminated by {name} from outside the job"
        return rank_finding(SIGNAL_SIGTERM_PREEMPTED, state, message, line, exit_status)
    message = f"rank {state.rank} was killed by {name}{at_line(line, ' after ')}"
    return rank_finding(RANK_KILLED, state, message, line, exit_status, confidence=0.85)


def _explain_native_crash(
    state: RankState, name: str, exit_status: Evidence, line: SourceLine | None
) -> Finding:
    if state.ended is not None and _crashed_after_script_end(state):
        message = f"rank {state.rank} was aborted ({name}) after its script had ended"
        end = Evidence(f"trace of rank {state.rank}", f"the script had ended: {state.ended.how}")
        return rank_finding(
            GROUP_LEFT_AT_EXIT, state, message, None, exit_status, end, confidence=0.8
        )
    if sizes_differ(state):
        return _explain_differing_sizes(state, name, exit_status, line)
    message, evidence = f"rank {state.rank} crashed in native code ({name})", [exit_status]
    if state.stacks:
        message += at_line(line, " at ")
    if state.raised is not None:
        message += f": {describe_exception(state.raised, HEADLINE_CHARACTERS)}"
        evidence.append(Evidence(state.raised.origin, describe_exception(state.raised)))
    finding = rank_finding(SEGFAULT_IN_WORKER, state, message, line, *evidence, confidence=0.7)
    if not state.stacks:
        return finding
    is_known = "PYTHONFAULTHANDLER"  # the remedy that shows the stack
    remedies = (each for each in finding.remedies if is_known not in (each.command or ""))
    return replace(finding, remedies=tuple(remedies))


def _explain_differing_sizes(
    state: RankState, name: str, exit_status: Evidence, line: SourceLine | None
) -> Finding:
    """Explain gloo's abort of a rank that received another size than it expects."""
    facts = [Evidence(fact.origin, fact.text) for fact in backend_errors((state,))]
    message = (
        f"rank {state.rank} was aborted ({name}){at_line(line, ' at ')}: a peer sent another size "
        "than this rank expects"
    )
    return rank_finding(MISMATCHED_SHAPE, state, message, line, exit_status, *facts, confidence=0.7)


def _is_cpp(raised: RaisedException) -> bool:
    """Return whether the exception ended the process in C++ (``std::runtime_error``)."""
    return "::" in raised.type


def cause_of_common_exception(raised: RaisedException | None) -> Cause:
    """Return the cause if all ranks raised the same exception."""
    if raised is not None and _OUT_OF_MEMORY.search(f"{raised.type} {raised.text}"):
        return GPU_OOM_ALL_RANKS
    named = cause_of_message(raised) if raised is not None else None
    named = named or _CAUSES_OF_OWN_EXCEPTIONS.get(raised.type if raised else "")
    return named or PYTHON_EXCEPTION_ALL_RANKS


def _explain_exit_status(state: RankState, waited: str) -> Finding | None:
    """Explain the end of a rank without an exception."""
    if not state.exit_code or (waited and _crashed_after_script_end(state)):
        return None
    exit_status = Evidence(f"exit status of process {state.pid}", str(state.exit_code))
    if state.exit_code == state.preempted:
        message = "the job was preempted: a scheduler's signal, after which all ranks saved"
        message += f" at step {state.saved} and exited" if state.saved else " and exited"
        return rank_finding(SIGNAL_SIGTERM_PREEMPTED, state, message, None, exit_status)
    line = state.ended.place if state.ended else last_line(state)
    message = f"rank {state.rank} ended with status {state.exit_code}"
    message += at_line(line, " at " if state.ended else " after ")
    return rank_finding(EXIT_NONZERO, state, message, line, exit_status)


def _explain_exception(state: RankState, source: SourceContexts, waited: str) -> Finding | None:
    raised = state.raised
    if raised is None:
        return _explain_exit_status(state, waited)
    origin = raised.origin or f"exception recorded in the trace of rank {state.rank}"
    record = Evidence(origin, describe_exception(raised, HEADLINE_CHARACTERS))
    where = at_line(raised.place, " at ")
    if _LOADER_EXITED.search(raised.text):
        message = f"a data-loader worker of rank {state.rank} died"
        # torch raises in a signal handler: at any line of the loop over the loader.
        line = iterating_loop_line(raised.place, source) or raised.place
        return rank_finding(DATALOADER_WORKER_DIED, state, message, line, record)
    if _OUT_OF_MEMORY.search(f"{raised.type} {raised.text}"):
        message = f"rank {state.rank} ran out of memory{where}"
        finding = rank_finding(OOM_ON_ONE_RANK_THEN_TIMEOUT, state, message, raised.place, record)
        return add_oom_details(finding, raised.text, kept_remedies=1)
    if is_echo(state):
        message = f"rank {state.rank} lost its connection to a peer{where}"
        return rank_finding(PEER_LOST, state, message, raised.place, record, confidence=0.4)
    message = f"rank {state.rank} raised {describe_exception(raised, HEADLINE_CHARACTERS)}{where}"
    if state.ended is not None and state.ended.how == "sys.exit":
        message += f", caught it and exited{at_line(state.ended.place, ' at ')}"
    cause = _CAUSES_OF_OWN_EXCEPTIONS.get(raised.type) or cause_of_message(raised)
    cause = cause or PYTHON_EXCEPTION_ON_ONE_RANK
    return rank_finding(cause, state, message, raised.place, record, confidence=0.95)


def _crashed_after_script_end(state: RankState) -> bool:
    """Return whether native code crashed after the script ended: torch does so with peers left."""
    ended = state.ended is not None and state.ended.how != "exception"
    return ended and state.exit_code is not None and -state.exit_code in CRASHES


def _explain_early_end(state: RankState, source: SourceContexts, waited: str) -> Finding | None:
    if state.life != ProcessState.DEAD and (state.ended is None or state.ended.how == "exception"):
        return None
    ended, calls = state.ended, [call for call in state.recent if call.name != _LEAVES_GROUP]
    last = max(calls, key=lambda call: call.entered, default=None)
    line = last.site if last else None
    if ended is None or ended.how in ("sys.exit", "os._exit"):
        where = ended.place if ended else line
        where_text = at_line(where, " at ")
        message = f"rank {state.rank} exited{where_text} while the other ranks were in {waited}"
        return rank_finding(RANK_EXITS_EARLY, state, message, where, _end_evidence(state))
    handler = exception_swallowed_in_loop(last, source)
    if handler is not None:
        message = (
            f"rank {state.rank} issued fewer collectives than the other ranks and ended: "
            f"an exception is swallowed{at_line(handler, ' at ')}"
        )
        return rank_finding(
            RANK_SKIPS_COLLECTIVE, state, message, handler, _end_evidence(state), confidence=0.75
        )
    left = left_loop_line(last, None, source)
    where_left = f" in the loop that it left{at_line(left, ' at ')}" if left else ""
    message = (
        f"rank {state.rank} finished before the other ranks; its last call was{at_line(line)}"
        f"{where_left}, and the others continued with {waited}"
    )
    evidence = _end_evidence(state)
    return rank_finding(UNEVEN_INPUTS, state, message, left or line, evidence, confidence=0.85)


def _end_evidence(state: RankState) -> Evidence:
    ended, origin = state.ended, f"trace of rank {state.rank}"
    if ended is None:
        origin, text = (
            f"exit status of process {state.pid}",
            "0, without reaching the end of the script",
        )
    else:
        text = f"script ended: {ended.how}{at_line(ended.place, ' at ')}"
    if _crashed_after_script_end(state):
        name = signal.Signals(-(state.exit_code or 0)).name
        text += f", and its process crashed after that ({name})"
    return Evidence(origin, text)


_END_RULES: tuple[RankRule, ...] = (_explain_signal, _explain_exception, _explain_early_end)
