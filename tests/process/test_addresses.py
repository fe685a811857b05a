"""Ports and addresses: what `holdfast run` reserves, and what the nodes publish to each other."""

import sys
from pathlib import Path

import pytest

from tests.network_namespaces import hosts, why_not
from tests.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PORT = 29584
REDUCES = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("ranks:", int(total), "store:", os.environ["MASTER_ADDR"], flush=True)
dist.destroy_process_group()
"""


def test_the_master_port_reaches_the_workers(launch, tmp_path):
    (tmp_path / "show.py").write_text(
        "import os, sys\n"
        "print('port', os.environ['MASTER_PORT'])\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    port = free_port()
    job = launch("--recorder", "off", "--max-restarts", "1", "--master-port", port, "show.py")
    assert job.end() == 0
    first, second = (int(line.split()[-1]) for line in job.output.splitlines() if ": port " in line)
    assert first == port
    assert second == port + 1 or second != port  # another program may use the next port


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_hosts_of_equal_name_find_each_other(tmp_path):
    """As in containers: each resolves the common name to itself, and none knows the others'."""
    (tmp_path / "reduces.py").write_text(REDUCES)
    with hosts(2) as machines:
        for host in machines:
            host.do("sh", "-c", "echo worker > /proc/sys/kernel/hostname")
            host.names({"worker": host.address})
        jobs = [
            host.start(
                *("env", f"PYTHONPATH={ROOT / 'src'}", sys.executable, "-m", "holdfast", "run"),
                *("--nnodes", 2, "--rdzv-backend", "c10d", "--recorder", "off"),
                *("--rdzv-endpoint", f"{machines[0].address}:{PORT}", tmp_path / "reduces.py"),
            )
            for host in machines
        ]
        statuses = [job.wait() for job in jobs]
        texts = [job.output + job.errors for job in jobs]
    assert statuses == [0, 0], texts
    assert all("ranks: 2 store: 10." in text or "ranks: 2 store: " in text for text in texts)
    assert not any("store: worker" in text for text in texts)
