"""The file in which is kept what links between ranks were measured to do.

``holdfast bench`` writes it; the policy of time limits (``runtime/comm/limits.py``) and planning read it. It is never
trusted: what does not fit the types and bounds is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast import settings
from holdfast.errors import MissingFile
from holdfast.measured.fit import Fit
from holdfast.report.files import write_whole

SCHEMA = "holdfast/links/1"
MOST_BYTES = 1 << 20
#: Fits that are kept, the newest.
MOST_KEPT = 256


class _Kept(msgspec.Struct, frozen=True):
    schema: str = SCHEMA
    fits: Annotated[tuple[Fit, ...], msgspec.Meta(max_length=MOST_KEPT)] = ()


def place() -> Path:
    """The file in which fits are kept, in the user's caches."""
    return settings.cache_folder() / "links.json"


def kept(file: Path | None = None) -> tuple[Fit, ...]:
    """The fits in the file, the newest last; none where it is not there, or is no such file. Never raises."""
    try:
        with (file or place()).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        found = msgspec.json.decode(data, type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return found.fits if len(data) <= MOST_BYTES and found.schema == SCHEMA else ()


def keep(fits: Iterable[Fit], file: Path | None = None) -> Path | None:
    """Put fits into the file, in place of older ones of the same kind; where they are now, None where they cannot be.

    Whole or not at all: ranks of several hosts may write to a shared home at once, and then the last one counts.
    """
    target = file or place()
    by_key = {each.key: each for each in kept(target)}
    for each in fits:
        by_key.pop(each.key, None)
        by_key[each.key] = each
    with suppress(OSError, MissingFile):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, msgspec.json.encode(_Kept(fits=tuple(by_key.values())[-MOST_KEPT:])) + b"\n")
        return target
    return None


def known(fits: Sequence[Fit], *, backend: str, ranks: int, hosts: int | None = None) -> Fit | None:
    """The fit of sums over so many ranks, by torch's own call; of the slowest number of hosts where that is not known.

    Sums stand for all collectives: none of them moves more for a buffer of the same size.
    """
    alike = [
        each for each in fits
        if (each.collective, each.way, each.backend, each.ranks) == ("all_reduce", "torch", backend, ranks)
        and hosts in (None, each.hosts)
    ]  # fmt: skip
    return min(alike, key=lambda each: each.bandwidth, default=None)
