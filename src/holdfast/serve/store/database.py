"""Open the history store, migrate its schema, and run transactions that many processes may retry.

SQLite: WAL, so that readers never block writers; a rollback journal on network file systems, where
WAL does not work. Writers take the lock when they begin (BEGIN IMMEDIATE) and wait for it.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast.core.errors import HistoryUnusable, InvalidValue, MissingFile
from holdfast.core.text import one_line, shorten
from holdfast.serve.store.location import SETTING, require_libraries, store_url

_Result = TypeVar("_Result")

#: Seconds that a transaction waits for other writers, in total.
BUSY_S = 20.0
CONNECT_S = 5
#: Name of the lock that a process holds while it migrates a PostgreSQL database (any number).
_MIGRATION_LOCK = 4_020_776
_MIGRATIONS = Path(__file__).with_name("migrations")
#: Errors after which a transaction is repeated: SQLite's texts, PostgreSQL's codes.
_BUSY_TEXTS = ("database is locked", "database table is locked")
_RETRY_CODES = ("40001", "40P01", "55P03")
_REASONS = {
    "database is locked": "another process has locked it for {busy}",
    "database or disk is full": "the disk is full",
    "file is not a database": "it is not a SQLite database",
    "readonly": "it is read-only",
    "unable to open database file": "its folder is missing or not writable",
    "malformed": "the file is damaged",
}
ADD_LATER = "the run folders keep all records: add them later with `holdfast history index`"


class HistoryStore:
    """The history store at ``location``, a file or a URL; opening migrates an older schema.

    A SQLite file that does not exist is created only if ``create``.

    Raises:
        MissingFile: it does not exist.
        MissingExtra: a library is not installed.
        InvalidValue: the URL is invalid.
        HistoryUnusable: it cannot be opened, or its schema is newer.
    """

    def __init__(self, location: str, *, create: bool = False, busy_s: float = BUSY_S) -> None:
        require_libraries(location)
        try:
            self._url = make_url(store_url(location))
        except (SQLAlchemyError, ValueError) as error:
            why = "it is not a URL of a database"
            raise InvalidValue(SETTING, why=why) from error
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        #: The file, or the URL without its password.
        self.name = str(self._url.database if self.is_sqlite else self._url)
        self._busy_s, self._next_step = busy_s, ADD_LATER if create else ""
        if self.is_sqlite and not create and not Path(self.name).is_file():
            step = "add runs with `holdfast history index FOLDER`, or name it with --store"
            raise MissingFile(self.name, why="there is no history store yet", next_step=step)
        limit = {"timeout": busy_s} if self.is_sqlite else {"connect_timeout": CONNECT_S}
        self._engine = create_engine(self._url, poolclass=NullPool, connect_args=limit)
        if self.is_sqlite:
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._reader = self._engine.execution_options(holdfast_reads=True)
        self._migrate()

    def read(self, work: Callable[[Session], _Result]) -> _Result:
        """Return ``work(session)``, which changes nothing. Raises HistoryUnusable."""
        return self._transaction(self._reader, work)

    def write(self, work: Callable[[Session], _Result]) -> _Result:
        """Run ``work(session)`` in a transaction, repeated if other writers interfered.

        Raises:
            HistoryUnusable: it failed; nothing was changed.
        """
        return self._transaction(self._engine, work)

    def _transaction(self, engine: Engine, work: Callable[[Session], _Result]) -> _Result:
        def attempt() -> _Result:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)

        return self._repeat(attempt)

    def _repeat(self, attempt: Callable[[], _Result]) -> _Result:
        until, pause_s = time.monotonic() + self._busy_s, 0.02
        while True:
            try:
                return attempt()
            except (SQLAlchemyError, sqlite3.Error) as error:
                if not _is_temporary(error) or time.monotonic() > until:
                    raise self._explain(error) from error
            time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, 1.0)

    def _explain(self, error: Exception) -> HistoryUnusable:
        original = getattr(error, "orig", None) or error
        reason = one_line(str(original)).partition(" Is the server running")[0]
        signs = _REASONS if self.is_sqlite else {}
        why = next((text for sign, text in signs.items() if sign in reason), shorten(reason, 300))
        why = why.replace("{busy}", f"{self._busy_s:.0f} s")
        return HistoryUnusable(self.name, why=why, next_step=self._next_step)

    # The schema

    def _migrate(self) -> None:
        def is_current() -> bool:
            with self._reader.begin() as connection:
                return _version(connection) == newest_version()

        def upgrade() -> None:
            with self._engine.begin() as connection:
                self._upgrade(connection)

        if not self._repeat(is_current):
            self._repeat(upgrade)

    def _upgrade(self, connection: Connection) -> None:
        """Create or migrate the tables; concurrent processes wait for the first one."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _MIGRATION_LOCK})
        version = _version(connection)
        if version == newest_version():
            return
        if version is not None and version not in known_versions():
            raise HistoryUnusable(
                self.name,
                why=f"its schema {version} is newer than this version of holdfast supports "
                f"({newest_version()})",
                next_step="; ".join(filter(None, ("upgrade holdfast", self._next_step))),
            )
        _run_migrations(connection)


def known_versions() -> tuple[str, ...]:
    """Return the versions of the schema, oldest first."""
    names = sorted(path.name for path in (_MIGRATIONS / "versions").glob("v*.py"))
    return tuple(name[1:5] for name in names)


def newest_version() -> str:
    """Return the version of the schema that this version of holdfast uses."""
    return known_versions()[-1]


def _version(connection: Connection) -> str | None:
    """Return the schema's version; None if there are no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run_migrations(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - 0.1 s, only for a new or older store
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, newest_version())


# SQLite


def _configure_sqlite(connection: Any, _record: Any) -> None:
    """Leave transactions to us, and set the journal and the constraints."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode")
    (journal,), (_, _, file) = cursor.fetchone(), cursor.execute("PRAGMA database_list").fetchone()
    wanted = "delete" if file and is_network_folder(Path(file).parent) else "wal"
    if journal != wanted:
        cursor.execute(f"PRAGMA journal_mode = {wanted}")
    cursor.execute(
        "PRAGMA synchronous = NORMAL" if wanted == "wal" else "PRAGMA synchronous = FULL"
    )
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get("holdfast_reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def is_network_folder(folder: Path) -> bool:
    """Return whether ``folder`` is on a file system that several hosts share."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    target, found = str(folder.resolve()), ("", "")
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):
            found = point, kind
    return found[1].startswith(_NETWORK)


_NETWORK = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "9p", "fuse.", "glusterfs", "panfs",
    "wekafs", "afs", "ocfs2", "gfs2", "virtiofs",
)  # fmt: skip


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, IntegrityError):
        return True  # another process inserted the same run
    original = getattr(error, "orig", None) or error
    reason, code = str(original).casefold(), getattr(original, "sqlstate", None)
    return code in _RETRY_CODES or any(sign in reason for sign in _BUSY_TEXTS)
