"""Invalid options for several hosts give one sentence."""

import json
import subprocess
import sys

import pytest

from holdfast.cli.check_hosts import use_master_port
from holdfast.core.errors import InvalidValue
from holdfast.host.checks import CheckContext
from holdfast.host.processes.launched_copies import LaunchedCopy
from holdfast.preflight.rendezvous.launch_info import parse_endpoint_options, read_launch_info
from tests.ports import free_port
from tests.unit.cli.in_process import run_holdfast


def check(*arguments):
    return run_holdfast("check", "--only", "shared-memory", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "2"], "--nnodes 2 requires --rdzv-endpoint HOST:PORT"),
        (["--rdzv-endpoint", "a:29500"], "--rdzv-endpoint requires --nnodes N"),
        (["--nnodes", "two", "--rdzv-endpoint", "a"], "'two' is not a number of hosts"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "a"], "2 is not in 0..1"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:99999"], "'a:99999' is not HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:1", "--wait", "soon"], "'soon' is not a duration"),
    ],
)
def test_invalid_options_are_reported_in_one_sentence(arguments, words):
    done = check(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_unknown_host_is_reported():
    done = check(
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--rdzv-endpoint",
        "no-such.invalid:29500",
        "--wait",
        "300ms",
        "--json",
    )
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["verdict"]["root"]["cause"] == "hostname-resolution"
    assert done.stderr == ""


@pytest.mark.slow
def test_copies_started_by_torchrun_find_each_other(tmp_path):
    pytest.importorskip("torch")
    port = str(free_port())
    agents = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes",
                "2",
                "--node-rank",
                str(node),
                "--master-addr",
                "127.0.0.1",
                "--master-port",
                port,
                "-m",
                "holdfast",
                "check",
                "--only",
                "shared-memory",
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for node in range(2)
    ]
    try:
        documents = [json.loads(agent.communicate(timeout=60)[0]) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [len(each["hosts"]) for each in documents] == [2, 2]
    assert documents[0]["verdict"] == documents[1]["verdict"]


def test_one_node_is_one_host():
    assert read_launch_info({}, None, nodes="1", endpoint="a:1") is None
    assert read_launch_info({}, None) is None


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("a", ("a", 29500)),
        ("a:7", ("a", 7)),
        ("[fd00::1]:7", ("fd00::1", 7)),
        ("fd00::1", ("fd00::1", 29500)),
    ],
)
def test_endpoints(endpoint, found):
    assert parse_endpoint_options(endpoint) == found


@pytest.mark.parametrize("endpoint", ["", ":", ":7", "a:x", "a:0", "a:65536", "[]:7"])
def test_invalid_endpoints(endpoint):
    with pytest.raises(InvalidValue):
        parse_endpoint_options(endpoint)


def test_variables_of_launchers():
    srun = LaunchedCopy(launcher="srun", node=3, nodes=8, address="n1", word="srun 7.0")
    found = read_launch_info({"SLURM_STEP_ID": "0"}, srun)
    assert (found.nodes, found.node, found.host, found.port) == (8, 3, "n1", 29500)
    assert read_launch_info({"MASTER_ADDR": "n5", "MASTER_PORT": "29600"}, srun).host == "n5"
    torchrun = LaunchedCopy(
        launcher="torchrun",
        node=0,
        nodes=2,
        address="n1",
        word="torchrun none 29500 0",
        speaks=False,
    )
    found = read_launch_info({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, torchrun)
    assert found.port != 29500
    assert not found.is_first_on_node
    launch_info = read_launch_info(
        {"PET_NNODES": "2:4", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "n1:5"}, None
    )
    assert (launch_info.nodes, launch_info.node, launch_info.port) == (4, 1, 5)


def test_the_master_port_is_what_must_be_free():
    context = CheckContext(environ={"PET_MASTER_PORT": "29500"})
    assert use_master_port(context, None) is context
    used = use_master_port(context, 30123)
    assert (used.ports, used.environ) == ((30123, 30127), {"MASTER_PORT": "30123"})
    with pytest.raises(InvalidValue, match="is not a port"):
        use_master_port(context, 99999)
