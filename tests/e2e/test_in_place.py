"""Survivors of a dead rank go on in their processes; the dead one alone is replaced. Real processes, gloo."""

import json
from pathlib import Path

import pytest

from tests.e2e.test_spares import wait_for_spares

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("recorder", ["auto", pytest.param("python", marks=pytest.mark.matrix)])
def test_survivors_keep_their_processes(launch, tmp_path, recorder):
    job = launch("--nproc-per-node", 3, "--max-restarts", 2, "--recorder", recorder, "--json-report", "report.json",
                 HERE / "goes_on.py", tmp_path)  # fmt: skip
    wait_for_spares(job, 3)
    (tmp_path / "go").touch()
    assert job.end() == 0, job.output
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    pids = {(each["generation"], each["rank"]): each["pid"] for each in told if each["event"] == "step"}
    assert set(pids) == {(generation, rank) for generation in (0, 1) for rank in (0, 1, 2)}, job.output
    assert (pids[0, 0], pids[0, 2]) == (pids[1, 0], pids[1, 2])
    assert pids[0, 1] != pids[1, 1]
    calls = {each["rank"]: each["calls"] for each in told if each.get("generation") == 1}
    assert calls == {0: [0, 1], 1: [1], 2: [0, 1]}
    report = job.json("report.json")
    assert [incident["decision"] for incident in report["incidents"]] == ["replace"], job.output
    assert report["verdict"]["root"]["subject"]["rank"] == 1
    assert job.boxes() == []
