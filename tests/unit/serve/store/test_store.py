"""The history store with SQLite and PostgreSQL: indexing, queries, migrations, many writers, faults."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from holdfast.core.collective_history import CollectiveHistory, CollectiveProblem
from holdfast.core.errors import HistoryUnusable, InvalidValue, MissingFile
from holdfast.core.failures import RecoveryAction
from holdfast.serve.store import database
from holdfast.serve.store.database import HistoryStore, newest_version
from holdfast.serve.store.index import index_folders, prune
from holdfast.serve.store.location import store_location, store_url
from holdfast.serve.store.queries import (
    IncidentFilter,
    read_incidents,
    read_runs,
    read_slow_collectives,
)
from holdfast.serve.store.run_rows import find_run_folders, read_run
from holdfast.serve.store.tables import StoreBase
from holdfast.watcher.history_facts import encode_history
from tests.unit.serve.store.past_runs import BEGAN, ended, failed, started, write_run


def index(location, *folders):
    return index_folders(HistoryStore(location, create=True), folders)


def test_a_run_is_stored_with_its_starts_incidents_and_decisions(location, tmp_path):
    folder = write_run(tmp_path / "r1", text="train.py --api-key 0123456789abcdef")
    result = index(location, folder)
    assert (result.runs, result.incidents, result.unreadable) == (1, 1, ())
    (run,) = read_runs(HistoryStore(location))
    assert (run.name, run.folder, run.host) == ("r1", str(folder), "a")
    assert (run.began, run.ended, run.status) == (BEGAN, BEGAN + 3600, 0)
    assert "0123456789abcdef" not in run.command
    assert [(each.generation, each.at, each.world_size) for each in run.starts] == [
        (0, BEGAN, 8),
        (1, BEGAN + 1100, 8),
    ]
    (incident,) = run.incidents
    assert (incident.code, incident.cause, incident.rank, incident.dead) == (
        "PROC006",
        "rank-killed",
        1,
        [1],
    )
    assert (incident.saved_at, incident.progressed) == (BEGAN + 800, BEGAN + 950)
    assert incident.recovered == BEGAN + 1100
    assert (incident.decision.action, incident.decision.reason) == ("restart", "restart 1 of 3")


def test_indexing_is_idempotent_and_updates_a_run_that_continued(location, tmp_path):
    folder = write_run(tmp_path / "r1", [started(0), failed(1000)])
    for _ in range(2):
        index(location, folder)
    (run,) = read_runs(HistoryStore(location))
    assert (run.ended, run.status, run.seen) == (None, None, BEGAN + 1000)
    assert [each.recovered for each in run.incidents] == [None]
    shutil.rmtree(folder)
    write_run(folder)
    index(location, folder)
    (run,) = read_runs(HistoryStore(location))
    assert (run.ended, run.status, len(run.starts)) == (BEGAN + 3600, 0, 2)
    assert [each.recovered for each in run.incidents] == [BEGAN + 1100]


def test_the_folders_of_all_nodes_of_a_job_are_one_run(location, tmp_path):
    records = [started(0, job="first", nodes=2), failed(9), started(10, 1, job="first", nodes=2)]
    first = write_run(tmp_path / "first", [*records, ended(90, 1)])
    second = write_run(tmp_path / "second", [*records, ended(91, 0)], host="b", began=-1.0)
    excluded = write_run(tmp_path / "excluded", records[:2], host="c")
    index(location, second, first, excluded)
    (run,) = read_runs(HistoryStore(location))
    assert (run.name, run.nodes, run.began) == ("first", 2, BEGAN - 1)
    assert (run.ended, run.status) == (BEGAN + 91, 0)
    assert (len(run.starts), len(run.incidents)) == (2, 1)
    assert run.incidents[0].recovered == BEGAN + 10  # which the excluded host has not seen


def test_incidents_are_filtered_by_time_cause_and_host(location, tmp_path):
    write_run(
        tmp_path / "r",
        [
            started(0),
            failed(10),
            failed(20, 1, host="b", rank=2, cause=("SYNC002", "rank-missing-collective")),
        ],
    )
    index(location, *find_run_folders(tmp_path))
    store = HistoryStore(location)

    def ranks(**wanted):
        return [each.rank for each in read_incidents(store, IncidentFilter(**wanted))]

    assert ranks() == [2, 1]
    assert ranks(since=BEGAN + 15) == [2]
    assert ranks(cause="sync002") == ranks(cause="rank-missing-collective") == [2]
    assert ranks(host="a") == [1]
    assert ranks(host="a", cause="SYNC002") == []


def test_pruning_deletes_old_runs_with_everything_of_them(location, tmp_path):
    write_run(tmp_path / "old")
    write_run(tmp_path / "new", [started(5000, 0), failed(6000)], began=5000.0)
    index(location, *find_run_folders(tmp_path))
    store = HistoryStore(location)
    assert prune(store, BEGAN + 4000) == 1
    assert [run.name for run in read_runs(store)] == ["new"]
    assert [each.run for each in read_incidents(store, IncidentFilter())] == ["new"]
    assert store.read(
        lambda session: [
            session.scalar(text(f"SELECT count(*) FROM {table}"))
            for table in ("starts", "decisions")
        ]
    ) == [1, 1]


def test_the_migrations_create_the_tables_of_the_models(location):
    HistoryStore(location, create=True).read(
        lambda session: (
            compare_metadata(MigrationContext.configure(session.connection()), StoreBase.metadata)
            == []
            or pytest.fail("the models differ from the migrations")
        )
    )


def test_a_newer_schema_is_refused_in_one_sentence_and_kept(location):
    HistoryStore(location, create=True).write(
        lambda session: session.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    )
    with pytest.raises(HistoryUnusable) as caught:
        HistoryStore(location)
    assert "its schema 0999 is newer than this version of holdfast supports" in str(caught.value)
    assert "upgrade holdfast" in str(caught.value)
    assert "verysecret" not in str(caught.value)


def test_an_older_schema_is_migrated_with_its_rows(location, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "newest_version", lambda: "0001")
    old = HistoryStore(location, create=True)
    old.write(lambda session: session.add(read_run(write_run(tmp_path / "r1")).run))
    with pytest.raises(HistoryUnusable, match="slow_collectives"):
        read_slow_collectives(old)
    monkeypatch.undo()
    store = HistoryStore(location)
    assert read_slow_collectives(store) == []
    assert [run.name for run in read_runs(store)] == ["r1"]
    assert store.read(lambda session: session.scalar(text("SELECT * FROM alembic_version"))) == (
        newest_version()
    )


def test_slow_collectives_are_stored_and_kept_when_the_history_forgets_them(location, tmp_path):
    folder, history = write_run(tmp_path / "r1"), tmp_path / "history"
    history.mkdir()

    def index_problem(**fields):
        problem = CollectiveProblem(
            group="default", size=20, phase="training", link="tcp", site="train.py:4", **fields
        )
        content = CollectiveHistory(runs=1, run="r1", troubles=(problem,))
        (history / "host.json").write_bytes(encode_history(content))
        index(location, folder)

    index_problem(operation="all_reduce", timeouts=1, limit_s=10.0, at=5.0)
    index_problem(operation="all_reduce", timeouts=3, limit_s=20.0, at=9.0)
    index_problem(operation="broadcast", slow=1, longest_s=4.0, at=7.0)
    store = HistoryStore(location)
    assert [
        (each.operation, each.timeouts, each.limit_s, each.longest_s)
        for each in read_slow_collectives(store)
    ] == [("all_reduce", 3, 20.0, 0.0), ("broadcast", 0, 0.0, 4.0)]
    assert [each.operation for each in read_slow_collectives(store, since=8.0)] == ["all_reduce"]
    prune(store, 8.0)
    assert [each.operation for each in read_slow_collectives(store)] == ["all_reduce"]


WRITERS = """
import os, sys
from pathlib import Path
import alembic.command, alembic.runtime.migration
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.index import index_folders
location, shared, *own = sys.argv[1:]
reader, writer = os.pipe()
for folder in own:
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1)  # ends when all processes exist
        for _ in range(5):
            index_folders(HistoryStore(location, create=True), [Path(folder), Path(shared)])
        sys.exit()
os.close(writer)
sys.exit(any([os.wait()[1] for _ in own]))
"""


@pytest.mark.slow
def test_eight_processes_create_and_write_one_store(location, tmp_path):
    """Each writes a run of its own and the same run as the others, five times."""
    shared = write_run(tmp_path / "runs" / "shared")
    own = [write_run(tmp_path / "runs" / f"run{number}") for number in range(8)]
    command = [sys.executable, "-c", WRITERS, location, shared, *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.stderr, done.returncode) == ("", 0)
    runs = read_runs(HistoryStore(location))
    assert sorted(run.name for run in runs) == [*(f"run{number}" for number in range(8)), "shared"]
    assert {(len(run.starts), len(run.incidents)) for run in runs} == {(2, 1)}


# SQLite's faults


def test_a_file_uses_a_write_ahead_log(tmp_path):
    store = HistoryStore(str(tmp_path / "h"), create=True)
    assert store.read(lambda session: session.scalar(text("PRAGMA journal_mode"))) == "wal"


def test_a_network_folder_uses_no_write_ahead_log(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "is_network_folder", lambda folder: folder == tmp_path)
    store = HistoryStore(str(tmp_path / "h"), create=True)
    assert store.read(lambda session: session.scalar(text("PRAGMA journal_mode"))) == "delete"


def test_a_locked_file_is_reported_after_the_limit_and_readers_continue(tmp_path):
    file, folder = tmp_path / "h", write_run(tmp_path / "r")
    index(str(file), folder)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(read_runs(HistoryStore(str(file)))) == 1
        with pytest.raises(HistoryUnusable) as caught:
            index_folders(HistoryStore(str(file), create=True, busy_s=0.2), [folder])
    assert "another process has locked it for 0 s; the run folders keep all" in str(caught.value)
    assert index(str(file), folder).runs == 1


def test_a_full_store_is_reported_and_keeps_its_runs(tmp_path):
    file = str(tmp_path / "h")
    index(file, write_run(tmp_path / "r0"))
    many = [write_run(tmp_path / f"r{number}", text="x" * 1900) for number in range(1, 40)]
    store = HistoryStore(file, create=True)
    database.event.listen(
        store._engine, "connect", lambda db, _: db.execute("PRAGMA max_page_count = 30")
    )
    with pytest.raises(HistoryUnusable, match=r"the disk is full; the run folders keep all"):
        index_folders(store, many)
    assert [run.name for run in read_runs(HistoryStore(file))] == ["r0"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello, this is text" * 99, "it is not a SQLite database"),
        (b"SQLite format 3\0" + b"junk" * 99, "it is not a SQLite database|damaged"),
    ],
)
def test_a_file_that_is_no_database_is_reported_and_kept(tmp_path, content, why):
    (tmp_path / "h").write_bytes(content)
    with pytest.raises(HistoryUnusable, match=why):
        HistoryStore(str(tmp_path / "h"), create=True)
    assert (tmp_path / "h").read_bytes() == content


def test_a_missing_file_or_folder_is_reported(tmp_path):
    with pytest.raises(MissingFile, match="there is no history store yet"):
        HistoryStore(str(tmp_path / "h"))
    with pytest.raises(HistoryUnusable, match="its folder is missing or not writable"):
        HistoryStore(str(tmp_path / "no" / "h"), create=True)
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_reported_without_its_password():
    with pytest.raises(HistoryUnusable) as caught:
        HistoryStore("postgresql://me:verysecret@127.0.0.1:1/db", create=True, busy_s=0.1)
    assert "Connection refused" in str(caught.value)
    assert "verysecret" not in str(caught.value)


def test_other_databases_and_invalid_urls_are_refused():
    for location in ("mysql://host/db", "postgresql://host:port/db"):
        with pytest.raises(InvalidValue):
            HistoryStore(location)


def test_where_the_store_is(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_HISTORY_STORE", raising=False)
    assert store_location(tmp_path) == str(tmp_path / "history.sqlite")
    monkeypatch.setenv("HOLDFAST_HISTORY_STORE", "off")
    assert store_location(tmp_path) is None
    assert store_location(tmp_path, "x.db") == "x.db"
    assert store_url("postgres://h/d") == "postgresql+psycopg://h/d"


# Ledgers


def test_a_run_without_started_workers_is_skipped_and_bad_ledgers_are_counted(tmp_path):
    write_run(tmp_path / "r1", [])
    write_run(tmp_path / "r2", [started(0), failed(5, action=RecoveryAction.STOP), ended(9, 1)])
    (tmp_path / "r3").mkdir()
    (tmp_path / "r3" / "ledger.jsonl").write_bytes(b"\0\xff" * 9)
    result = index(str(tmp_path / "h"), *find_run_folders(tmp_path))
    assert (result.runs, result.incidents) == (1, 1)
    assert len(result.unreadable) == 1
    assert "it contains no line of the schema" in result.unreadable[0]


def test_text_that_databases_refuse_is_escaped(location, tmp_path):
    index(location, write_run(tmp_path / "r", text="train.py 'a\0b\x1b[0m'"))
    (run,) = read_runs(HistoryStore(location))
    assert run.command == r"train.py 'a\x00b\x1b[0m'"


def test_the_newest_version_is_that_of_the_last_migration():
    assert newest_version() == database.known_versions()[-1]
