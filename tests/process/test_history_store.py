"""`holdfast run` adds its run to the history store; a store that cannot be used is one warning."""

import json

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
pytest.importorskip("alembic", reason="alembic is not installed")

from tests.unit.cli.in_process import run_holdfast

pytestmark = pytest.mark.slow
FAILS_ONCE = """
import os, sys
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


@pytest.fixture
def run_once(launch, tmp_path):
    """Return a function that runs a job of two ranks that fails once, with a history store."""
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)

    def run(store):
        job = launch(
            *("--nproc-per-node", 2, "--max-restarts", 1, "--recorder", "off", "fails_once.py"),
            HOLDFAST_HISTORY_STORE=store,
        )
        assert job.end() == 0, job.output
        return [line for line in job.output.splitlines() if "history store" in line]

    return run


def test_a_run_with_its_incident_is_in_the_store_when_it_ends(run_once, tmp_path):
    assert run_once("runs/history.sqlite") == []
    listed = run_holdfast(
        "history", "runs", "--store", "runs/history.sqlite", "--json", folder=tmp_path
    )
    (run,) = json.loads(listed.stdout)["runs"]
    assert (run["status"], run["world_size"], run["command"]) == (0, 2, "fails_once.py")
    assert [start["generation"] for start in run["starts"]] == [0, 1]
    (incident,) = run["incidents"]
    assert incident["decision"]["action"] == "restart"
    assert incident["recovered"] == run["starts"][1]["at"]


def test_a_store_that_cannot_be_used_is_one_warning_and_the_run_can_be_added(run_once, tmp_path):
    (tmp_path / "store").write_text("no database" * 99)
    (warning,) = run_once("store")
    assert "warning: the run was not added" in warning
    assert "it is not a SQLite database; the run folders keep all records" in warning
    added = run_holdfast("history", "index", "runs", folder=tmp_path, HOLDFAST_HISTORY_STORE="")
    assert added.stdout.startswith("1 run with 1 incident in ")
