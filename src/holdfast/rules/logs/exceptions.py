"""Python exceptions: which are somebody's own and which only echo another's death, and how many ranks raised them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.facts.logs import LoggedTraceback
from holdfast.rules.logs.heard import Candidate, Heard, first_to_speak, place
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import FAILURES, LEAST_AFTERWARDS, overcome, told_by_launchers

#: What launchers raise about the processes that they started.
_LAUNCHERS = re.compile(
    r"(?:ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException|ProcessExitedException|SystemExit"
    r"|KeyboardInterrupt|RendezvousGracefulExitError|RayTaskError|ActorDiedError|WorkerCrashedError)$"
)
#: What a rank raises because another is gone, or because a collective did not end.
_ECHOES = re.compile(
    r"NCCL|ncclComm|ProcessGroup|[Gg]loo|Watchdog|[Cc]onnection (?:reset|closed|refused|aborted)|Broken pipe|Socket "
    r"[Tt]imeout|monitoredBarrier|Application timeout|TCPStore|[Tt]imed out|remote (?:peer|process)|EOFError"
    r"|Store.{0,20}(?:timeout|wait)"
)
_ECHO_TYPES = re.compile(
    r"(?:Dist\w*Error|BrokenPipeError|ConnectionError|ConnectionResetError|TimeoutError|EOFError)$"
)
_WRAPPED = re.compile(r"Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def raised(heard: Heard) -> Iterable[Candidate]:
    """An ordinary exception, of one rank or of all."""
    told = {place(signal) for signal in heard.facts.signals if signal.name in MEANINGS or signal.name == "xid"}
    told |= {place(signal) for signal in heard.facts.signals if signal.name in ("cuda-out-of-memory", "no-space")}
    own = [one for one in heard.facts.tracebacks if is_own(one) and (one.line.source, one.line.number) not in told]
    if not own or _went_on(heard, own[-1]):
        return
    same = [one for one in own if _kind(one) == _kind(own[0])]
    lines = tuple(one.line for one in same)
    ranks = {line.rank for line in lines if line.rank is not None}
    ranks = ranks or {int(rank) for signal in heard.all("worker-failed") for rank in signal.fields.values()}
    rank = heard.first_failed_of(ranks)
    if rank is None or (ranks and rank not in ranks):
        spoke = first_to_speak(lines)
        rank = spoke if spoke is not None else told_by_launchers(heard)
    everybody = len(ranks) > 1 or (not ranks and (len(same) > 1 or len(heard.failed_ranks) > 1))
    said = f"{own[0].type}: {own[0].text}"[:160].rstrip(": ")
    where = f" at {own[0].place.file.rsplit('/', 1)[-1]}:{own[0].place.line}" if own[0].place else ""
    if everybody:
        rank = rank or 0  # all of them: the first stands for the rest
        message = f"{len(ranks) or 'several'} ranks raised {said}{where}"
        yield Candidate("python-exception-all-ranks", Tier.EXCEPTION, 0.85, message, lines, rank, place=own[0].place)
    else:
        who = f"rank {rank}" if rank is not None else "one process"
        yield Candidate(
            "python-exception-on-one-rank", Tier.EXCEPTION, 0.8, f"{who} raised {said}{where}", lines, rank,
            place=own[0].place,
        )  # fmt: skip


def _went_on(heard: Heard, last: LoggedTraceback) -> bool:
    """True where the job finished, or made steps, after the last exception, and nobody saw a failure.

    Somebody caught it then.
    """
    later = [
        signal for signal in heard.all("finished", "progress", "pace")
        if signal.line.source == last.line.source and signal.line.number > last.line.number
    ]  # fmt: skip
    ended = [signal for signal in later if signal.name == "finished"]
    failures = [signal for signal in heard.all("exit-code") if not overcome(heard, signal)]
    if not ended and any(name in heard for name in FAILURES):
        return False
    return (bool(ended) or len(later) >= LEAST_AFTERWARDS) and not heard.failed_ranks and not failures


def is_own(one: LoggedTraceback) -> bool:
    """True unless a launcher tells of a process, or a rank of another that is gone."""
    if one.type.endswith("Warning") or _LAUNCHERS.search(one.type):
        return False
    if _WRAPPED.match(one.text):
        return False  # the exception itself is printed further down
    return not (_ECHO_TYPES.search(one.type) or _ECHOES.search(one.text))


def _kind(one: LoggedTraceback) -> tuple[str, str]:
    """Type and text without numbers, in which ranks differ."""
    return one.type.rsplit(".", 1)[-1], _NUMBERS.sub("0", one.text)[:80]
