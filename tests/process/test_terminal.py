"""`holdfast run` on a terminal: what torchrun users see, with complete logs."""

import os
import signal
import termios
import time

import psutil
import pytest

from tests.fork_server import fork_server
from tests.process.launched import wait_gone
from tests.process.terminal import Terminal

ARGUMENTS = ("--recorder", "python", "--no-gate")
BAR = """
import sys, time
from tqdm import tqdm
print("terminal", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())
for number in tqdm(range(40), mininterval=0):
    time.sleep(0.01)
    if number == 20:
        tqdm.write("half")
print("\x1b[32mgreen\x1b[0m")
"""
ASKS = """
print("hello", input("name? "))
answer = 42
breakpoint()
print("continued with", answer)
"""
TWO = """
import os, sys, time
rank = int(os.environ["RANK"])
for number in range(20):
    if rank == 0:
        sys.stderr.write(f"\\r{number} of 20")
    time.sleep(0.01)
print(f"rank {rank} is done")
"""
NESTED = """
import os, time
from tqdm import tqdm
if os.environ["RANK"] == "1":
    for number in range(30):
        print("line", number, flush=True)
        time.sleep(0.02)
else:
    bars = [tqdm(total=5, position=at, desc=f"bar {at}", mininterval=0) for at in range(3)]
    for _ in range(5):
        for bar in bars:
            bar.update()
            time.sleep(0.05)
    for bar in bars:
        bar.close()
"""
DIES = """
import os, signal
print("x" * 100000, flush=True)
print("last words", end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
SAVES_WHEN_ORPHANED = """
import signal, sys, time
def save(*_):
    for number in range(3000):  # more than a pseudo-terminal holds
        print("saving part", number)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(1000)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def terminal():
    created = Terminal()
    yield created
    created.close()


@pytest.fixture
def run(launch, terminal, tmp_path):
    """Start `holdfast run` of a program on the terminal."""

    def start(program, *arguments, **variables):
        (tmp_path / "program.py").write_text(program)
        return launch(*ARGUMENTS, *arguments, "program.py", terminal=terminal, **variables)

    return start


def read_log(job, name="stdout.log", rank=0):
    return (job.run / f"logs/generation0/rank{rank}/{name}").read_bytes().decode()


def test_a_bar_of_one_rank_is_as_under_torchrun(run, terminal, tmp_path):
    job = run(BAR)
    assert job.end() == 0
    expected = Terminal()
    torchrun = ("-m", "torch.distributed.run", tmp_path / "program.py")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), expected.file)
    assert fork_server().start_program(*torchrun, **streams).wait(60) == 0
    expected.wait_for("green")

    def last_lines(shown):
        lines = [line.partition(" [")[0] for line in shown.lines if line]
        return lines[lines.index("terminal True True True") :]

    assert last_lines(terminal) == last_lines(expected)
    assert "\x1b[32mgreen\x1b[0m" in terminal.text
    assert read_log(job) == "terminal True True True\nhalf\n\x1b[32mgreen\x1b[0m\n"
    assert read_log(job, "stderr.log").count("\r") >= 40
    expected.close()


def test_input_and_debugger_work(run, terminal):
    job = run(ASKS)
    for prompt, answer in (("name? ", "Ada"), ("(Pdb) ", "p answer + 1"), ("43", "c")):
        terminal.wait_for(prompt)
        terminal.type(f"{answer}\n")
    assert job.end() == 0
    assert {"name? Ada", "hello Ada", "43", "continued with 42"} <= set(terminal.lines)


def test_the_second_signal_in_a_debugger_restores_the_terminal(run, terminal):
    before = termios.tcgetattr(terminal.file)
    job = run("input('ready? ')\nbreakpoint()\nprint()")
    terminal.wait_for("ready? ")
    terminal.type("yes\n")
    terminal.wait_for("(Pdb) ")
    assert termios.tcgetattr(terminal.file) != before
    job.send(signal.SIGINT)
    terminal.wait_for("a second signal kills")
    assert job.send(signal.SIGINT).end() == 128 + signal.SIGINT
    assert termios.tcgetattr(terminal.file) == before


@pytest.mark.parametrize("prefix", ["auto", pytest.param("never", marks=pytest.mark.matrix)])
def test_prefixes_of_two_ranks(run, terminal, prefix):
    job = run(TWO, "--nproc-per-node", "2", "--prefix", prefix)
    assert job.end() == 0, terminal.text
    named = [line for line in terminal.lines if "is done" in line]
    if prefix == "auto":
        assert any(line.startswith("[rank") for line in named)
        assert sum("of 20" in line for line in terminal.lines) == 1
    else:
        assert sorted(named) == ["rank 0 is done", "rank 1 is done"]
    assert [read_log(job, rank=rank) for rank in (0, 1)] == [
        f"rank {rank} is done\n" for rank in (0, 1)
    ]


def test_several_bars_do_not_overwrite_the_lines_of_another_rank(run, terminal):
    job = run(NESTED, "--nproc-per-node", "2")
    assert job.end() == 0, terminal.text
    lines = terminal.lines
    printed = [line.removeprefix("[rank1]: ") for line in lines if "line" in line]
    assert printed == [f"line {number}" for number in range(30)], "\n".join(lines)
    full = [line for line in lines if "5/5" in line]
    assert [line.split(":")[1].strip() for line in full] == ["bar 0", "bar 1", "bar 2"]


def test_the_log_of_a_killed_rank_is_complete(run, terminal):
    job = run(DIES)
    assert job.end() == 1
    assert read_log(job) == "x" * 100000 + "\nlast words"
    text = "\n".join(terminal.lines)
    assert "last words\n" in text  # the verdict does not continue this line
    assert "holdfast: the job failed" in text


def test_workers_save_after_the_launcher_was_killed(run, terminal):
    job = run(SAVES_WHEN_ORPHANED)
    terminal.wait_for("ready")
    family = job.family()
    assert job.send(signal.SIGKILL).end() == -signal.SIGKILL
    assert wait_gone(family, limit_s=60) == []
    assert read_log(job).endswith("saving part 2999\nsaved\n")
    terminal.wait_for("saved")


def test_the_job_continues_after_the_relay_was_killed(run, terminal, tmp_path):
    job = run(
        "import os, time; print('begun')\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print('done')"
    )
    terminal.wait_for("begun")
    (relay,) = [each for each in job.family() if "terminal import relay" in str(each.cmdline())]
    relay.kill()
    psutil.wait_procs([relay], timeout=10)
    (tmp_path / "go").touch()
    assert job.end() == 0
    terminal.wait_for("done")
    assert read_log(job) == "begun\ndone\n"


def test_a_stopped_terminal_blocks_no_worker(run, terminal, tmp_path):
    job = run(
        "import os, pathlib, time\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "for number in range(20000): print('line', number)\n"
        "pathlib.Path('printed').touch()"
    )
    terminal.wait_for("generation 0")
    terminal.type("\x13")  # Ctrl-S
    time.sleep(0.2)
    (tmp_path / "go").touch()
    until = time.monotonic() + 30
    while not (tmp_path / "printed").exists():
        assert time.monotonic() < until, "the worker is blocked"
        time.sleep(0.05)
    terminal.type("\x11")
    assert job.end() == 0
    assert read_log(job).count("\n") == 20000


def test_the_size_of_the_terminal_is_handed_on(run, terminal):
    job = run(
        "import os, time\n"
        "print('size', *os.get_terminal_size(), flush=True)\n"
        "while os.get_terminal_size().columns == 100: time.sleep(0.05)\n"
        "print('size', *os.get_terminal_size())"
    )
    terminal.wait_for("size 100 40")
    terminal.resize(30, 70)
    assert job.end() == 0
    terminal.wait_for("size 70 30")


@pytest.mark.matrix
def test_standby_workers_print_to_the_terminal(run, terminal):
    job = run(
        "import os, sys, time, torch, pathlib\n"
        "import holdfast\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'\n"
        "print('again' if again else 'first', sys.stdout.isatty())\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "for step in range(3): optimizer.step()\n"
        "time.sleep(0 if again else 4)\n"
        "sys.exit(0 if again else 7)",
        "--max-restarts",
        "1",
        new_ranks=True,
    )
    assert job.end() == 0
    assert "again True" in terminal.lines
    assert os.path.exists(job.run / "logs/generation1/rank0/stdout.log")  # noqa: PTH110
