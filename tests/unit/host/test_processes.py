"""Sample real processes through /proc: state, wait reasons and children."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ChildProcess, ProcessState
from holdfast.host.processes import inspection, proc
from holdfast.host.processes.child_processes import ChildrenWatch, list_children
from holdfast.host.processes.inspection import (
    ProcessSample,
    compare_samples,
    sample_process,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a small program, which prints ``ready``; kill it and its children afterwards."""
    with contextlib.ExitStack() as stack:

        def start_program(body):
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", 'print("ready", flush=True)\n' + textwrap.dedent(body)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=tmp_path,
                    start_new_session=True,
                )
            )
            stack.callback(lambda: os.killpg(child.pid, signal.SIGKILL))
            assert child.stdout.readline() == b"ready\n"
            return child

        yield start_program


def until(sample, condition, what="it"):
    """Call ``sample()`` until ``condition`` is true for its result; return this result."""
    for _ in range(1000):
        answer = sample()
        if condition(answer):
            return answer
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen; last sample: {answer}")


def waiting(child, call):
    """Return the process once its main thread sleeps in the system call.

    Its state is read before the name of the call.
    """
    return until(
        lambda: sample_process(child.pid),
        lambda sample: getattr(sample.call, "name", "") in call.split("|") and sample.state != "R",
        call,
    )


def test_asleep(start):
    sample = waiting(start("import time; time.sleep(600)"), "clock_nanosleep|nanosleep")
    assert (sample.life, sample.state, sample.blocked_on) == (ProcessState.RUNNING, "S", None)
    assert sample.start_ticks > 0


def test_busy(start):
    child = start("while True: pass")
    first = sample_process(child.pid)
    second = until(
        lambda: sample_process(child.pid), lambda sample: sample.cpu_s > first.cpu_s + 0.1
    )
    did = compare_samples(first, second)
    assert did.cpu_share > 0.05
    assert did.seconds == pytest.approx(second.clock_s - first.clock_s)
    assert (
        until(lambda: sample_process(child.pid).call.name, lambda name: name == "running")
        == "running"
    )


def test_a_sleeping_process_uses_no_cpu_time(start):
    child = start("import time; time.sleep(600)")
    first = waiting(child, "clock_nanosleep|nanosleep")
    time.sleep(0.1)
    did = compare_samples(first, sample_process(child.pid))
    assert (did.cpu_share, did.io_bytes, did.disk_bytes) == (0.0, 0, 0)


def test_bytes(start):
    child = start("""
        import sys, time
        sys.stdin.readline()
        open("data", "wb").write(b"x" * 100_000)
        print("written", flush=True)
        time.sleep(600)
    """)
    first = waiting(child, "read")
    child.stdin.write(b"go\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"written\n"
    assert compare_samples(first, sample_process(child.pid)).io_bytes >= 100_000


def test_stopped_and_continued(start):
    child = start("import time; time.sleep(600)")
    child.send_signal(signal.SIGSTOP)
    until(lambda: sample_process(child.pid).life, lambda life: life == ProcessState.STOPPED)
    child.send_signal(signal.SIGCONT)
    until(lambda: sample_process(child.pid).life, lambda life: life == ProcessState.RUNNING)


def test_dead_unreaped_and_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    sample = sample_process(child.pid)
    assert (sample.life, sample.state) == (ProcessState.DEAD, "Z")
    assert sample.call == Unknown("the process has ended")
    child.wait()
    assert sample_process(child.pid).life == ProcessState.DEAD


def test_a_reused_pid(start):
    child = start("import time; time.sleep(600)")
    ticks = proc.read_stat(child.pid).started_ticks
    assert sample_process(child.pid, ticks).life == ProcessState.RUNNING
    assert sample_process(child.pid, ticks - 1).life == ProcessState.DEAD
    other = ProcessSample(
        pid=child.pid, life=ProcessState.RUNNING, time=0.0, clock_s=0.0, start_ticks=ticks - 1
    )
    assert compare_samples(other, sample_process(child.pid, ticks)).cpu_share is None


@pytest.mark.parametrize(
    ("body", "call", "words"),
    [
        ("open('fifo').read()", "openat|open", "FIFO {0}/fifo"),
        ("open('fifo', 'r+b', buffering=0).read(7)", "read", "FIFO {0}/fifo"),
        (
            "pipe = open('fifo', 'r+b', buffering=0); os.unlink('fifo'); pipe.read(7)",
            "read",
            "FIFO {0}/fifo",
        ),
        ("sys.stdin.readline()", "read", "pipe [{1}] (standard input)"),
        ("os.write(os.pipe()[1], bytes(1 << 20))", "write", "pipe ["),
        ("select.select([sys.stdin], [], [])", "select|pselect6", "pipe [{1}] (standard input)"),
        (
            "p = select.poll(); p.register(0, 1); p.poll(600_000)",
            "poll|ppoll",
            "pipe [{1}] (standard input)",
        ),
        ("multiprocessing.SimpleQueue().get()", "read", "pipe ["),
        ("fcntl.flock(open('lock'), fcntl.LOCK_EX)", "flock", "file {0}/lock"),
        ("a, b = socket.socketpair(); a.recv(1)", "recvfrom|read", None),
        ("threading.Lock().acquire() and threading.Event().wait()", "futex", None),
        ("subprocess.run(['sleep', '600'])", "wait4|waitid", None),
        ("signal.pause()", "pause|ppoll", None),
    ],
)
def test_wait_reason(start, tmp_path, body, call, words):
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "lock").open("w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        imports = "import fcntl, multiprocessing, os, select, signal, socket, subprocess, sys, threading\n"
        child = start(imports + body)
        sample = waiting(child, call)
        inode = os.fstat(child.stdin.fileno()).st_ino
        if words is None:
            assert sample.blocked_on is None
        else:
            assert sample.blocked_on.startswith(words.format(tmp_path, inode))


def test_files_unreadable_for_another_user_are_unknown(start):
    not_dumpable = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('closed', flush=True); time.sleep(600)"
    child = start(not_dumpable)
    assert child.stdout.readline() == b"closed\n"
    sample = sample_as_nobody(child.pid)
    assert "life=<ProcessState.RUNNING" in sample
    assert "call=Unknown(why='/proc/" in sample
    assert "moved=Unknown(why='/proc/" in sample
    assert "cpu_share=0" in sample or "cpu_share=0.0" in sample


def sample_as_nobody(pid):
    """Return the output of ``sample_process`` in a process without permission to trace others."""
    script = textwrap.dedent("""
        import ctypes, os, sys
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        first = inspection.sample_process(int(sys.argv[1]))
        second = inspection.sample_process(int(sys.argv[1]))
        print(first, inspection.compare_samples(first, second), first.blocked_on)
    """)
    source = str(Path(inspection.__file__).parents[3])
    imports = f"import sys; sys.path.insert(0, {source!r}); from holdfast.host.processes import inspection\n"
    done = subprocess.run(
        [sys.executable, "-c", imports + script, str(pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


PARENT = """
import os, signal, sys, time
def child(name, then):
    pid = os.fork()
    if pid == 0:
        open("/proc/self/comm", "w").write(name)
        then()
    return pid
def grandparent():
    child("pt_grandchild", lambda: time.sleep(600))
    time.sleep(600)
sleeping = child("pt_sleeper", lambda: time.sleep(600))
parent = child("pt_parent", grandparent)
status = child("pt_status", lambda: os._exit(3))
killed = child("pt_killed", lambda: time.sleep(600))
print(sleeping, parent, status, killed, flush=True)
sys.stdin.readline()
os.waitpid(killed, 0)
print("reaped", flush=True)
time.sleep(600)
"""


def by_name(children):
    return {child.name: child for child in children}


def test_children(start):
    child = start(PARENT)
    sleeping, parent, _, killed = map(int, child.stdout.readline().split())
    watch = ChildrenWatch(child.pid)
    start_time = time.time()
    found = by_name(
        until(watch.sample, lambda found: {"pt_grandchild", "pt_killed"} <= by_name(found).keys())
    )
    assert found["pt_sleeper"] == ChildProcess(sleeping, "pt_sleeper", alive=True)
    assert found["pt_parent"].pid == parent

    os.kill(killed, signal.SIGKILL)
    found = by_name(until(watch.sample, lambda found: not by_name(found)["pt_killed"].alive))
    assert found["pt_killed"] == ChildProcess(killed, "pt_killed", alive=False, exit_code=-9)
    assert (
        until(
            lambda: by_name(watch.sample())["pt_status"], lambda sample: not sample.alive
        ).exit_code
        == 3
    )

    child.stdin.write(b"reap\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"reaped\n"
    assert "pt_killed" not in by_name(list_children(child.pid))
    assert by_name(watch.sample())["pt_killed"] == ChildProcess(
        killed, "pt_killed", alive=False, exit_code=-9
    )
    assert "pt_killed" in by_name(watch.sample(since=start_time))
    assert "pt_killed" not in by_name(watch.sample(since=time.time() + 1))
    assert by_name(watch.sample(since=time.time() + 1)).keys() >= {"pt_sleeper", "pt_grandchild"}


def test_without_the_kernels_child_lists_parent_ids_are_used(start, monkeypatch):
    child = start(PARENT)
    child.stdout.readline()
    expected = {"pt_sleeper", "pt_parent", "pt_status", "pt_killed", "pt_grandchild"}
    until(lambda: by_name(list_children(child.pid)).keys(), lambda names: names == expected)
    with monkeypatch.context() as patch:
        real = list_children.__globals__["Path"].exists
        patch.setattr("pathlib.Path.exists", lambda self: self.name != "children" and real(self))
        assert by_name(list_children(child.pid)).keys() == expected


def test_a_python_child_is_named_by_its_command_line(start):
    child = start(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    )
    (found,) = until(
        lambda: list_children(child.pid), lambda found: found and "sleep(600)" in found[0].name
    )
    assert found.name.endswith("-c import time; time.sleep(600)")


def test_a_missing_process_has_no_children():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert list_children(gone.pid) == ()
    assert ChildrenWatch(gone.pid).sample() == ()
