"""What is wrong with one rank that the others wait for, or that died: the most telling observation decides.

In order: it was killed, it crashed, it ended early, it is stopped, its disk or file does not answer, its data-loader
worker is dead, or it sits somewhere else in Python.
"""

from __future__ import annotations

import re
import signal

from msgspec.structs import replace

from holdfast.facts.ranks import Life, Place, Raised, RankState
from holdfast.facts.user_code import innermost_user, is_machinery
from holdfast.findings import Cause, Fact, Finding, Remedy, Subject, finding
from holdfast.rules.causes import by_name
from holdfast.rules.places import Source, loop_swallows
from holdfast.rules.shortage import advised

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
#: Of a core: what a process uses in whose main thread nothing happens.
IDLE_CPU_SHARE = 0.05
_PID = re.compile(r"\bPID\b")
_LOADER_DEAD = re.compile(r"DataLoader worker \(pid(?:\(s\))?")
_LOADER_FRAMES = re.compile(r"/torch/utils/data/dataloader\.py$")
#: What holdfast itself raises, mostly on all ranks alike -> the cause.
OF_OUR_ERRORS = {
    "LossNotFinite": "mixed-precision-nan",
    "LossSpike": "loss-jumped",
    "CheckpointMismatch": "checkpoint-of-another-model",
    "CheckpointUnreadable": "checkpoint-corrupt",
    "CheckpointVersion": "checkpoint-of-newer-version",
}
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|can't allocate memory|MemoryError")
_TIMED_OUT = re.compile(r"time[d ]?.?out", re.IGNORECASE)
#: What a survivor says when a peer is gone; such an exception is never the root.
_ECHO = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|Socket Timeout|Timed out waiting|recv|remote (peer|process)"
    r"|peer closed|NCCL (remote|communicator was aborted)|DistNetworkError|DistStoreError|gloo",
    re.IGNORECASE,
)


def is_echo(state: RankState) -> bool:
    """True where the rank died of another's death: its exception is about the connection, not about its own work."""
    raised = state.raised
    return raised is not None and bool(_ECHO.search(f"{raised.type} {raised.text}"))


def timed_out(state: RankState) -> bool:
    """True where the rank gave up waiting: whom it waited for may have lived."""
    return state.raised is not None and bool(_TIMED_OUT.search(f"{state.raised.type} {state.raised.text}"))


def died(state: RankState) -> bool:
    """True for a process that ended by a signal, a status other than 0, or an exception."""
    return state.raised is not None or (state.exit_code is not None and state.exit_code != 0)


def is_untold(state: RankState) -> bool:
    """True where nothing tells whether the process lives, nor how it ended, and nobody saw where it is."""
    told = state.raised is not None or state.ended is not None or state.exit_code is not None
    return state.life == Life.UNKNOWN and not told and not state.stacks


def severity(state: RankState) -> int:
    """Order of suspicion among several roots: the lower, the more likely the first cause."""
    if died(state):
        return 5 if is_echo(state) else 0
    if state.life == Life.DEAD:
        return 1
    return {Life.STOPPED: 1, Life.DISK: 2}.get(state.life, 3 if not state.cpu_share or state.cpu_share < 0.3 else 4)


def explain(state: RankState, source: Source, waited: str) -> Finding:
    """The finding about ``state``, which the others wait for in ``waited`` (words such as ``all_reduce #31``).

    ``waited`` is empty where nobody missed it.
    """
    for rule in (_signalled, _crashed, _ended, _stopped, _loader, _file, _locked):
        found = rule(state, source, waited)
        if found is not None:
            return found
    return _elsewhere(state, waited)


def explain_alone(state: RankState, source: Source, others: str) -> Finding:
    """The finding about ``state``, for which nobody waits in a collective; ``others`` says what became of the rest."""
    for rule in (_stopped, _loader, _file, _locked):
        found = rule(state, source, "")
        if found is not None:
            return found
    place = _last_place(state) if state.stacks else None
    message = f"rank {state.rank} stands still outside of any collective{_at(place, ': it sits at ')}{others}"
    if state.ended is not None:
        message = (
            f"the script of rank {state.rank} has ended and its process has not{_at(place, ': it is at ')}{others}"
        )
    doing = f"process {state.pid}|used {state.cpu_share or 0:.0%} of a core between two samples"
    return _claim("stalled-outside-collectives", state, message, place, doing, confidence=0.8)


def vanished(state: RankState, lost_in: str) -> Finding:
    """The finding about a rank of which no end was noted, where others lost a peer in the call ``lost_in``."""
    place = _last_place(state)
    message = (
        f"rank {state.rank} is gone without a word{_at(place, ' after ')}, and others lost their connection in "
        f"{lost_in}: it was killed, crashed, or left by os._exit"
    )
    seen = f"box of rank {state.rank}|neither an exception nor the end of the script is noted"
    return _claim("peer-lost", state, message, place, seen, confidence=0.8)


def _claim(
    name: str, state: RankState, message: str, place: Place | None, *evidence: str, confidence: float = 0.9
) -> Finding:
    cause: Cause = by_name(name)
    host = state.host or None
    parts = (item.partition("|") for item in evidence)
    facts = [Fact(text=text, origin=origin, rank=state.rank, host=host) for origin, _, text in parts]
    facts += _stack_facts(state)
    file, line = (place.file, place.line) if place else (None, None)
    subject = Subject(rank=state.rank, host=host, file=file, line=line)
    remedies = tuple(_for_process(remedy, state.pid) for remedy in cause.remedies)
    return finding(
        cause, message, subject=subject, evidence=tuple(facts), remedies=remedies, confidence=confidence
    )  # fmt: skip


def _for_process(remedy: Remedy, pid: int) -> Remedy:
    """The remedy, whose command has the number of the process in it where that is known."""
    if not pid or remedy.command is None:
        return remedy
    return replace(remedy, command=_PID.sub(str(pid), remedy.command))


def _stack_facts(state: RankState) -> list[Fact]:
    """The newest stack in short: where the main thread is, and the user's own frames around it."""
    if not state.stacks:
        return []
    newest = state.stacks[-1]
    own = [frame for frame in newest.frames[1:] if not is_machinery(frame.file)]
    text = " < ".join(_brief(frame) for frame in (*newest.frames[:1], *own[:5]))
    if len(state.stacks) > 1 and state.stacks[-2].frames == newest.frames:
        text += ", the same in two samples"
    return [Fact(text=text, origin=newest.origin, rank=state.rank, host=state.host or None, time=newest.time or None)]


def _brief(frame: Place) -> str:
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} {frame.function}"


def _last_place(state: RankState) -> Place | None:
    """The rank's last known place in the user's code: its stack, else its last call."""
    if state.stacks:
        return innermost_user(state.stacks[-1])
    calls = (*state.recent, *state.pending)
    return max(calls, key=lambda call: call.entered).site if calls else None


def _signalled(state: RankState, _source: Source, waited: str) -> Finding | None:
    if state.exit_code is None or state.exit_code >= 0 or state.raised is not None:
        return None
    if waited and _fell_in_tear_down(state):
        return None
    number = -state.exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    exit_fact = f"exit status of process {state.pid}|ended by {name}"
    if state.out_of_memory:
        message = f"rank {state.rank} was killed because host memory ran out"
        struck = "cgroup memory.events|the out-of-memory killer struck in this rank's memory cgroup"
        return _claim("host-oom-killed", state, message, None, exit_fact, struck)
    place = _last_place(state)
    if number in _CRASHES:
        return _in_native_code(state, name, exit_fact, place)
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        message = f"rank {state.rank} was ended by {name} from outside"
        return _claim("signal-sigterm-preempted", state, message, place, exit_fact)
    message = f"rank {state.rank} was killed by {name}{_at(place, ' after ')}"
    return _claim("rank-killed", state, message, place, exit_fact, confidence=0.85)


def _in_native_code(state: RankState, name: str, exit_fact: str, place: Place | None) -> Finding:
    if state.ended is not None and _fell_in_tear_down(state):
        message = f"rank {state.rank} was aborted ({name}) after its script had ended, with its process group left open"
        ended = f"box of rank {state.rank}|the script had ended: {state.ended.how}"
        return _claim("group-left-at-exit", state, message, None, exit_fact, ended, confidence=0.8)
    message = f"rank {state.rank} crashed in native code ({name})"
    return _claim("segfault-in-worker", state, message, place, exit_fact, confidence=0.7)


def of_all_ranks(raised: Raised | None) -> str:
    """The name of the cause where all ranks raised alike."""
    if raised is not None and _OUT_OF_MEMORY.search(f"{raised.type} {raised.text}"):
        return "gpu-oom-all-ranks"
    return OF_OUR_ERRORS.get(raised.type if raised else "", "python-exception-all-ranks")


def _crashed(state: RankState, _source: Source, waited: str) -> Finding | None:
    raised = state.raised
    if raised is None:
        if not state.exit_code or (waited and _fell_in_tear_down(state)):
            return None
        message = f"rank {state.rank} ended with status {state.exit_code}"
        exit_fact = f"exit status of process {state.pid}|{state.exit_code}"
        return _claim("exit-nonzero", state, message, state.ended.place if state.ended else None, exit_fact)
    said = f"{raised.type}: {raised.text.splitlines()[0] if raised.text else ''}"
    seen = f"exception recorded in the box of rank {state.rank}|{said[:300]}"
    where = _at(raised.place, " at ")
    if _LOADER_DEAD.search(raised.text):
        message = f"a data-loader worker of rank {state.rank} died"
        return _claim("dataloader-worker-died", state, message, raised.place, seen)
    if _OUT_OF_MEMORY.search(f"{raised.type} {raised.text}"):
        message = f"rank {state.rank} ran out of memory{where}"
        return advised(_claim("oom-on-one-rank-then-timeout", state, message, raised.place, seen), raised.text, own=1)
    if is_echo(state):
        message = f"rank {state.rank} lost its connection to a peer{where}"
        return _claim("peer-lost", state, message, raised.place, seen, confidence=0.4)
    message = f"rank {state.rank} raised {said[:160]}{where}"
    cause = OF_OUR_ERRORS.get(raised.type, "python-exception-on-one-rank")
    return _claim(cause, state, message, raised.place, seen, confidence=0.95)


def _fell_in_tear_down(state: RankState) -> bool:
    """True where the script had ended by itself, and native code crashed after that: torch does so with peers left."""
    left = state.ended is not None and state.ended.how != "exception"
    return left and state.exit_code is not None and -state.exit_code in _CRASHES


def _ended(state: RankState, source: Source, waited: str) -> Finding | None:
    if state.life != Life.DEAD and (state.ended is None or state.ended.how == "exception"):
        return None
    ended, last = state.ended, max(state.recent, key=lambda call: call.entered, default=None)
    place = last.site if last else None
    seen = f"exit status of process {state.pid}|0, without reaching the end of the script"
    if ended is not None:
        seen = f"box of rank {state.rank}|script ended: {ended.how}{_at(ended.place, ' at ')}"
    if _fell_in_tear_down(state):
        seen += f", and its process crashed after that ({signal.Signals(-(state.exit_code or 0)).name})"
    if ended is None or ended.how == "sys.exit":
        where = ended.place if ended else place
        message = f"rank {state.rank} left the program{_at(where, ' at ')} while the others were in {waited}"
        return _claim("rank-exits-early", state, message, where, seen)
    handler = loop_swallows(last, source)
    if handler is not None:
        message = (
            f"rank {state.rank} made fewer collectives than the others and ended: "
            f"an exception is swallowed{_at(handler, ' at ')}"
        )
        return _claim("rank-skips-collective", state, message, handler, seen, confidence=0.75)
    message = (
        f"rank {state.rank} ran out of work first and ended; its last call was{_at(place)}, "
        f"the others went on to {waited}"
    )
    return _claim("uneven-inputs", state, message, place, seen, confidence=0.85)


def _stopped(state: RankState, _source: Source, waited: str) -> Finding | None:
    place = _last_place(state)
    if state.life == Life.STOPPED:
        message = (
            f"rank {state.rank} is stopped (SIGSTOP, a debugger or a frozen cgroup){_at(place, ' at ')}{_tail(waited)}"
        )
        return _claim("rank-stopped", state, message, place, f"/proc/{state.pid}/stat|state T: stopped")
    if state.life == Life.DISK:
        message = f"rank {state.rank} is in uninterruptible I/O{_at(place, ' at ')}"
        seen = f"/proc/{state.pid}/stat|state D: the kernel waits for a device or file system"
        return _claim("rank-uninterruptible-io", state, message, place, seen)
    return None


def _loader(state: RankState, _source: Source, _waited: str) -> Finding | None:
    inside = any(_LOADER_FRAMES.search(frame.file) for stack in state.stacks[-1:] for frame in stack.frames)
    dead = [child for child in state.children if not child.alive]
    if not inside:
        return None
    place = _last_place(state)
    waits = f"rank {state.rank} waits{_at(place, ' at ')}"
    if dead:
        message = f"{waits} for a data-loader worker (pid {dead[0].pid}) that is gone"
        seen = f"/proc|child process {dead[0].pid} ({dead[0].name}) has ended"
        return _claim("dataloader-worker-died", state, message, place, seen)
    message = f"{waits} for its data-loader workers, which deliver nothing"
    living = [f"/proc|{len(state.children)} child processes live"] if state.children else []
    return _claim("dataloader-worker-died", state, message, place, *living, confidence=0.6)


def _file(state: RankState, _source: Source, waited: str) -> Finding | None:
    if state.blocked_on is None:
        return None
    place = _last_place(state)
    message = f"rank {state.rank} is blocked on {state.blocked_on}{_at(place, ' at ')}{_tail(waited)}"
    seen = f"/proc/{state.pid}/syscall|the main thread waits for {state.blocked_on}"
    return _claim("file-io-blocked", state, message, place, seen)


def _locked(state: RankState, _source: Source, waited: str) -> Finding | None:
    """Whoever sleeps in native code lets go of Python's lock before; one that does not may wait for who wants it."""
    if not (state.cpu_share is not None and state.cpu_share < IDLE_CPU_SHARE and len(state.stacks) > 1):
        return None
    before, newest = state.stacks[-2:]
    if not (before.holds_lock and newest.holds_lock and before.frames == newest.frames):
        return None
    place = _last_place(state)
    message = f"rank {state.rank} sleeps in native code with Python's lock held{_at(place, ' at ')}{_tail(waited)}"
    seen = f"process {state.pid}|the main thread holds the GIL and does not run, in two samples"
    return _claim("python-lock-held", state, message, place, seen)


def _elsewhere(state: RankState, waited: str) -> Finding:
    place = _last_place(state)
    if waited.startswith("init_process_group"):
        message = f"rank {state.rank} has not come to {waited}{_at(place, ': it is at ')}"
        return _claim("store-wait", state, message, place, confidence=0.8)
    if not state.stacks:
        message = f"rank {state.rank} never entered {waited}; where it is could not be seen"
        return _claim("rank-missing-collective", state, message, place, confidence=0.6)
    doing = [f"process {state.pid}|state {state.life}"] if state.life != Life.UNKNOWN else []
    if state.cpu_share is not None:
        doing = [f"process {state.pid}|used {state.cpu_share:.0%} of a core between two samples"]
    message = f"rank {state.rank} never entered {waited}: it sits{_at(place, ' at ')}"
    return _claim("rank-missing-collective", state, message, place, *doing, confidence=0.93)


def _tail(waited: str) -> str:
    return f"; the others wait in {waited}" if waited else ""


def _at(place: Place | None, before: str = " ") -> str:
    return f"{before}{_brief_place(place)}" if place is not None else ""


def _brief_place(place: Place) -> str:
    name = place.file.rsplit("/", 1)[-1]
    return f"{name}:{place.line}" + (f" in {place.function}()" if place.function and place.function[0] != "<" else "")
