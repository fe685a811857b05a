"""How workers are ended: politely, or at once where that is the only way, and with all that they started."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from holdfast.runtime import ending

POLITE = "import time; print('up', flush=True); time.sleep(1000)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
PARENT = """
import subprocess, sys, time
for escapes in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=escapes)
print("up", flush=True)
time.sleep(1000)
"""
#: Adopts what its worker leaves behind: in a process of its own, because adopting orphans is for good.
ADOPTS = """
import os, signal, subprocess, sys, time
from holdfast.runtime import ending
ending.adopt_orphans()
spared = subprocess.Popen(["sleep", "1000"])
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)
worker.stdout.readline()
worker.kill(); worker.wait()
time.sleep(0.2)
ending.end([worker], word=signal.SIGTERM, patience_s=5, spared=[spared.pid])
left = ending.children_of(os.getpid())
spared.kill()
sys.exit(0 if left == {spared.pid} else f"left: {left}")
"""


@pytest.fixture
def start():
    """Starts a worker in a session of its own and waits until it is up; kills what is left of it at the end."""
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


def seconds(*workers, **how):
    begun = time.monotonic()
    ending.end(workers, **{"word": signal.SIGTERM, "patience_s": 30.0, **how})
    return time.monotonic() - begun


def test_a_polite_worker_goes_when_it_is_asked_to(start):
    worker = start(POLITE)
    assert seconds(worker) < 5
    assert worker.poll() == -signal.SIGTERM


def test_a_stubborn_worker_is_killed_when_patience_ends(start):
    worker = start(STUBBORN)
    assert 0.5 <= seconds(worker, patience_s=0.5) < 5
    assert worker.poll() == -signal.SIGKILL


def test_a_stuck_worker_is_not_waited_for(start):
    stuck, other = start(STUBBORN), start(POLITE)
    assert seconds(stuck, other, at_once={stuck.pid}) < 5
    assert (stuck.poll(), other.poll()) == (-signal.SIGKILL, -signal.SIGTERM)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_frozen_worker_is_not_waited_for(start, when):
    worker = start(POLITE if when == "before" else STUBBORN)
    if when == "before":
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)  # of two signals at once SIGTERM would be the first
    else:
        subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -STOP {worker.pid}"]).wait()
    assert seconds(worker) < 5
    assert worker.poll() == -signal.SIGKILL


def test_what_a_worker_started_ends_with_it(start):
    worker = start(PARENT)
    children = psutil.Process(worker.pid).children()
    assert len(children) == 2
    assert seconds(worker) < 5
    assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.slow
def test_orphans_of_a_worker_that_was_killed_are_ended_too():
    subprocess.run([sys.executable, "-c", ADOPTS, PARENT], check=True, timeout=60)


def test_workers_that_ended_by_themselves_are_no_trouble(start):
    worker = start(POLITE)
    worker.kill()
    worker.wait()
    assert seconds(worker) < 1


def test_a_process_that_is_not_there_is_none():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert ending.look(ended.pid) is None
    me = ending.look(os.getpid())
    assert (me.pid, me.parent, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
