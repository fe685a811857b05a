"""Runs are added to the store by a process of its own; faults are one warning."""

import pytest

from holdfast.serve.store import background
from holdfast.serve.store.background import BackgroundIndexer
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.location import unindexed_runs
from holdfast.serve.store.queries import read_runs
from tests.unit.serve.store.past_runs import ONE_FAILURE, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    """Set and return a store for whose last update the end of a run waits."""
    path = tmp_path / "here.sqlite"
    monkeypatch.setenv("HOLDFAST_HISTORY_STORE", str(path))
    return path


def index(folder, warnings):
    indexer = BackgroundIndexer(warnings.append)
    for _ in range(3):
        indexer.changed(folder)
    indexer.close()


def test_a_run_is_added(tmp_path, store):
    warnings = []
    index(write_run(tmp_path / "r1"), warnings)
    assert warnings == []
    (run,) = read_runs(HistoryStore(str(store)))
    assert (run.name, len(run.incidents)) == ("r1", 1)


def test_the_end_leaves_the_last_update_to_the_readers_of_the_store_beside_the_runs(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("HOLDFAST_HISTORY_STORE")
    folder = write_run(tmp_path / "r1")
    index(folder, [])
    assert not (tmp_path / "history.sqlite").exists()
    assert unindexed_runs(tmp_path) == (folder,)


def test_changes_are_added_while_the_run_continues(tmp_path, monkeypatch, store):
    monkeypatch.setattr(background, "DELAY_S", 0.0)
    folder = write_run(tmp_path / "r1", ONE_FAILURE[:1])
    warnings = []
    indexer = BackgroundIndexer(warnings.append)
    indexer.changed(folder)
    seen = set()  # the agent spares them when it kills what a failed generation left
    while not store.exists() and not warnings:
        seen |= indexer.processes
        indexer._closed.wait(0.05)
    write_run(folder)
    indexer.changed(folder)
    indexer.close()
    assert (len(seen), indexer.processes) == (1, frozenset())
    (run,) = read_runs(HistoryStore(str(store)))
    assert (run.status, warnings) == (0, [])


def test_a_store_that_cannot_be_used_is_one_warning(tmp_path, monkeypatch):
    (tmp_path / "store").write_text("no database" * 99)
    monkeypatch.setenv("HOLDFAST_HISTORY_STORE", str(tmp_path / "store"))
    warnings = []
    index(write_run(tmp_path / "r1"), warnings)
    (warning,) = warnings
    assert warning == (
        f"warning: the run was not added to the history store: the history store {tmp_path}/store "
        "cannot be used: it is not a SQLite database; the run folders keep all records: add them "
        "later with `holdfast history index`"
    )


def test_a_process_that_does_not_answer_is_killed_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "CLOSE_S", 0.05)
    warnings = []
    index(write_run(tmp_path / "r1"), warnings)
    assert warnings == [
        "warning: the run was not added to the history store: no answer within 0.05 s"
    ]


@pytest.mark.parametrize("reason", ["off", "not installed"])
def test_nothing_happens_without_a_store(tmp_path, monkeypatch, reason):
    if reason == "off":
        monkeypatch.setenv("HOLDFAST_HISTORY_STORE", "off")
    else:
        monkeypatch.setattr(background, "is_installed", lambda: False)
    index(write_run(tmp_path / "r1"), [])
    assert [path.name for path in tmp_path.iterdir()] == ["r1"]
