"""`holdfast run` adds its run to the history store."""

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


def test_a_run_with_its_incident_is_in_the_store_when_it_ends(launch, tmp_path):
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    job = launch(
        *("--nproc-per-node", 2, "--max-restarts", 1, "--recorder", "off", "fails_once.py"),
        HOLDFAST_HISTORY_STORE="runs/history.sqlite",
    )
    assert job.end() == 0, job.output
    assert "history store" not in job.output
    listed = run_holdfast(
        "history", "runs", "--store", "runs/history.sqlite", "--json", folder=tmp_path
    )
    (run,) = json.loads(listed.stdout)["runs"]
    assert (run["status"], run["world_size"], run["command"]) == (0, 2, "fails_once.py")
    assert [start["generation"] for start in run["starts"]] == [0, 1]
    (incident,) = run["incidents"]
    assert incident["decision"]["action"] == "restart"
    assert incident["recovered"] == run["starts"][1]["at"]
