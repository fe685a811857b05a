"""Where the history store is, without importing a database library."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from holdfast.core import settings
from holdfast.core.errors import InvalidValue, MissingExtra

#: The file in the folder of all runs.
FILE = "history.sqlite"
OFF = "off"
SETTING = "HOLDFAST_HISTORY_STORE"
#: Beside the store: a file for each run whose newest records it lacks.
_MARKERS = ".unindexed"
_INSTALL = "install it with: pip install 'holdfast[{}]'"


def store_location(runs: Path, option: str | None = None) -> str | None:
    """Return the file or URL of the store for the runs in the folder ``runs``; None: off.

    ``option`` overrides the variable.
    """
    text = option or settings.read_text(SETTING) or str(runs.absolute() / FILE)
    return None if text.casefold() == OFF else text


def is_beside_runs() -> bool:
    """Return whether the store is the default one, whose readers add what it lacks."""
    return not settings.read_text(SETTING)


def run_marker(folder: Path) -> Path:
    """Return the file that exists while the store beside a run folder lacks its newest records."""
    return folder.parent / _MARKERS / folder.name


def unindexed_runs(runs: Path) -> tuple[Path, ...]:
    """Return the run folders in ``runs`` that the store beside them lacks, oldest first."""
    folders = sorted(runs / marker.name for marker in (runs / _MARKERS).glob("*"))
    return tuple(folder for folder in folders if folder.is_dir())


def store_url(location: str) -> str:
    """Return SQLAlchemy's URL of a file or a URL.

    Raises:
        InvalidValue: another database than SQLite and PostgreSQL.
    """
    scheme, separator, rest = location.partition("://")
    if not separator:
        return f"sqlite:///{Path(location).expanduser().absolute()}"
    if scheme == "sqlite":
        return location
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return f"postgresql+psycopg://{rest}"
    raise InvalidValue(
        SETTING,
        why=f"{scheme}:// is not supported",
        next_step="use a file, or a URL such as postgresql://user@host/database",
    )


def is_installed() -> bool:
    """Return whether the libraries of the store are installed."""
    return find_spec("sqlalchemy") is not None and find_spec("alembic") is not None


def require_libraries(location: str = "") -> None:
    """Raise MissingExtra if the libraries for the store at ``location`` are not installed."""
    for name, extra in (("sqlalchemy", "serve"), ("alembic", "serve"), ("psycopg", "postgresql")):
        if find_spec(name) is None and (name != "psycopg" or location.startswith("postgres")):
            raise MissingExtra(name, next_step=_INSTALL.format(extra))
