"""GPU memory, Xids, storage and numbers: lines that mean one thing or another by what stands around them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, XIDS_OF_PROGRAMS, XIDS_THAT_FOLLOW, Tier
from holdfast.rules.logs.plain import FAILURES, candidate, overcome, rank_of

#: Said by who waited for another too long.
_TIMEOUTS = ("gloo-timeout", "socket-timeout", "store-key-timeout", "watchdog-stuck", "barrier-missing", "time-limit")


def memory(heard: Heard) -> Iterable[Candidate]:
    """GPU memory ran out: on one rank, for which the others then waited, or on all alike."""
    signals = [signal for signal in heard.all("cuda-out-of-memory") if not overcome(heard, signal)]
    if not signals:
        return
    ranks = heard.ranks("cuda-out-of-memory")
    waited = heard.ranks("watchdog-timeout", "gloo-timeout", "peer-closed", "dump-signal") - ranks
    lines = tuple(signal.line for signal in signals)
    rank = rank_of(heard, signals)
    if rank is None and len(heard.facts.hosts) <= 1:  # on one node a rank's GPU mostly has its number
        rank = next((int(signal.fields["gpu"]) for signal in signals if "gpu" in signal.fields), None)
    if len(ranks) == 1 and waited and len(heard.failed_ranks - ranks) == 0:
        message = f"rank {rank} alone ran out of GPU memory, and {len(waited)} others waited for it"
        yield Candidate("oom-on-one-rank-then-timeout", Tier.DEVICE, 0.85, message, lines, rank)
        return
    who = f" (rank {rank} first)" if rank is not None else ""
    # Where no line names a rank, the first stands for all.
    yield Candidate("gpu-oom-all-ranks", Tier.DEVICE, 0.85, f"GPU memory ran out{who}", lines, rank or 0)


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
