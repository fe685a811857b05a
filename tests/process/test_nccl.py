"""A job whose recorder does not record completion, as on NCCL, with flight-recorder dumps."""

import stat
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def hang(launch, **variables):
    """Run a job whose two ranks hang in the same collective; return its report and run folder."""
    arguments = (
        "--recorder",
        "python",
        "--nproc-per-node",
        "2",
        "--on-hang",
        "stop",
        "--act-after",
        "5s",
        "--json-report",
        "report.json",
    )
    job = launch(
        *arguments,
        HERE / "as_nccl.py",
        HOLDFAST_STALL_S="2",
        HOLDFAST_FIRST_STEP_S="2",
        **variables,
    )
    assert job.end() == 1
    return job.json("report.json"), job.run


def test_a_hang_of_all_ranks_in_one_collective_is_reported(launch):
    report, run = hang(launch)
    root = report["verdict"]["root"]
    assert (root["cause"], root["subject"]["rank"]) == ("collective-incomplete", None)
    assert "all_reduce #31" in root["message"]
    dumps = sorted(path.name for path in (run / "flight-recorder").iterdir())
    assert dumps == ["generation0-rank0-dump0", "generation0-rank1-dump1"]


def test_the_users_dump_locations_are_used(launch, tmp_path):
    locations = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/mine_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "dump_",
    }
    report, run = hang(launch, **locations)
    assert report["verdict"]["root"]["cause"] == "collective-incomplete"
    assert (tmp_path / "dump_1").exists()
    assert stat.S_ISFIFO((tmp_path / "mine_1.pipe").stat().st_mode)
    assert not (run / "flight-recorder").exists()
