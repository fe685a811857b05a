"""Python exceptions: which are a rank's own, and which echo another rank's failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.causes.process.python_exception_all_ranks import PYTHON_EXCEPTION_ALL_RANKS
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.core.rank_table import SourceLine
from holdfast.core.text import shorten
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.log_index import (
    FAILURES,
    MIN_STEPS_AFTER,
    LogIndex,
    is_later,
    position,
)
from holdfast.diagnose.log_rules.rank_inference import first_reporting_rank, rank_from_launchers
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LogFacts, LoggedTraceback, LogLine
from holdfast.host.processes.user_code import is_other_library, is_user_file

#: Raised by launchers about the processes that they started.
_LAUNCHER_TYPES = re.compile(
    r"(?:ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException"
    r"|ProcessExitedException|SystemExit|KeyboardInterrupt|RendezvousGracefulExitError"
    r"|RayTaskError|ActorDiedError|WorkerCrashedError|TrainingFailedError|WorkerGroupError)$"
)
#: Raised by a rank because another is gone, or because a collective did not complete.
_ECHO_TEXTS = re.compile(
    r"NCCL|ncclComm|H(?:CCL|ccl)|hccl api|ACL stream synchronize|ProcessGroup|[Gg]loo|Watchdog"
    r"|[Cc]onnection (?:reset|closed|refused|aborted)|Broken pipe|Socket [Tt]imeout"
    r"|monitoredBarrier|Application timeout|TCPStore|[Tt]imed out|remote (?:peer|process)|EOFError"
    r"|Store.{0,20}(?:timeout|wait)"
    # a stream of an Ascend device that waited in vain
    r"|Synchronize\w*,? error code is (?:507046|507048|107020)"
)
_ECHO_TYPES = re.compile(
    r"(?:Dist\w*Error|BrokenPipeError|ConnectionError|ConnectionResetError|TimeoutError|EOFError)$"
)
#: A refused connection is the rank's own failure, unless a part of the job made it.
_REFUSED = re.compile(r"ConnectionRefusedError|[Cc]onnection refused")
_OF_THE_JOB = re.compile(r"/torch/distributed/|/multiprocessing/(?:connection|managers)\.py$")
#: Caused by a person or a scheduler; other rules handle their signals.
_TERMINATION_TYPES = re.compile(
    r"(?:SignalException|KeyboardInterrupt|RendezvousGracefulExitError)$"
)
#: The form of an exception's name.
_EXCEPTION_NAME = re.compile(r"(?:Error|Exception|Interrupt|Failure)(?:_\w+)?$|\.")
#: This notice means that a thread ended; any other notice means that nothing ended.
_THREAD_NOTICE = "Exception in thread"
#: A logger's record, or a mention of a retry, is this near above a traceback that was caught.
_NEAR_LINES = 2
_WRAPPED = re.compile(r"Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_MAX_EXCEPTION_TEXT = 300


def find_exceptions(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield an exception that is not an echo, of one rank or of all."""
    own = _without_recovered(index, _own_failures(index))
    if own:
        yield _candidate(index, _earliest_first(own), Tier.EXCEPTION, (0.8, 0.85))


def find_exceptions_before_steps(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield an exception after which only steps were logged, for jobs that lost a peer.

    Steps that a rank printed before may appear later, when it ends and its buffer is written.
    """
    own = [one for one in _own_failures(index) if one.header and not one.notice]
    if own:
        yield _candidate(index, _earliest_first(own), Tier.EXCEPTION, (0.6, 0.6))


def without_refusing_services(facts: LogFacts) -> LogFacts:
    """Return the facts without refused connections between ranks that were some to a service."""
    services = {
        (one.line.source, one.line.number)
        for one in facts.tracebacks
        if _is_refused_by_service(one)
    }
    if not services:
        return facts
    signals = tuple(
        one
        for one in facts.signals
        if one.name != "connect-refused" or position(one) not in services
    )
    return replace(facts, signals=signals)


def _own_failures(index: LogIndex) -> list[LoggedTraceback]:
    """Return the exceptions that are no echoes, and that no signal of a cause claims."""
    claimed = {
        position(signal)
        for signal in index.facts.signals
        if signal.name in SIGNAL_CAUSES or signal.name in ("xid", "cuda-out-of-memory", "no-space")
    }
    return [
        one
        for one in index.facts.tracebacks
        if is_own_failure(one) and (one.line.source, one.line.number) not in claimed
    ]


def find_unclaimed_exceptions(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield an exception that looks like an echo, for logs without another root cause.

    The last exception of a chain counts, as it ended the process; launchers' exceptions count only
    if no rank raised one.
    """
    left = [
        one
        for one in _without_recovered(index, index.facts.tracebacks)
        if not _TERMINATION_TYPES.search(one.type)
    ]
    of_ranks = [
        one
        for one in left
        if one.header and (not _LAUNCHER_TYPES.search(one.type) or _is_users_command(one))
    ]
    uncaught = of_ranks or [one for one in left if _LAUNCHER_TYPES.search(one.type)]
    last = {(one.line.source, one.line.rank): one for one in uncaught}
    if last:
        first, *others = last.values()
        earlier = [one for one in uncaught if one not in last.values()]
        confidence = 0.55 if of_ranks else 0.3
        yield _candidate(index, [first, *others, *earlier], Tier.SILENCE, (confidence, confidence))


def _candidate(
    index: LogIndex,
    tracebacks: Sequence[LoggedTraceback],
    tier: Tier,
    confidences: tuple[float, float],
) -> CauseCandidate:
    """Return the first traceback and those like it; ``confidences``: for one and for all ranks."""
    first = tracebacks[0]
    same = [one for one in tracebacks if _signature(one) == _signature(first)]
    place = first.place or _place_of_chain(index, first) or next(iter(first.frames), None)
    lines = tuple(one.line for one in same)
    ranks = {line.rank for line in lines if line.rank is not None} or {
        int(rank) for signal in index.all("worker-failed") for rank in signal.fields.values()
    }
    rank = _first_rank(index, ranks, lines)
    on_several = len(ranks) > 1 or (
        not ranks and (len(_without_copies(index, same)) > 1 or len(index.failed_ranks) > 1)
    )
    text = shorten(f"{first.type}: {first.text}".rstrip(": "), _MAX_EXCEPTION_TEXT)
    text = text or "an exception whose last line is missing"
    where = f" at {place.file.rsplit('/', 1)[-1]}:{place.line}" if place else ""
    if on_several:
        cause, confidence = PYTHON_EXCEPTION_ALL_RANKS, confidences[1]
        who = f"{len(ranks) or 'several'} ranks"
        rank = rank or 0  # the first stands for all
    else:
        cause, confidence = PYTHON_EXCEPTION_ON_ONE_RANK, confidences[0]
        who = f"rank {rank}" if rank is not None else "one process"
    message = f"{who} raised {text}{where}"
    return CauseCandidate(cause.name, tier, confidence, message, lines, rank, place=place)


def _place_of_chain(index: LogIndex, first: LoggedTraceback) -> SourceLine | None:
    """Return the user's line of an exception that was raised because of ``first``."""
    chained = index.all("chained")
    source, before = first.line.source, first.line.number
    for one in index.facts.tracebacks:
        if one.line.source != source or one.line.number <= before:
            continue
        if not any(
            link.line.source == source and before < link.line.number <= one.line.number
            for link in chained
        ):
            return None
        if one.place is not None:
            return one.place
        before = one.line.number
    return None


def _without_copies(
    index: LogIndex, tracebacks: Sequence[LoggedTraceback]
) -> list[LoggedTraceback]:
    """Return the tracebacks without those that a chain, Ray or a pool of processes repeats."""
    chained = index.all("chained")
    return [
        one
        for before, one in zip((None, *tracebacks), tracebacks, strict=False)
        if before is None
        or not any(
            link.line.source == one.line.source == before.line.source
            and before.line.number < link.line.number <= one.line.number
            for link in chained
        )
    ]


def _earliest_first(tracebacks: Sequence[LoggedTraceback]) -> list[LoggedTraceback]:
    """Return the tracebacks, the first by time at the front; where it is unknown, by source."""
    first = tracebacks[0]
    for one in tracebacks:
        if is_later(first.line, one.line):
            first = one
    return [first, *(one for one in tracebacks if one is not first)]


def _first_rank(index: LogIndex, ranks: set[int], lines: Sequence[LogLine]) -> int | None:
    failed = index.first_failed_of(ranks)
    if failed is not None and (not ranks or failed in ranks):
        return failed
    reporting = first_reporting_rank(lines)
    return reporting if reporting is not None else rank_from_launchers(index)


def _without_recovered(
    index: LogIndex, tracebacks: Iterable[LoggedTraceback]
) -> list[LoggedTraceback]:
    """Return the tracebacks without those that a later end or later progress shows were caught.

    If a failure was logged from which the job did not recover, later steps show nothing.
    """
    failed = [
        name
        for name in FAILURES
        if not all(index.is_after_end(signal) for signal in index.unrecovered(name))
    ]
    certain = "failed-code" in failed or "exit-code" in failed
    reported = {position(signal) for signal in index.all("retried", "logged-error")}
    ends = [end.line for end in index.finishes]

    def is_recovered(one: LoggedTraceback) -> bool:
        if one.notice and (
            not one.notice.startswith(_THREAD_NOTICE)
            or any(is_later(one.line, end) for end in ends)
        ):
            return True
        if certain or (failed and not any(is_later(end, one.line) for end in ends)):
            return False
        near = (*range(one.header - _NEAR_LINES, one.header), one.line.number + 1)
        is_reported = any((one.line.source, number) in reported for number in near)
        if is_reported and any(is_later(end, one.line) is None for end in ends):
            return True  # the end is in another log: stdout, or another rank's
        return index.continues_after(one.line, steps=1 if is_reported else MIN_STEPS_AFTER)

    return [one for one in tracebacks if not is_recovered(one)]


def uncaught_tracebacks(index: LogIndex) -> list[LoggedTraceback]:
    """Return the tracebacks that no later progress or end shows to have been caught."""
    return _without_recovered(index, index.facts.tracebacks)


def _is_users_command(one: LoggedTraceback) -> bool:
    """Return whether a command failed that the user's own code ran."""
    is_command = one.type.endswith("CalledProcessError")
    return is_command and one.place is not None and is_user_file(one.place.file)


def is_launchers(one: LoggedTraceback) -> bool:
    """Return whether a launcher raised the exception about the processes that it started."""
    return _LAUNCHER_TYPES.search(one.type) is not None


def is_own_failure(one: LoggedTraceback) -> bool:
    """Return whether the exception is the rank's own: not a launcher's, and not an echo."""
    if one.type.endswith("Warning") or _LAUNCHER_TYPES.search(one.type):
        return False
    if _WRAPPED.match(one.text) or not _EXCEPTION_NAME.search(one.type):
        return False  # the wrapped exception follows in the log; or the name is only a guess
    if _is_refused_by_service(one):
        return True
    return not (_ECHO_TYPES.search(one.type) or _ECHO_TEXTS.search(one.text))


def _is_refused_by_service(one: LoggedTraceback) -> bool:
    """Return whether a service of the user refused the connection, such as a database.

    The rank or a library other than torch made it in Python; torch's store and backends connect in
    C++.
    """
    if not one.frames or not _REFUSED.search(f"{one.type} {one.text}"):
        return False
    called = takewhile(lambda frame: not is_user_file(frame.file), one.frames)
    if any(_OF_THE_JOB.search(frame.file) for frame in called):
        return False
    return one.type.endswith("ConnectionRefusedError") or is_other_library(one.frames[0].file)


def _signature(one: LoggedTraceback) -> tuple[str, str]:
    """Return type and text without numbers, which differ between ranks."""
    return one.type.rsplit(".", 1)[-1], _NUMBERS.sub("0", one.text)[:80]
