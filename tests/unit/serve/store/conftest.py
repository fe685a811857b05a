"""A store in SQLite, and in a PostgreSQL server that the tests start."""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
pytest.importorskip("alembic", reason="alembic is not installed")

from tests import ports

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def _as_postgres(*command):
    """Run a program of PostgreSQL, which refuses to run as root."""
    user = {}
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=60, **user)


@pytest.fixture(scope="session")
def postgresql():
    """Return the URL of an empty PostgreSQL server."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed")
    if os.getuid() == 0 and "postgres" not in {each.pw_name for each in pwd.getpwall()}:
        pytest.skip("there is no user postgres")
    programs, port = PROGRAMS[-1], ports.free_port()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgresql-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        _as_postgres(programs / "initdb", "-D", data, "-A", "trust", "-U", "holdfast", "--no-sync")
        _as_postgres(
            programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"
        )
        yield f"postgresql://holdfast:verysecret@127.0.0.1:{port}"
        _as_postgres(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_database(postgresql):
    """Return the URL of a new database."""
    import psycopg

    name = f"h{secrets.token_hex(8)}"
    with psycopg.connect(f"{postgresql}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgresql}/{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def location(request, tmp_path):
    """Return a file or a URL for a new store."""
    if request.param == "sqlite":
        return str(tmp_path / "history.sqlite")
    return request.getfixturevalue("postgresql_database")
