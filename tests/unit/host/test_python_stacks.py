"""Sample stacks of real processes: asleep, busy, holding the GIL in C, stopped, dead, and not traceable."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState, SourceLine, ThreadStack
from holdfast.core.trace_file import STACK_SIGNAL
from holdfast.host.processes import proc, python_stacks

PREPARE = """
import faulthandler, sys
faulthandler.register({signal}, file=open(sys.argv[1], "w"), all_threads=True, chain=False)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a small program and waits for its output; kill the program afterwards."""
    with contextlib.ExitStack() as stack:

        def start_program(body, *, answers=True):
            script = tmp_path / f"program{time.monotonic_ns()}.py"
            script.write_text(
                (PREPARE.format(signal=STACK_SIGNAL) if answers else "") + textwrap.dedent(body)
            )
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(script), f"{script}.stacks"], stdout=subprocess.PIPE
                )
            )
            stack.callback(child.kill)
            assert child.stdout.readline() == b"ready\n"
            return child, script, Path(f"{script}.stacks")

        yield start_program


@pytest.fixture
def no_py_spy(monkeypatch):
    monkeypatch.setattr(python_stacks, "_py_spy", lambda: None)


ASLEEP = """
import threading, time

def wait_for_ever():
    print("ready", flush=True)
    time.sleep(600)

threading.Thread(target=threading.Event().wait, name="idler", daemon=True).start()
wait_for_ever()
"""

BUSY = """
def turn(number):
    return sum(range(number))

print("ready", flush=True)
while True:
    turn(100_000)
"""

# PyDLL, unlike CDLL, keeps the GIL during the call.
HOLDS_THE_GIL = """
import ctypes

def keep():
    print("ready", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(600)

keep()
"""


def line_of(script, text):
    return next(
        number for number, line in enumerate(script.read_text().splitlines(), 1) if text in line
    )


def settled(pid):
    """Wait until the process sleeps in the kernel after printing "ready"."""
    for _ in range(500):
        status = proc.read_stat(pid)
        if isinstance(status, proc.ProcessStat) and status.state in "ST":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} does not fall asleep")


@pytest.mark.slow
def test_a_sleeping_process_is_sampled_with_line_and_threads(start):
    child, script, _ = start(ASLEEP)
    settled(child.pid)
    stacks = python_stacks.sample_stacks(child.pid, 10.0)
    assert isinstance(stacks, tuple)
    main = python_stacks.main_thread(stacks)
    assert main.frames[0] == SourceLine(str(script), line_of(script, "time.sleep"), "wait_for_ever")
    assert main.frames[-1].function == "<module>"
    assert [stack.thread for stack in stacks] == ["MainThread", "idler"]
    assert main.origin == "py-spy"
    assert abs(main.time - time.time()) < 60


@pytest.mark.slow
@pytest.mark.usefixtures("no_py_spy")
def test_the_signal_gives_the_same_stack(start):
    child, script, dump = start(ASLEEP)
    settled(child.pid)
    for _ in range(2):  # the second dump follows the first in the same file
        stacks = python_stacks.sample_stacks(child.pid, 10.0, dump, STACK_SIGNAL)
        assert isinstance(stacks, tuple), stacks
        main = python_stacks.main_thread(stacks)
        assert main.frames[0] == SourceLine(
            str(script), line_of(script, "time.sleep"), "wait_for_ever"
        )
        assert main.origin == "faulthandler"
        assert len(stacks) == 2
    assert child.poll() is None


@pytest.mark.slow
def test_a_busy_loop_is_running(start):
    child, script, _ = start(BUSY)
    stacks = python_stacks.sample_stacks(child.pid, 10.0)
    assert isinstance(stacks, tuple), stacks
    assert stacks[0].frames[-1].file == str(script)


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["py-spy", "faulthandler"])
def test_c_code_holding_the_gil_does_not_hide_the_stack(start, monkeypatch, origin):
    if origin == "faulthandler":
        monkeypatch.setattr(python_stacks, "_py_spy", lambda: None)
    child, script, dump = start(HOLDS_THE_GIL)
    settled(child.pid)
    stacks = python_stacks.sample_stacks(child.pid, 10.0, dump, STACK_SIGNAL)
    assert isinstance(stacks, tuple), stacks
    assert stacks[0].origin == origin
    assert stacks[0].frames[0] == SourceLine(str(script), line_of(script, "PyDLL"), "keep")


@pytest.mark.slow
def test_a_stopped_process_is_sampled_and_stays_stopped(start):
    child, script, dump = start(ASLEEP)
    settled(child.pid)
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    stacks = python_stacks.sample_stacks(child.pid, 10.0, dump, STACK_SIGNAL)
    assert isinstance(stacks, tuple), stacks
    assert stacks[0].frames[0].line == line_of(script, "time.sleep")
    assert proc.read_stat(child.pid).life == ProcessState.STOPPED


@pytest.mark.slow
@pytest.mark.usefixtures("no_py_spy")
def test_a_stopped_process_is_not_sent_the_signal(start):
    child, _, dump = start(ASLEEP)
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    stacks = python_stacks.sample_stacks(child.pid, 1.0, dump, STACK_SIGNAL)
    assert isinstance(stacks, Unknown)
    assert "stopped" in stacks.why
    pending = proc.read_fields(f"/proc/{child.pid}/status")
    assert int(pending["ShdPnd"], 16) == int(pending["SigPnd"], 16) == 0
    assert proc.read_stat(child.pid).life == ProcessState.STOPPED


@pytest.mark.slow
def test_a_process_left_stopped_by_a_tracer_is_continued(start, monkeypatch):
    child, _, _ = start(ASLEEP)
    settled(child.pid)

    def leave_stopped(pid, _timeout_s, _root):
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        return Unknown("cut short")

    monkeypatch.setattr(python_stacks, "_sample_by_py_spy", leave_stopped)
    assert python_stacks.sample_stacks(child.pid, 1.0) == Unknown("cut short")
    settled(child.pid)
    assert proc.read_stat(child.pid).life == ProcessState.RUNNING


@pytest.mark.slow
@pytest.mark.usefixtures("no_py_spy")
def test_the_signal_is_not_sent_to_a_process_that_does_not_handle_it(start):
    child, _, dump = start(ASLEEP, answers=False)
    dump.touch()
    stacks = python_stacks.sample_stacks(child.pid, 1.0, dump, STACK_SIGNAL)
    assert isinstance(stacks, Unknown)
    assert "py-spy is not installed" in stacks.why
    assert child.poll() is None


@pytest.mark.slow
def test_a_reused_pid_is_detected(start):
    child, _, _ = start(ASLEEP)
    stacks = python_stacks.sample_stacks(
        child.pid, 1.0, start_ticks=proc.read_stat(child.pid).started_ticks - 1
    )
    assert isinstance(stacks, proc.ProcessGone)


@pytest.mark.slow
def test_dead_and_zombie_processes_are_unknown(start):
    child, _, _ = start(ASLEEP)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert python_stacks.sample_stacks(child.pid, 1.0) == Unknown(f"process {child.pid} has ended")
    child.wait()
    assert isinstance(python_stacks.sample_stacks(child.pid, 1.0), proc.ProcessGone)


@pytest.mark.slow
def test_a_process_without_python_is_unknown():
    with subprocess.Popen(["sleep", "60"]) as child:
        stacks = python_stacks.sample_stacks(child.pid, 5.0)
        child.kill()
    assert isinstance(stacks, Unknown)
    assert "py-spy could not read" in stacks.why


# Tracing a process that is not dumpable requires CAP_SYS_PTRACE, which the program below does not have.
SAMPLER = """
import ctypes, sys
PR_CAPBSET_DROP, CAP_SYS_PTRACE = 24, 19
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
from pathlib import Path
from holdfast.host.processes import python_stacks as stacks
taken = stacks.sample_stacks(int(sys.argv[1]), 10.0, Path(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3]))
print(taken[0].origin, taken[0].frames[0].function) if isinstance(taken, tuple) else print(taken.why)
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_file", [True, False])
def test_where_tracing_is_refused_the_signal_is_used(start, with_file):
    not_dumpable = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
    child, _, dump = start(not_dumpable + ASLEEP)
    settled(child.pid)
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            SAMPLER,
            str(child.pid),
            str(dump) if with_file else "",
            str(STACK_SIGNAL),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(python_stacks.__file__).parents[3])},
    ).stdout.strip()
    expected = (
        "faulthandler wait_for_ever"
        if with_file
        else (f"py-spy has no permission to trace process {child.pid} (ptrace)")
    )
    assert answer == expected
    assert child.poll() is None


# faulthandler reads frames that these threads free meanwhile: the process would soon die of SIGSEGV.
SEVERAL_RUN = """
import threading

def deep(calls):
    if calls:
        deep(calls - 1)

def turn():
    while True:
        deep(300)

for _ in range(3):
    threading.Thread(target=turn, daemon=True).start()
print("ready", flush=True)
turn()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_py_spy")
def test_the_signal_is_not_sent_to_a_running_process(start):
    child, _, dump = start(SEVERAL_RUN)
    for _ in range(60):
        stacks = python_stacks.sample_stacks(child.pid, 0.1, dump, STACK_SIGNAL)
        assert isinstance(stacks, Unknown)
        assert stacks.why.endswith(
            "its threads are running, and faulthandler's signal could crash it"
        )
    assert child.poll() is None


@pytest.mark.slow
def test_a_hanging_tracer_is_killed_at_the_timeout(start, monkeypatch, tmp_path):
    child, _, dump = start(ASLEEP)
    settled(child.pid)
    hangs = tmp_path / "py-spy"
    hangs.write_text(f"#!{shutil.which('sh')}\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(python_stacks, "_py_spy", lambda: str(hangs))
    start_time = time.monotonic()
    stacks = python_stacks.sample_stacks(child.pid, 2.0, dump, STACK_SIGNAL)
    assert time.monotonic() - start_time < 10
    assert isinstance(stacks, tuple), stacks
    assert stacks[0].origin == "faulthandler"
    assert isinstance(proc.read_stat(int((tmp_path / "pid").read_text())), proc.ProcessGone)


@pytest.mark.slow
def test_several_processes_are_sampled_concurrently(start):
    first, _, dump = start(ASLEEP)
    second, _, _ = start(HOLDS_THE_GIL)
    settled(first.pid)
    settled(second.pid)
    gone = subprocess.Popen(["true"])
    gone.wait()
    stacks = python_stacks.sample_many_stacks(
        {first.pid: dump, second.pid: None, gone.pid: None}, 10.0, STACK_SIGNAL
    )
    assert python_stacks.main_thread(stacks[first.pid]).frames[0].function == "wait_for_ever"
    assert python_stacks.main_thread(stacks[second.pid]).frames[0].function == "keep"
    assert isinstance(stacks[gone.pid], proc.ProcessGone)
    assert python_stacks.sample_many_stacks({}) == {}


def test_a_main_thread_without_frames_is_unknown():
    other = ThreadStack((SourceLine("a.py", 1, "f"),), "idler")
    assert isinstance(python_stacks.main_thread((ThreadStack(()), other)), Unknown)
    assert isinstance(python_stacks.main_thread((other,)), Unknown)
    assert isinstance(python_stacks.main_thread(()), Unknown)
