"""The smoke test with real gloo ranks: it succeeds, or reports the failure on every rank; no hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.preflight.torch_smoke_test import SmokeTestOutcome, SmokeTestPlan
from tests.forked_programs import RunningProgram
from tests.network_namespaces import hosts, why_not
from tests.ports import free_port

pytestmark = pytest.mark.slow
ONE_RANK = Path(__file__).with_name("one_rank.py")


@pytest.fixture
def port():
    return free_port()


class ForkedRank:
    """A rank started with a plan, in processes that have torch imported."""

    def __init__(self, rank, world, port, variables=None, **own):
        plan = SmokeTestPlan(
            **{
                "rank": rank,
                "world": world,
                "address": "127.0.0.1",
                "port": port,
                "limit_s": 3.0,
                **own,
            }
        )
        command = (str(ONE_RANK), msgspec.json.encode(plan).decode())
        self.start(command, {"GLOO_SOCKET_IFNAME": "lo"} | (variables or {}))

    def start(self, command, variables):
        self.program = RunningProgram(*command, folder=Path.cwd(), **variables)

    def outcome(self):
        done = self.program.result()
        assert done.stderr == ""
        return msgspec.json.decode(done.stdout, type=SmokeTestOutcome)


class Rank(ForkedRank):
    """A rank in new interpreters."""

    def start(self, command, variables):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
        )

    def outcome(self):
        out, err = self.process.communicate(timeout=60)
        assert err == b""
        return msgspec.json.decode(out, type=SmokeTestOutcome)


def run_ranks(world, port, odd=None, **own):
    """Return the outcomes of all ranks; the last rank has ``odd`` variables."""
    ranks = [
        ForkedRank(rank, world, port, odd if rank == world - 1 else None, **own)
        for rank in range(world)
    ]
    return [rank.outcome() for rank in ranks]


def test_the_steps_are_one_two_four_and_all():
    def steps(world):
        return SmokeTestPlan(rank=0, world=world, address="", port=0).steps

    assert [steps(world) for world in (1, 2, 3, 6, 8)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4, 6),
        (1, 2, 4, 8),
    ]


def test_all_stages_of_a_connected_group_are_timed(port):
    outcomes = run_ranks(3, port)
    assert [outcome.failures for outcome in outcomes] == [()] * 3
    for rank, outcome in enumerate(outcomes):
        steps = [2, 3] if rank < 2 else [3]
        names = [(stage.name, stage.processes) for stage in outcome.stages]
        several = [
            (name, step) for step in steps for name in ("store", "group", "barrier", "all-reduce")
        ]
        assert names == [("import", 0), ("group", 1), ("all-reduce", 1), *several]
        timings = outcome.stages[-1].timings
        assert [each.size_bytes for each in timings] == list(
            SmokeTestPlan(rank=0, world=1, address="", port=0).sizes_bytes
        )
        assert all(0 < each.best_s < 10 for each in timings)


@pytest.mark.matrix
def test_hosts_with_several_processes(port):
    """Two and three processes; each host reports the stages of its first one."""
    outcomes = [each.outcome() for each in (Rank(0, 5, port, local=2), Rank(2, 5, port, local=3))]
    assert [outcome.failures for outcome in outcomes] == [(), ()]
    first_step = [("import", 0), ("group", 1), ("all-reduce", 1)]
    for outcome, steps in zip(outcomes, ((2, 4, 5), (4, 5)), strict=True):
        several = [
            (name, step) for step in steps for name in ("store", "group", "barrier", "all-reduce")
        ]
        assert [(stage.name, stage.processes) for stage in outcome.stages] == [
            *first_step,
            *several,
        ]


@pytest.mark.matrix
def test_one_absent_process_of_several_is_reported_once(port):
    """The second host announces two processes and runs one."""
    first, second = Rank(0, 4, port, local=2, wait_s=2.0), Rank(2, 4, port, wait_s=2.0)
    for outcome in (first.outcome(), second.outcome()):
        assert {(each.processes, each.missing) for each in outcome.failures} == {(4, (3,))}
        assert len({each.rank for each in outcome.failures}) == len(outcome.failures)
        assert {each.processes for each in outcome.failures} == {4}


def test_an_absent_rank_is_reported(port):
    outcome = ForkedRank(0, 2, port, wait_s=2.0).outcome()
    (failure,) = outcome.failures
    assert (failure.rank, failure.stage, failure.missing) == (0, "store", (1,))


def test_a_failure_on_one_rank_is_reported_to_the_others_at_once(port):
    began = time.monotonic()
    outcomes = run_ranks(3, port, odd={"GLOO_SOCKET_IFNAME": "eth9"})
    assert time.monotonic() - began < 20  # the other ranks would otherwise wait for their own limit
    for outcome in outcomes:
        (failure,) = outcome.failures
        assert (failure.rank, failure.stage, failure.processes) == (2, "group", 1)
        assert failure.why == "ifa != nullptr. Unable to find address for: eth9"
        assert all(stage.processes < 3 for stage in outcome.stages)


def test_a_port_in_use_is_reported(port):
    with socket.create_server(("", port)):
        (failure,) = ForkedRank(0, 2, port).outcome().failures
    assert (failure.rank, failure.stage) == (0, "store")
    assert "EADDRINUSE" in failure.why


def test_a_stopped_rank_is_reported_by_the_others(port):
    """A stopped process cannot enforce its own limit."""
    ranks = [Rank(rank, 2, port, sizes_bytes=(4,) * 20_000, wait_s=3.0) for rank in range(2)]
    try:
        probe = psutil.Process(ranks[1].process.pid)
        until = time.monotonic() + 30
        # A second child exists once torch is imported and the first step has started.
        while len(children := probe.children(recursive=True)) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        # A connection shows that the rank communicates, so the kernel closes it if the rank dies.
        while not children[-1].net_connections():
            assert time.monotonic() < until
        children[-1].send_signal(signal.SIGSTOP)
        (failure,) = ranks[0].outcome().failures
        assert (failure.rank, failure.stage, failure.missing) == (0, "store", (1,))
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()
    assert psutil.wait_procs(children, 5)[1] == []  # children exit with their parent


@pytest.mark.matrix
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_network_partition_ends_both_sides(port):
    """The ranks lose contact, and the store no longer answers rank 1: each enforces its own limits."""
    with hosts(2) as job_hosts:
        own = {
            "address": job_hosts[0].address,
            "port": port,
            "world": 2,
            "sizes_bytes": (4,) * 20_000,
            "limit_s": 3.0,
        }
        ranks = [
            host.start(
                sys.executable,
                ONE_RANK,
                msgspec.json.encode(SmokeTestPlan(rank=rank, **own)).decode(),
            )
            for rank, host in enumerate(job_hosts)
        ]
        until = time.monotonic() + 60
        while (
            job_hosts[0].do("ss", "-Htn", "state", "established", "sport", f"= :{port}").count("\n")
            < 4
        ):
            assert time.monotonic() < until, ranks[0].errors
            time.sleep(0.05)
        time.sleep(1)  # the ranks run all-reduces
        for host in job_hosts:
            host.drop()
        began = time.monotonic()
        outcomes = [
            rank.wait() or msgspec.json.decode(rank.output, type=SmokeTestOutcome) for rank in ranks
        ]
        assert time.monotonic() - began < 13
    for rank, outcome in enumerate(outcomes):
        assert outcome.failures[0].rank == rank
        assert outcome.failures[0].stage == "all-reduce of 4 B"


def test_a_failed_torch_import_is_a_failure_not_a_hang(port, tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    (failure,) = Rank(0, 1, port, {"PYTHONPATH": str(tmp_path)}).outcome().failures
    assert (failure.stage, failure.why) == (
        "import",
        "ImportError: libcudart.so.12: cannot open shared object file",
    )
