"""An excluded node leaves and the job continues without it: two agents on loopback, workers without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports

pytestmark = pytest.mark.slow

WORKER = """
import os, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("world", os.environ["WORLD_SIZE"], flush=True)
if first and os.environ["WORLD_SIZE"] == "2":
    open("up" + os.environ["RANK"], "w").close()
time.sleep(1000 if first else 0.5)
"""


@pytest.fixture
def free_port():
    return ports.free_port()


@pytest.mark.parametrize(
    "holder", [pytest.param(0, marks=pytest.mark.matrix), 1], ids=["stays", "leaves"]
)
def test_the_job_continues_without_an_excluded_node(tmp_path, holder, free_port):
    (tmp_path / "worker.py").write_text(WORKER)
    nodes = []
    for number in (0, 1):  # the node that starts first is node 0
        conf = f"is_host={int(number == holder)},last_call_timeout=20,read_timeout=60"
        where = (
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{free_port}",
            "--rdzv-conf",
            conf,
        )
        common = (*where, "--local-addr", "127.0.0.1", "--nnodes", "1:2", "--max-restarts", "2")
        command = [
            sys.executable,
            str(Path(__file__).parent / "excluding.py"),
            *common,
            "worker.py",
        ]
        nodes.append(
            subprocess.Popen(
                command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        stays, leaves = (node.communicate(timeout=120)[0] for node in nodes)
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 1], (stays, leaves)
    assert "world 2" in stays
    assert "world 1" in stays
    assert "is excluded from the job: its disk is gone" in leaves
    assert "world 1" not in leaves
