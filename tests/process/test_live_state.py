"""A real job on two nodes writes its live state: the leader's folder shows both nodes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from holdfast.serve.live import reader, runs
from holdfast.serve.live.source import ServerSource

SCRIPT = Path(__file__).with_name("paced.py")

pytestmark = pytest.mark.slow


def read_leader(nodes):
    """Return the folder and the state of the node that leads; None before there is one."""
    for node in nodes:
        folders = runs.find_runs(node.folder / "runs") if (node.folder / "runs").is_dir() else ()
        for folder in folders:
            state = reader.read_live(folder, time.time()).state
            if state is not None:
                return folder, state
    return None


def wait_for(check, limit_s=60.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("nothing within the time limit")


def test_the_leader_of_two_nodes_writes_and_serves_the_state_of_all_ranks(
    launch, free_port, tmp_path
):
    common = (
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{free_port}",
        "--local-addr",
        "127.0.0.1",
        "--nnodes",
        2,
        "--nproc-per-node",
        1,
        SCRIPT,
        tmp_path,
    )
    variables = {"HOLDFAST_STRAGGLER_S": "6", "HOLDFAST_SERVE": "0"}
    nodes = [launch(*common, folder=f"node{at}", **variables) for at in (0, 1)]

    def measured():
        found = read_leader(nodes)
        ready = found and None not in found[1].ranks.waited and found[1].latencies
        return found if ready else None

    folder, state = wait_for(measured)
    (address,) = re.findall(r"live page: (\S+)", "".join(node.output for node in nodes))
    source = ServerSource(address, None)
    served = source.read().state
    stacks = [source.stack(rank, "") for rank in (0, 1)]  # one of them through the job's store
    (tmp_path / "enough").touch()
    assert [node.end() for node in nodes] == [0, 0]
    assert state.ranks.rank == served.ranks.rank == [0, 1]
    assert served.generation == state.generation
    assert all(stack.origin == "now" or "ptrace" in stack.why for stack in stacks), stacks
    assert not source.read().state  # it ended with the job
    assert len(set(state.ranks.node)) == 2
    assert all(memory > 50 for memory in state.ranks.memory)
    assert all(0 <= waited <= 1 for waited in state.ranks.waited)
    assert {latency.operation for latency in state.latencies} == {"all_reduce"}
    assert [(group.name, group.size) for group in state.groups] == [("default_pg", 2)]
    assert len(list(tmp_path.glob("node*/runs/*/live-*.json"))) == 1
    assert not any("slower than" in node.output for node in nodes)  # a balanced job
    assert reader.read_series(folder)[-1].world_size == 2
    past = runs.read_past(folder)
    assert (past.head.status, past.head.live) == (0, False)
