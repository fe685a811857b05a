"""`holdfast history runs`, `incidents`, `cost`, `index` and `prune`."""

import json
import sys
import time

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
pytest.importorskip("alembic", reason="alembic is not installed")

from holdfast.serve.store import location
from tests.unit.cli.in_process import run_holdfast
from tests.unit.serve.store.past_runs import write_run


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Return a function that runs `holdfast history` in a folder with an indexed run."""
    monkeypatch.delenv("HOLDFAST_HISTORY_STORE", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    write_run(tmp_path / "holdfast-runs" / "r1")

    def run(*arguments, **variables):
        return run_holdfast("history", *arguments, folder=tmp_path, **variables)

    added = run("index", "holdfast-runs")
    store = tmp_path / "holdfast-runs" / "history.sqlite"
    assert added.stdout == f"1 run with 1 incident in {store}\n"
    yield run
    monkeypatch.undo()
    time.tzset()


def json_of(done):
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_runs(history):
    assert history("runs").stdout.splitlines() == [
        "began                run  status  ranks  time        incidents  command",
        "2023-11-14 22:13:20  r1   0       8      1 h 00 min  1          train.py --steps 9",
    ]
    printed = json_of(history("runs", "--json"))
    assert printed["command"] == "history runs"
    assert printed["runs"][0]["incidents"][0]["decision"]["action"] == "restart"
    assert json_of(history("runs", "--since", "7d", "--json"))["runs"] == []


def test_the_store_beside_the_runs_first_gets_what_it_lacks(history, tmp_path):
    marker = location.run_marker(write_run(tmp_path / "holdfast-runs" / "r2"))
    assert [run["name"] for run in json_of(history("runs", "--json"))["runs"]] == ["r1"]
    marker.parent.mkdir()
    marker.touch()
    named = history("runs", "--json", "--store", "holdfast-runs/history.sqlite")
    assert [run["name"] for run in json_of(named)["runs"]] == ["r1"]
    assert len(json_of(history("runs", "--json"))["runs"]) == 2
    assert not marker.exists()


def test_incidents(history):
    assert history("incidents", "--cause", "proc006", "--host", "a").stdout.splitlines() == [
        "2023-11-14 22:30:00  r1  PROC006 rank-killed  rank 1 on a",
        "                     rank 1 was killed by SIGKILL",
        "                     restart 1 of 3",
        "                     i/0/report.html",
    ]
    nothing = history("incidents", "--since", "12h")
    assert (nothing.stdout, nothing.stderr) == ("", "no incident matches\n")
    assert len(json_of(history("incidents", "--json"))["incidents"]) == 1


def test_cost(history, tmp_path):
    done = history("cost", "--since", "100000d", "--html", "cost.html")
    assert done.stdout.splitlines() == [
        "runs                   1 (1.00 h, 8.00 GPU-hours)",
        "failures               1",
        "time between failures  1.00 h (8.00 GPU-hours)",
        "goodput                92%",
        "lost                   0.67 GPU-hours",
        "",
        "GPU-hours lost  incidents   repeated  waiting  down  cause",
        "0.67            1 incident  0.33      0.11     0.22  PROC006 rank-killed",
    ]
    assert "Goodput 92%" in (tmp_path / "cost.html").read_text()
    assert json_of(history("cost", "--json"))["cost"]["goodput"] is None


def test_prune_and_keep(history, tmp_path):
    assert history("prune", "--keep", "180d").stdout.startswith("1 run deleted")
    assert json_of(history("runs", "--json"))["runs"] == []
    history("index", "holdfast-runs", HOLDFAST_HISTORY_KEEP="180d")
    assert json_of(history("runs", "--json"))["runs"] == []
    assert (tmp_path / "holdfast-runs" / "r1" / "ledger.jsonl").exists()


def test_the_timeline_needs_no_store(history):
    assert "rank 1 was killed" in history().stdout
    assert "rank 1 was killed" in history("holdfast-runs/r1").stdout
    assert json_of(history("--json"))["command"] == "history"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["runs", "--store", "nothing"], "there is no history store yet"),
        (["runs", "--since", "soon"], "'soon' is not a duration; use e.g. 7d"),
        (["runs", "--store", "off"], "there is no history store: HOLDFAST_HISTORY_STORE is off"),
        (["index", "nowhere"], "cannot open nowhere: there is no such file"),
    ],
)
def test_mistakes_are_one_line(history, arguments, error):
    done = history(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unreadable_ledger_is_skipped_and_reported(history, tmp_path):
    (tmp_path / "holdfast-runs" / "r2").mkdir()
    (tmp_path / "holdfast-runs" / "r2" / "ledger.jsonl").write_text("?\n")
    done = history("index", "holdfast-runs")
    assert (done.returncode, done.stdout[:5]) == (3, "1 run")
    assert done.stderr.startswith("skipped: invalid ledger")


def test_without_the_extra_the_error_has_the_install_command(history, monkeypatch):
    for name in [*sys.modules]:
        if name.startswith(("sqlalchemy.", "holdfast.serve.store.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for arguments in (
        ["runs"],
        ["incidents"],
        ["cost"],
        ["collectives"],
        ["index", "holdfast-runs"],
    ):
        done = history(*arguments)
        assert done.returncode == 2
        assert done.stderr == (
            "holdfast: sqlalchemy is not installed in this environment; "
            "install it with: pip install 'holdfast[serve]'\n"
        )
