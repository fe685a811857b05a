"""Options that the commands of ``holdfast history`` share, and how they open the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.core import settings
from holdfast.core.errors import HistoryUnusable, InvalidValue, UsageError

if TYPE_CHECKING:  # an extra, imported when used
    from holdfast.serve.store.database import HistoryStore


def parse_duration_option(
    _: click.Context, option: click.Parameter, text: str | None
) -> float | None:
    """Return a duration such as 7d or 12h in seconds, as a click callback. Raises InvalidValue."""
    seconds = None if text is None else settings.parse_time(text)
    if text is not None and seconds is None:
        why = f"{text!r} is not a duration"
        raise InvalidValue(option.opts[0], why=why, next_step="use e.g. 7d, 12h or 90m")
    return seconds


_Command = Callable[..., Any]


def store_option(function: _Command) -> _Command:
    """Add ``--store``."""
    return click.option(
        "--store",
        metavar="FILE|URL",
        help="The history store (default: HOLDFAST_HISTORY_STORE, or history.sqlite in the folder "
        "of all runs).",
    )(function)


def since_option(default: str | None = None) -> Callable[[_Command], _Command]:
    """Add ``--since``, the age of the oldest entries in seconds."""
    shown = f"default: {default}" if default else "default: all"
    return click.option(
        "--since",
        metavar="TIME",
        callback=parse_duration_option,
        default=default,
        help=f"Only the last TIME, such as 7d or 12h ({shown}).",
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object to stdout."
)


def runs_folder() -> Path:
    """Return the folder in which ``holdfast run`` creates the run folders."""
    return Path(str(settings.read_setting("HOLDFAST_RUN_DIR").value)).expanduser()


def open_store(
    option: str | None,
    *,
    runs: Path | None = None,
    create: bool = False,
    busy_s: float | None = None,
) -> HistoryStore:
    """Open the store of ``--store``, of the variable, or beside the run folders.

    The latter first gets the runs that it lacks.

    Raises:
        UsageError: it is off, it does not exist, or a library is missing.
        HistoryUnusable: it cannot be used.
    """
    from holdfast.serve.store import location

    runs = runs or runs_folder()
    place = location.store_location(runs, option)
    if place is None:
        raise UsageError(
            "there is no history store",
            why=f"{location.SETTING} is off",
            next_step="name one with --store",
        )
    location.require_libraries(place)
    from holdfast.serve.store.database import BUSY_S, HistoryStore

    lacking = () if option or not location.is_beside_runs() else location.unindexed_runs(runs)
    store = HistoryStore(
        place, create=create or bool(lacking), busy_s=BUSY_S if busy_s is None else busy_s
    )
    if lacking and not create:
        from holdfast.serve.store.index import index_folders

        with suppress(HistoryUnusable):  # read-only: as far as it goes
            index_folders(store, lacking)
    return store


def window_start(since: float | None) -> float:
    """Return the Unix time from which entries are shown."""
    return 0.0 if since is None else time.time() - since


def format_moment(at: float) -> str:
    """Return a Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def align_columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield one line per row with left-aligned columns."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
