"""In-process restart: survivors of a dead rank keep their processes. Real processes, gloo."""

import json
from pathlib import Path

import pytest

from tests.process.test_standby_workers import wait_for_standby_workers

HERE = Path(__file__).parent
RANKS = (0, 1, 2)
#: Enough for three starts of three ranks without standby workers on a loaded machine.
LONG_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def read_events(folder, event):
    events = (json.loads(line) for line in (folder / "events").read_text().splitlines())
    return [each for each in events if each["event"] == event]


def pids(folder):
    """Return the processes that completed a step, by generation and rank."""
    return {(each["generation"], each["rank"]): each["pid"] for each in read_events(folder, "step")}


@pytest.mark.parametrize("recorder", ["auto", pytest.param("python", marks=pytest.mark.matrix)])
def test_survivors_keep_their_processes_and_load_from_memory(launch, tmp_path, recorder):
    job = launch(
        "--nproc-per-node",
        3,
        "--max-restarts",
        2,
        "--recorder",
        recorder,
        "--json-report",
        "report.json",
        HERE / "in_process_trainer.py",
        tmp_path,
    )
    wait_for_standby_workers(job, 3)
    (tmp_path / "go").touch()
    assert job.end(LONG_S) == 0, job.output
    processes = pids(tmp_path)
    assert set(processes) == {(generation, rank) for generation in (0, 1) for rank in RANKS}, (
        job.output
    )
    assert (processes[0, 0], processes[0, 2]) == (processes[1, 0], processes[1, 2])
    assert processes[0, 1] != processes[1, 1]
    calls = {
        each["rank"]: each["calls"]
        for each in read_events(tmp_path, "step")
        if each["generation"] == 1
    }
    assert calls == {0: [0, 1], 1: [1], 2: [0, 1]}
    starts = [each for each in read_events(tmp_path, "begun") if each["generation"] == 1]
    assert [each["step"] for each in starts] == [3, 3, 3]
    # The only copy is in memory.
    assert all(each["folder"].startswith("/dev/shm/holdfast-") for each in starts), starts
    report = job.json("report.json")
    assert [incident["decision"] for incident in report["incidents"]] == ["replace"], job.output
    assert report["verdict"]["root"]["subject"]["rank"] == 1
    assert job.trace_files() == []


@pytest.mark.parametrize(
    ("fault", "decisions", "printed"),
    [
        pytest.param(
            "deaf",
            ["replace", "restart"],
            "rank 2 did not restart in process within 5 s; killing it",
            marks=pytest.mark.matrix,
        ),
        pytest.param("twice", ["replace", "restart"], "", marks=pytest.mark.matrix),
        pytest.param("raises", ["restart"], "of my own", marks=pytest.mark.matrix),
        pytest.param("alone", ["restart"], "this is not about NCCL", marks=pytest.mark.matrix),
    ],
)
def test_an_unexpected_state_restarts_all_processes(launch, tmp_path, fault, decisions, printed):
    (tmp_path / "go").touch()
    job = launch(
        "--nproc-per-node",
        3,
        "--max-restarts",
        3,
        "--spares",
        "off",
        "--json-report",
        "report.json",
        HERE / "in_process_trainer.py",
        tmp_path,
        fault,
    )
    assert job.end(LONG_S) == 0, job.output
    last, processes = len(decisions), pids(tmp_path)
    assert {rank for generation, rank in processes if generation == last} == set(RANKS), job.output
    assert not {processes[0, rank] for rank in RANKS} & {processes[last, rank] for rank in RANKS}
    assert [each["decision"] for each in job.json("report.json")["incidents"]] == decisions, (
        job.output
    )
    assert printed in job.output
    if fault == "alone":  # the others exit later, or are terminated
        assert (
            read_events(tmp_path, "failed")[0]["time"] - read_events(tmp_path, "fault")[0]["time"]
            < 12
        ), job.output
