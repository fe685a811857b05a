"""Ports and addresses: what `holdfast run` reserves, and what the nodes publish to each other."""

import pytest

from tests.network_namespaces import hosts, why_not
from tests.ports import free_port

pytestmark = pytest.mark.slow
#: Without torch: the workers reach the store where the nodes published it.
CONNECTS = """
import os, socket
address = os.environ["MASTER_ADDR"]
socket.create_connection((address, int(os.environ["MASTER_PORT"])), timeout=30).close()
print("store:", address, flush=True)
"""
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


def equal_names(first, second):
    """As in containers: each resolves the common name to itself, and none knows the others'."""
    for host in (first, second):
        host.do("sh", "-c", "echo worker > /proc/sys/kernel/hostname")
        host.names({"worker": host.address})
    return first.address


def own_name_is_loopback(first, second):
    """As Debian's installer writes /etc/hosts."""
    first.names({first.name: "127.0.1.1", second.name: second.address})
    second.names({second.name: "127.0.1.1", first.name: first.address})
    return first.name


def unknown_names(first, second):
    """The hosts resolve no name, not even their own."""
    first.names({})
    second.names({})
    return first.address


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    "names",
    [
        equal_names,
        pytest.param(own_name_is_loopback, marks=pytest.mark.matrix),
        pytest.param(unknown_names, marks=pytest.mark.matrix),
    ],
)
def test_hosts_find_each_other_whatever_their_names_lead_to(tmp_path, names):
    (tmp_path / "connects.py").write_text(CONNECTS)
    with hosts(2) as machines:
        endpoint = names(*machines)
        jobs = [
            host.fork(
                *("-m", "holdfast", "run", "--recorder", "off", "--nnodes", 2),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{endpoint}:{PORT}"),
                *("--rdzv-conf", f"is_host={int(host is machines[0])}", tmp_path / "connects.py"),
            )
            for host in machines
        ]
        statuses = [job.wait() for job in jobs]
        texts = [job.output + job.errors for job in jobs]
        addresses = [host.address for host in machines]
    assert statuses == [0, 0], texts
    stores = {text.partition("store: ")[2].split()[0] for text in texts}
    assert len(stores) == 1
    assert stores <= set(addresses)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_job_of_one_host_needs_no_name(tmp_path):
    (tmp_path / "reduces.py").write_text(REDUCES)
    with hosts(1) as (host,):
        host.names({})
        job = host.fork(
            *("-m", "holdfast", "run", "--recorder", "off", "--nproc-per-node", 2),
            tmp_path / "reduces.py",
        )
        assert job.wait() == 0, job.errors
        assert job.output.count("ranks: 2 store: 127.0.0.1") == 2
