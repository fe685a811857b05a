"""The agent calls its hooks and executes orders, with real workers without torch."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.launcher.elastic import agent, command_line, termination, worker_start
from holdfast.launcher.elastic.generation import Order, OrderAction
from holdfast.launcher.elastic.run_job import launch
from tests import ports

#: Waits in the first generation, succeeds in the others.
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
    """Records every call; returns ``order`` once all workers run or one has exited."""

    def __init__(self, order=None, helper=()):
        self.calls = []
        self.generations = []
        self.order = order
        self.helper_command, self.helper = helper, None

    def prepare(self):
        """Do nothing."""

    def export_state(self):
        return ""

    def import_state(self, state):
        raise AssertionError(state)

    def worker_environment(self, rank, generation):
        return {"GIVEN": f"{rank}.{generation}"}

    def workers_started(self, generation):
        self.generations.append(generation)
        self.calls.append(f"started {generation.number}")

    def tick(self, status):
        if status.exit_codes or len(list(Path().glob("up*"))) == 2:
            if self.helper_command and self.helper is None:
                self.helper = subprocess.Popen(self.helper_command)
            order, self.order = self.order, None
            return order
        return None

    def order_agreed(self, order):
        self.calls.append(f"decided {order.action}")

    def workers_ended(self, how):
        self.calls.append(f"ended {how}")

    def notify(self, text):
        self.calls.append(text)

    def helpers(self):
        return frozenset({self.helper.pid} if self.helper else ())

    def available_memory(self):
        return None

    def abort(self):
        self.calls.append("abandon")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a script in two workers with hooks; return the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        termination, "adopt_orphans", lambda: None
    )  # cannot be undone in pytest's process

    def start(source, hooks, *arguments, restarts=1):
        Path("script.py").write_text(source)
        port = str(ports.free_port())
        common = ["--nproc-per-node", "2", "--max-restarts", str(restarts), "--master-port", port]
        options = command_line.parse_run_options([*common, "script.py", *arguments], {})
        return launch(options, hooks, logs=tmp_path / "logs", quiet=True)

    return start


def order(choice, **how):
    return Order(action=choice, reason="because", **how)


def test_an_order_to_restart_starts_all_workers_again(run, tmp_path, capfd):
    hooks = Hooks(order(OrderAction.RESTART), helper=["sleep", "1000"])
    before = signal.getsignal(signal.SIGTERM)
    assert run(WAITS, hooks) == 0
    assert hooks.calls == [
        "started 0",
        "decided restart",
        "ended failed",
        "started 1",
        "ended clean",
    ]
    assert hooks.helper.poll() is None  # a child that started during generation 0 is no orphan
    hooks.helper.kill()
    hooks.helper.wait()
    first, second = hooks.generations
    assert (first.node, first.nodes, first.world_size, first.leader) == (0, 1, 2, True)
    assert [(worker.rank, worker.local_rank) for worker in second.workers] == [(0, 0), (1, 1)]
    assert {worker.pid for worker in first.workers} & {
        worker.pid for worker in second.workers
    } == set()
    assert (tmp_path / "logs/generation1/rank1/stdout.log").read_text() == "rank 1 has 1.1\n"
    assert "[rank1]: rank 1 has 1.0\n" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_order_to_stop_fails_the_job_despite_remaining_restarts(run):
    hooks = Hooks(order(OrderAction.STOP))
    assert run(WAITS, hooks, restarts=5) == 1
    assert hooks.calls == ["started 0", "decided stop", "ended failed"]


def test_stuck_workers_are_killed_at_once_and_others_after_the_grace_period(run):
    hooks = Hooks(order(OrderAction.STOP, stuck=(0,), grace_s=1.0))
    begun = time.monotonic()
    assert run(WAITS, hooks, "--stubborn") == 1
    assert time.monotonic() - begun < 20  # torch would wait 30 s


def test_after_a_worker_failed_the_agent_waits_for_an_order(run):
    hooks = Hooks(order(OrderAction.RESTART))
    assert run(FAILS, hooks) == 0
    assert hooks.calls == [
        "started 0",
        "decided restart",
        "ended failed",
        "started 1",
        "ended clean",
    ]


def test_without_an_order_torch_restarts_the_workers(run, monkeypatch):
    monkeypatch.setattr(agent, "HOOKS_TIMEOUT_S", 0.3)
    hooks = Hooks()
    assert run(FAILS, hooks) == 0
    assert hooks.calls == ["started 0", "ended failed", "started 1", "ended clean"]
    assert run(FAILS, Hooks(), restarts=0) == 1


def test_an_exception_in_a_hook_does_not_end_the_job(run, monkeypatch, capfd):
    monkeypatch.setattr(agent, "HOOKS_TIMEOUT_S", 0.3)
    hooks = Hooks()
    hooks.tick = lambda _: 1 / 0
    hooks.workers_ended = lambda _: 1 / 0
    assert run(FAILS, hooks) == 0
    assert "ZeroDivisionError" in capfd.readouterr().err
    bug = "this is a bug in holdfast, please report it; the job continues"
    assert hooks.calls == ["started 0", bug, bug, "started 1", bug]  # one tick, two ends


def test_a_torch_that_starts_processes_in_another_way_is_named(run, monkeypatch):
    monkeypatch.setattr(worker_start, "is_supported", lambda: False)
    hooks = Hooks()
    assert run("", hooks) == 0
    (notice,) = [call for call in hooks.calls if "in another way" in call]
    assert notice.endswith("standby workers and in-process restarts are disabled")
