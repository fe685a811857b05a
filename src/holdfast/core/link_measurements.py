"""The file of measured link latencies and bandwidths between ranks.

``holdfast bench`` writes it; the timeout policy (``training/collectives/timeouts.py``) and the
planner read it. It is never trusted: a file that violates the types and bounds is rejected as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.core import settings
from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.measurements.fit import AlphaBetaFit

SCHEMA = "holdfast/links/1"
MAX_BYTES = 1 << 20
#: Number of fits in the file; the newest are kept.
MAX_FITS = 256


class _FitsDocument(msgspec.Struct, frozen=True):
    schema: str = SCHEMA
    fits: Annotated[tuple[AlphaBetaFit, ...], msgspec.Meta(max_length=MAX_FITS)] = ()


def fits_file() -> Path:
    """Return the path of the file in the user's cache folder."""
    return settings.cache_folder() / "links.json"


def load_fits(file: Path | None = None) -> tuple[AlphaBetaFit, ...]:
    """Return the fits in the file, newest last; none if it is missing or invalid. Never raises."""
    path = file or fits_file()
    try:
        return decode_document(
            read_bounded(path, MAX_BYTES),
            _FitsDocument,
            schema=SCHEMA,
            max_bytes=MAX_BYTES,
            error=lambda problem: InvalidValue(path, why=f"it {problem}"),
        ).fits
    except (OSError, InvalidValue):
        return ()


def save_fits(fits: Iterable[AlphaBetaFit], file: Path | None = None) -> Path | None:
    """Merge fits into the file, replacing those of the same key.

    Return its path, None if not writable.

    The write is atomic: ranks of several hosts may write to a shared home folder; the last one
    wins.
    """
    target = file or fits_file()
    by_key = {fit.key: fit for fit in load_fits(target)}
    for fit in fits:
        by_key.pop(fit.key, None)
        by_key[fit.key] = fit
    with suppress(OSError, MissingFile):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            target,
            msgspec.json.encode(_FitsDocument(fits=tuple(by_key.values())[-MAX_FITS:])) + b"\n",
        )
        return target
    return None


def find_fit(
    fits: Sequence[AlphaBetaFit], *, backend: str, ranks: int, hosts: int | None = None
) -> AlphaBetaFit | None:
    """Return the all-reduce fit of torch's own call for this many ranks.

    The slowest if several match.

    All-reduce bounds all collectives: none moves more data for a buffer of the same size. ``hosts``
    is None where the number of hosts is unknown.
    """
    matching = [
        fit
        for fit in fits
        if (fit.collective, fit.way, fit.backend, fit.ranks)
        == ("all_reduce", "torch", backend, ranks)
        and hosts in (None, fit.hosts)
    ]
    return min(matching, key=lambda fit: fit.bandwidth, default=None)
