"""Nodes that leave or wait, and a rendezvous that does not answer."""

import threading
import time
from pathlib import Path

import pytest

from holdfast.launcher.elastic import membership
from tests import ports
from tests.forked_programs import RunningProgram

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


class Handler:
    """A rendezvous handler whose store answers only while ``answers`` is set."""

    def __init__(self):
        self.answers, self.calls = threading.Event(), []

    def num_nodes_waiting(self):
        self.calls.append("count")
        assert self.answers.wait(20)
        return 2

    def shutdown(self):
        self.calls.append("shutdown")
        assert self.answers.wait(20)
        return True


def test_the_agent_does_not_wait_for_a_rendezvous_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(membership, "_SHUTDOWN_TIMEOUT_S", 0.05)
    handler = Handler()
    membership.BackgroundCalls(handler)
    assert [handler.num_nodes_waiting() for _ in range(3)] == [0, 0, 0]
    assert handler.shutdown() is False
    assert handler.calls == ["count"]  # torch's handler is not thread-safe
    handler.answers.set()
    until = time.monotonic() + 10
    while not handler.num_nodes_waiting():
        assert time.monotonic() < until
    assert handler.num_nodes_waiting() == 2
    assert handler.shutdown() is True
    assert handler.calls[-1] == "shutdown"


def test_the_next_rendezvous_waits_for_the_last_call_and_forgets_its_count():
    handler = Handler()
    calls = membership.BackgroundCalls(handler)
    handler.num_nodes_waiting()
    threading.Timer(0.1, handler.answers.set).start()
    calls.begin_round()
    assert handler.answers.is_set()
    assert handler.num_nodes_waiting() == 0


@pytest.mark.slow
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
        script = Path(__file__).parent / "excluding.py"
        nodes.append(RunningProgram(script, *common, "worker.py", folder=tmp_path))
    done = [node.result(120) for node in nodes]
    stays, leaves = (each.stdout + each.stderr for each in done)
    assert [each.returncode for each in done] == [0, 1], (stays, leaves)
    assert "world 2" in stays
    assert "world 1" in stays
    assert "is excluded from the job: its disk is gone" in leaves
    assert "world 1" not in leaves
