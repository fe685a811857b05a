"""GPU memory, Xids, storage and numbers: lines that mean one thing or another by what stands around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.facts import shortages
from holdfast.facts.allocations import Use, use
from holdfast.facts.logs import Line
from holdfast.facts.ranks import Place
from holdfast.findings import Fact
from holdfast.report.evidence import size_text
from holdfast.rules.causes import by_name
from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, XIDS_OF_PROGRAMS, XIDS_THAT_FOLLOW, Tier
from holdfast.rules.logs.plain import FAILURES, candidate, overcome, rank_of
from holdfast.rules.shortage import TOO_LARGE, Why, why

#: Said by who waited for another too long.
_TIMEOUTS = ("gloo-timeout", "socket-timeout", "store-key-timeout", "watchdog-stuck", "barrier-missing", "time-limit")


def memory(heard: Heard) -> Iterable[Candidate]:
    """GPU memory ran out: on one rank, for which the others then waited, or on all alike; why, as the error says."""
    signals = [signal for signal in heard.all("cuda-out-of-memory") if not overcome(heard, signal)]
    if not signals:
        return
    ranks = heard.ranks("cuda-out-of-memory")
    waited = heard.ranks("watchdog-timeout", "gloo-timeout", "peer-closed", "dump-signal") - ranks
    lines = tuple(dict.fromkeys(signal.line for signal in signals))
    rank = rank_of(heard, signals)
    if rank is None and len(heard.facts.hosts) <= 1:  # on one node a rank's GPU mostly has its number
        rank = next((int(signal.fields["gpu"]) for signal in signals if "gpu" in signal.fields), None)
    said = _shortage(heard, lines, rank)
    clause, facts, remedies = (f": {said.why.clause}" if said.why.clause else "", said.facts, said.why.remedies)
    if len(ranks) == 1 and waited and len(heard.failed_ranks - ranks) == 0:
        message = f"rank {rank} alone ran out of GPU memory, and {len(waited)} others waited for it{clause}"
        yield Candidate(
            "oom-on-one-rank-then-timeout", Tier.DEVICE, 0.85, message, lines, rank, place=said.place, facts=facts,
            remedies=(*by_name("oom-on-one-rank-then-timeout").remedies[:1], *remedies) if remedies else (),
        )  # fmt: skip
        return
    who = f" (rank {rank} first)" if rank is not None else ""
    # Where no line names a rank, the first stands for all.
    yield Candidate(
        said.why.cause, Tier.DEVICE, said.why.confidence, f"GPU memory ran out{who}{clause}", lines, rank or 0,
        place=said.place, facts=facts, remedies=remedies,
    )  # fmt: skip


class _Said(NamedTuple):
    """What the error tells, of whom, and at which line of the user's."""

    why: Why
    facts: tuple[Fact, ...]
    place: Place | None


def _shortage(heard: Heard, lines: tuple[Line, ...], rank: int | None) -> _Said:
    """The error with most to tell, that of ``rank`` first."""
    told = [(line, short) for line in lines if (short := shortages.parse(line.text)) is not None]
    told.sort(key=lambda one: (one[1].allocated is None, one[1].wanted is None, one[0].rank != rank))
    if not told or told[0][1].wanted is None:
        return _Said(Why(cause=TOO_LARGE, confidence=0.85, clause=""), (), None)
    line, short = told[0]
    trace = next((each for each in heard.facts.tracebacks if each.line == line), None)
    found = why(short, use(trace.frames) if trace is not None else Use.UNTOLD)
    made_of = ", ".join(f"{size_text(nbytes)} {name}" for name, nbytes in found.parts)
    of = f"of {size_text(short.capacity)}: " if short.capacity is not None else ""
    origin = f"{line.source}:{line.number}"
    facts = (Fact(text=f"{of}{made_of}", origin=origin, rank=line.rank, time=line.time),) if made_of else ()
    return _Said(found, facts, trace.place if trace is not None else None)


def xid(heard: Heard) -> Iterable[Candidate]:
    """Xids of the NVIDIA driver: most say that the GPU is at fault, some that the program is."""
    for signal in heard.all("xid"):
        number = int(signal.fields["xid"])
        where = f"GPU {signal.fields['pci']}" + (f" of {signal.line.host}" if signal.line.host else "")
        if number in XIDS_THAT_FOLLOW:
            continue
        cause, confidence = "gpu-fell-off-bus-xid-ecc", 0.95
        if number in XIDS_OF_PROGRAMS:
            cause, confidence = "cuda-kernel-fault", 0.7
        message = f"the driver reports Xid {number} for {where}"
        yield Candidate(cause, Tier.MACHINE, confidence, message, (signal.line,), host=signal.line.host)


def storage(heard: Heard) -> Iterable[Candidate]:
    """A full or stuck disk: a checkpoint's where a checkpoint is spoken of, shared memory's where that is."""
    for name in ("no-space", "checkpoint-slow", "checkpoint-long"):
        if name == "checkpoint-long" and not any(told in heard for told in (*FAILURES, *_TIMEOUTS)):
            continue  # it took its time, and nobody minded
        for signal in heard.all(name):
            if overcome(heard, signal):
                continue
            if "shm" in signal.line.text or "torch_" in signal.line.text or "shm-full" in heard:
                continue
            full = name == "no-space"
            told = "checkpoint-word" in heard
            sentence = (
                "the disk that checkpoints are written to is full" if full else MEANINGS["checkpoint-slow"].sentence
            )
            confidence = 0.9 if full and told else 0.6
            yield Candidate(
                "checkpoint-io-slow-timeout", Tier.DEVICE, confidence, sentence, (signal.line,), signal.line.rank
            )
            return


def numbers(heard: Heard) -> Iterable[Candidate]:
    """NaN in the loss, unless training went on from it."""
    signals = [signal for signal in heard.all("nan") if not overcome(heard, signal)]
    if signals:
        yield candidate(heard, MEANINGS["nan"], signals)
