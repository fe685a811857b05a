"""A rank is killed on one host; a rank on another one handles its lost connection by os._exit(3)."""

import json
import shutil

import pytest

from tests.network_namespaces import hosts, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a shifted clock requires cc"),
]
PORT = 29592
LIMIT_S = 100
TRAIN = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))
except RuntimeError:
    os._exit(3)
"""


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_the_killed_rank_is_named_whatever_the_clocks_show(tmp_path, killed):
    """By the clock of its host, the other rank ended seconds before the killed one."""
    (tmp_path / "train.py").write_text(TRAIN)
    with hosts(2) as machines:
        machines[1 - killed].shift_clock(-7)
        jobs = [
            host.fork(
                *("-m", "holdfast", "run", "--nnodes", 2, "--node-rank", host.number),
                *("--master-port", PORT, "--master-addr", machines[0].address),
                *("--run-dir", tmp_path / f"{host.number}"),
                *("--json-report", tmp_path / f"{host.number}.json"),
                *(tmp_path / "train.py", killed),
                GLOO_SOCKET_IFNAME="eth0",
            )
            for host in machines
        ]
        assert [job.wait(LIMIT_S) for job in jobs] == [1, 1], [job.errors for job in jobs]
    for host in (0, 1):
        verdict = json.loads((tmp_path / f"{host}.json").read_text())["verdict"]
        subject = verdict["root"]["subject"]
        assert (verdict["root"]["cause"], subject["rank"]) == ("rank-killed", killed), verdict
        assert subject["host"] == f"node{killed}"
        ended = [each["message"] for each in verdict["consequences"]]
        assert f"rank {1 - killed} then failed: exit status 3" in ended
        assert verdict["suspects"] == []
