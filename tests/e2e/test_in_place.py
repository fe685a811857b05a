"""Survivors of a dead rank go on in their processes; the dead one alone is replaced. Real processes, gloo."""

import json
from pathlib import Path

import pytest

from tests.e2e.test_spares import wait_for_spares

HERE = Path(__file__).parent
RANKS = (0, 1, 2)
#: Three starts of three ranks without spares, on a machine that does much else.
LONG_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def told(folder, event):
    facts = (json.loads(line) for line in (folder / "told").read_text().splitlines())
    return [fact for fact in facts if fact["event"] == event]


def pids(folder):
    """By generation and rank, the processes that made a step."""
    return {(fact["generation"], fact["rank"]): fact["pid"] for fact in told(folder, "step")}


@pytest.mark.parametrize("recorder", ["auto", pytest.param("python", marks=pytest.mark.matrix)])
def test_survivors_keep_their_processes_and_load_from_memory(launch, tmp_path, recorder):
    job = launch("--nproc-per-node", 3, "--max-restarts", 2, "--recorder", recorder, "--json-report", "report.json",
                 HERE / "goes_on.py", tmp_path)  # fmt: skip
    wait_for_spares(job, 3)
    (tmp_path / "go").touch()
    assert job.end(LONG_S) == 0, job.output
    found = pids(tmp_path)
    assert set(found) == {(generation, rank) for generation in (0, 1) for rank in RANKS}, job.output
    assert (found[0, 0], found[0, 2]) == (found[1, 0], found[1, 2])
    assert found[0, 1] != found[1, 1]
    calls = {each["rank"]: each["calls"] for each in told(tmp_path, "step") if each["generation"] == 1}
    assert calls == {0: [0, 1], 1: [1], 2: [0, 1]}
    begun = [each for each in told(tmp_path, "begun") if each["generation"] == 1]
    assert [each["step"] for each in begun] == [3, 3, 3]
    assert all(each["folder"].startswith("/dev/shm/holdfast-") for each in begun), begun  # there was nothing else
    report = job.json("report.json")
    assert [incident["decision"] for incident in report["incidents"]] == ["replace"], job.output
    assert report["verdict"]["root"]["subject"]["rank"] == 1
    assert job.boxes() == []


@pytest.mark.parametrize(
    ("fault", "decisions", "said"),
    [
        ("deaf", ["replace", "restart"], "rank 2 did not go on within 5 s: it is ended"),
        pytest.param("twice", ["replace", "restart"], "", marks=pytest.mark.matrix),
        pytest.param("raises", ["restart"], "of my own", marks=pytest.mark.matrix),
        pytest.param("alone", ["restart"], "this is not about NCCL", marks=pytest.mark.matrix),
    ],
)
def test_where_something_is_odd_all_processes_begin_anew(launch, tmp_path, fault, decisions, said):
    (tmp_path / "go").touch()
    job = launch("--nproc-per-node", 3, "--max-restarts", 3, "--spares", "off", "--json-report", "report.json",
                 HERE / "goes_on.py", tmp_path, fault)  # fmt: skip
    assert job.end(LONG_S) == 0, job.output
    last, found = len(decisions), pids(tmp_path)
    assert {rank for generation, rank in found if generation == last} == set(RANKS), job.output
    assert not {found[0, rank] for rank in RANKS} & {found[last, rank] for rank in RANKS}
    assert [each["decision"] for each in job.json("report.json")["incidents"]] == decisions, job.output
    assert said in job.output
    if fault == "alone":  # the others leave later: they hear of its death, or are ended
        assert told(tmp_path, "left")[0]["time"] - told(tmp_path, "fault")[0]["time"] < 12, job.output
