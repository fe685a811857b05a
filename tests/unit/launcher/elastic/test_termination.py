"""Termination of workers and all processes that they started."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from holdfast.launcher.elastic import termination

EXITS = "import time; print('up', flush=True); time.sleep(1000)"
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
PARENT = """
import subprocess, sys, time
for escapes in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=escapes)
print("up", flush=True)
time.sleep(1000)
"""
#: Becomes the subreaper of its worker; in a separate process, because this cannot be undone.
ADOPTS = """
import os, signal, subprocess, sys, time
from holdfast.launcher.elastic import termination
termination.adopt_orphans()
spared = subprocess.Popen(["sleep", "1000"])
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)
worker.stdout.readline()
worker.kill(); worker.wait()
time.sleep(0.2)
termination.terminate([worker], signal_number=signal.SIGTERM, grace_s=5, spared=[spared.pid])
left = termination.children_of(os.getpid())
spared.kill()
sys.exit(0 if left == {spared.pid} else f"left: {left}")
"""


@pytest.fixture
def start():
    """Start a worker in its own session and wait until it runs; kill it at the end."""
    started = []

    def begin(source):
        command = [sys.executable, "-c", source]
        worker = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
        assert worker.stdout.readline() == b"up\n"
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def time_termination(*workers, **how):
    """Terminate the workers, and no child of an earlier test (a fork server, a loader's worker)."""
    others = termination.children_of(os.getpid()) - {worker.pid for worker in workers}
    begun = time.monotonic()
    termination.terminate(
        workers, **{"signal_number": signal.SIGTERM, "grace_s": 30.0, "spared": others, **how}
    )
    return time.monotonic() - begun


@pytest.mark.parametrize(("variable", "seconds"), [("20", 20.0), ("40", 40.0), ("", 30.0)])
def test_the_time_after_a_signal_is_the_users(monkeypatch, variable, seconds):
    monkeypatch.setenv("HOLDFAST_GRACE_S", variable)
    assert termination.interrupt_grace_s(30.0) == seconds


def test_a_worker_exits_on_sigterm(start):
    worker = start(EXITS)
    assert time_termination(worker) < 5
    assert worker.poll() == -signal.SIGTERM


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_period(start):
    worker = start(IGNORES)
    assert 0.5 <= time_termination(worker, grace_s=0.5) < 5
    assert worker.poll() == -signal.SIGKILL


def test_a_stuck_worker_is_killed_at_once(start):
    stuck, other = start(IGNORES), start(EXITS)
    assert time_termination(stuck, other, kill_first={stuck.pid}) < 5
    assert (stuck.poll(), other.poll()) == (-signal.SIGKILL, -signal.SIGTERM)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_frozen_worker_is_killed_at_once(start, when):
    worker = start(EXITS if when == "before" else IGNORES)
    if when == "before":
        worker.send_signal(signal.SIGSTOP)
        os.waitid(
            os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT
        )  # of two pending signals SIGTERM is delivered first
    else:
        subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -STOP {worker.pid}"]).wait()
    assert time_termination(worker) < 5
    assert worker.poll() == -signal.SIGKILL


def test_child_processes_of_a_worker_are_killed(start):
    worker = start(PARENT)
    children = psutil.Process(worker.pid).children()
    assert len(children) == 2
    assert time_termination(worker) < 5
    assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.slow
def test_orphans_of_a_killed_worker_are_killed():
    subprocess.run([sys.executable, "-c", ADOPTS, PARENT], check=True, timeout=60)


def test_workers_that_have_exited_take_no_time(start):
    worker = start(EXITS)
    worker.kill()
    worker.wait()
    assert time_termination(worker) < 1


def test_reading_a_process():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert termination.read_process(ended.pid) is None
    me = termination.read_process(os.getpid())
    assert (me.pid, me.parent, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
