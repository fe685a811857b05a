"""The agent and its hooks, with real workers that need no torch: who is called when, and what an order does."""

import signal
import time
from pathlib import Path

import pytest

from holdfast.runtime import elastic, ending, torchrun
from holdfast.runtime.generation import Choice, Order
from holdfast.runtime.launch import launch

#: Waits in the first generation, ends well in the others.
WAITS = """
import os, signal, sys, time
print("rank", os.environ["RANK"], "has", os.environ.get("GIVEN"), flush=True)
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(f"up{os.environ['RANK']}", "w").close()
    time.sleep(1000)
"""
FAILS = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3 if os.environ["RANK"] == "1" else time.sleep(1000))
"""


class Hooks:
    """Notes every call, and gives the order that it was made with once the workers are up or one of them has ended."""

    def __init__(self, order=None):
        self.calls = []
        self.generations = []
        self.order = order

    def prepare(self):
        """Nothing to wait for."""

    def handover(self):
        return ""

    def take_over(self, state):
        raise AssertionError(state)

    def variables(self, rank, generation):
        return {"GIVEN": f"{rank}.{generation}"}

    def started(self, generation):
        self.generations.append(generation)
        self.calls.append(f"started {generation.number}")

    def tick(self, look):
        if look.codes or len(list(Path().glob("up*"))) == 2:
            order, self.order = self.order, None
            return order
        return None

    def decided(self, order):
        self.calls.append(f"decided {order.choice}")

    def ended(self, how):
        self.calls.append(f"ended {how}")

    def note(self, text):
        self.calls.append(text)

    def room(self):
        return None

    def abandon(self):
        self.calls.append("abandon")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script in two workers under hooks, and returns the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ending, "adopt_orphans", lambda: None)  # it is for good, and this process is pytest's

    def start(source, hooks, *arguments, restarts=1):
        Path("script.py").write_text(source)
        common = ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
        given = torchrun.parse([*common, "script.py", *arguments], {})
        return launch(given, hooks, logs=tmp_path / "logs", quiet=True)

    return start


def order(choice, **how):
    return Order(choice=choice, reason="because", **how)


def test_an_order_to_restart_starts_all_workers_again(run, tmp_path, capfd):
    hooks = Hooks(order(Choice.RESTART))
    before = signal.getsignal(signal.SIGTERM)
    assert run(WAITS, hooks) == 0
    assert hooks.calls == [
        "started 0", "decided restart", "ended failed", "started 1", "ended clean"
    ]  # fmt: skip
    first, second = hooks.generations
    assert (first.node, first.nodes, first.world_size, first.restarts_left, first.leader) == (0, 1, 2, 1, True)
    assert [(worker.rank, worker.local_rank) for worker in second.workers] == [(0, 0), (1, 1)]
    assert {worker.pid for worker in first.workers} & {worker.pid for worker in second.workers} == set()
    assert (tmp_path / "logs/generation1/rank1/stdout.log").read_text() == "rank 1 has 1.1\n"
    assert "[rank1]: rank 1 has 1.0\n" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_order_to_stop_fails_the_job_whatever_restarts_are_left(run):
    hooks = Hooks(order(Choice.STOP))
    assert run(WAITS, hooks, restarts=5) == 1
    assert hooks.calls == ["started 0", "decided stop", "ended failed"]


def test_an_order_says_whom_not_to_wait_for_and_how_long_for_the_others(run):
    hooks = Hooks(order(Choice.STOP, stuck=(0,), patience_s=1.0))
    begun = time.monotonic()
    assert run(WAITS, hooks, "--stubborn") == 1
    assert time.monotonic() - begun < 20  # torch would wait for 30 s


def test_a_failed_worker_waits_for_an_order(run):
    hooks = Hooks(order(Choice.RESTART))
    assert run(FAILS, hooks) == 0
    assert hooks.calls == ["started 0", "decided restart", "ended failed", "started 1", "ended clean"]


def test_without_an_order_torch_restarts_by_itself(run, monkeypatch):
    monkeypatch.setattr(elastic, "HOOKS_LIMIT_S", 0.3)
    hooks = Hooks()
    assert run(FAILS, hooks) == 0
    assert hooks.calls == ["started 0", "ended failed", "started 1", "ended clean"]
    assert run(FAILS, Hooks(), restarts=0) == 1


def test_a_bug_in_the_hooks_does_not_take_the_job_along(run, monkeypatch, capfd):
    monkeypatch.setattr(elastic, "HOOKS_LIMIT_S", 0.3)
    hooks = Hooks()
    hooks.tick = lambda _: 1 / 0
    hooks.ended = lambda _: 1 / 0
    assert run(FAILS, hooks) == 0
    assert "ZeroDivisionError" in capfd.readouterr().err
    bug = "this is a bug of holdfast, please report it; the job goes on"
    assert hooks.calls == ["started 0", bug, bug, "started 1", bug]  # one tick, two ends
