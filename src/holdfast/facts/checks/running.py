"""Runs checks side by side, all of them within a limit: one that is late is Unknown, and takes no other with it.

A call that waits inside a driver or for a dead file server cannot be interrupted, neither by a signal nor by a thread:
what is known to block has a process of its own, and whatever does not end is left behind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread

import msgspec

from holdfast.facts import programs
from holdfast.facts.checks import CHECKS, Check, Place, Seen
from holdfast.findings import Unknown

#: Checks under way at once.
_AT_ONCE = 16


class Look(msgspec.Struct, frozen=True):
    """One check that was made: what came of it, and how long it took."""

    check: Check
    seen: Seen | Unknown
    elapsed_s: float


def look(place: Place, checks: Sequence[Check], tell: Callable[[Look], None] | None = None) -> Mapping[str, Look]:
    """Make the checks; ``tell`` hears of each as it ends. One that fails, or is late, is Unknown."""
    begun = time.monotonic()
    ended: SimpleQueue[Look] = SimpleQueue()
    free = Semaphore(_AT_ONCE)

    def make(check: Check) -> None:
        with free:
            ended.put(_one(check, place))

    for check in checks:
        Thread(target=make, args=(check,), name=f"holdfast-check-{check.name}", daemon=True).start()
    done: dict[str, Look] = {}
    with suppress(Empty):
        while len(done) < len(checks):
            found = ended.get(timeout=max(begun + place.within_s - time.monotonic(), 0))
            done[found.check.name] = found
            if tell is not None:
                tell(found)
    late = Unknown(f"it was not over after {place.within_s:g} s, and was left behind")
    return {check.name: done.get(check.name, Look(check, late, place.within_s)) for check in checks}


def _one(check: Check, place: Place) -> Look:
    begun = time.monotonic()
    seen = _aside(check, place) if check.alone else _here(check, place)
    return Look(check, seen, round(time.monotonic() - begun, 3))


def _here(check: Check, place: Place) -> Seen | Unknown:
    try:
        return check.look(place)
    except Exception as error:  # noqa: BLE001 - one check must not take the others with it
        return Unknown(f"{type(error).__name__}: {error}")


def _aside(check: Check, place: Place) -> Seen | Unknown:
    """In a process of its own, which is killed when its time is over, and not waited for if that does not help."""
    limit_s = min(check.limit_s, place.within_s)
    answer = programs.said([sys.executable, "-m", __name__, check.name], limit_s, msgspec.json.encode(place))
    if isinstance(answer, Unknown):
        return Unknown(f"the check {check.name}: {answer.why}")
    try:
        return msgspec.json.decode(answer, type=check.kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unknown(f"the check {check.name} gave no answer that can be read: {error}")


def _main(name: str) -> None:
    """The check in a process of its own: the place on standard input, what was seen on standard output."""
    place = msgspec.json.decode(sys.stdin.buffer.read(), type=Place)
    seen = _here(CHECKS[name], place)
    if isinstance(seen, Unknown):
        sys.exit(seen.why)
    sys.stdout.buffer.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    _main(sys.argv[1])
