"""Runs checks side by side, each within its limit: one that may block has a process of its own, which is left behind.

A call that waits inside a driver or for a dead file server cannot be interrupted, neither by a signal nor by a thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

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
    """Make the checks; ``tell`` hears of each as it ends. A check that fails or takes too long is Unknown."""
    with ThreadPoolExecutor(_AT_ONCE, "holdfast-check") as pool:
        under_way = [pool.submit(_one, check, place) for check in checks]
        done: dict[str, Look] = {}
        for ended in as_completed(under_way):
            found = ended.result()
            done[found.check.name] = found
            if tell is not None:
                tell(found)
    return {check.name: done[check.name] for check in checks}


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
    answer = programs.said([sys.executable, "-m", __name__, check.name], check.limit_s, msgspec.json.encode(place))
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
