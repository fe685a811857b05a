"""Options of several hosts that cannot be used are one sentence."""

import json
import subprocess
import sys

import pytest

from holdfast.errors import BadValue
from holdfast.facts.copies import Copy
from holdfast.facts.reach.told import parse, told
from tests.ports import free_port


def check(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "check", "--only", "shared-memory", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "2"], "it is not said where 2 hosts meet"),
        (["--rdzv-endpoint", "a:29500"], "it is not said how many hosts meet there"),
        (["--nnodes", "two", "--rdzv-endpoint", "a"], "'two' is no number of hosts"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "a"], "2 is not one of 0 to 1"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:99999"], "'a:99999' is not HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:1", "--wait", "soon"], "'soon' is no time"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    done = check(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_host_that_is_unknown_is_said_so():
    done = check(
        "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "no-such.invalid:29500", "--wait", "300ms", "--json"
    )
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert said["verdict"]["root"]["cause"] == "hostname-resolution"
    assert done.stderr == ""


@pytest.mark.slow
def test_copies_that_torchrun_starts_find_each_other_by_themselves(tmp_path):
    pytest.importorskip("torch")
    port = str(free_port())
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--master-addr",
             "127.0.0.1", "--master-port", port, "-m", "holdfast", "check", "--only", "shared-memory", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )
        for node in range(2)
    ]  # fmt: skip
    try:
        said = [json.loads(agent.communicate(timeout=60)[0]) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [len(each["hosts"]) for each in said] == [2, 2]
    assert said[0]["verdict"] == said[1]["verdict"]


def test_one_node_is_one_host():
    assert told({}, None, nodes="1", endpoint="a:1") is None
    assert told({}, None) is None


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [("a", ("a", 29500)), ("a:7", ("a", 7)), ("[fd00::1]:7", ("fd00::1", 7)), ("fd00::1", ("fd00::1", 29500))],
)
def test_endpoints(endpoint, found):
    assert parse(endpoint) == found


@pytest.mark.parametrize("endpoint", ["", ":", ":7", "a:x", "a:0", "a:65536", "[]:7"])
def test_what_is_no_endpoint(endpoint):
    with pytest.raises(BadValue):
        parse(endpoint)


def test_what_launchers_say():
    srun = Copy(launcher="srun", node=3, nodes=8, address="n1", word="srun 7.0")
    found = told({"SLURM_STEP_ID": "0"}, srun)
    assert (found.nodes, found.node, found.host, found.port) == (8, 3, "n1", 29500)
    assert told({"MASTER_ADDR": "n5", "MASTER_PORT": "29600"}, srun).host == "n5"
    torchrun = Copy(launcher="torchrun", node=0, nodes=2, address="n1", word="torchrun none 29500 0", speaks=False)
    found = told({"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, torchrun)
    assert found.port != 29500
    assert not found.speaks
    given = told({"PET_NNODES": "2:4", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "n1:5"}, None)
    assert (given.nodes, given.node, given.port) == (4, 1, 5)
