"""SIGTERM and SIGUSR1 to one rank, some or all: all ranks save at one step and exit."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.training.checkpoint import emergency
from tests.fork_server import fork_server
from tests.ports import free_port

SCRIPT = Path(__file__).with_name("preempted.py")
LIMIT_S = 60


class Ranks:
    """Forked processes of the script without an agent; each prints to its own file."""

    def __init__(self, folder, ranks, pause_s=0.002, frozen=-1, mode="plain", **variables):
        port = free_port()
        self.files = [folder / f"{rank}.txt" for rank in range(ranks)]
        self.processes = []
        for rank, path in enumerate(self.files):
            environment = {
                name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")
            }
            environment |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            with path.open("wb") as file:
                self.processes.append(
                    fork_server().start_program(
                        *(SCRIPT, pause_s, frozen, mode),
                        environment=environment,
                        stdout=file,
                        stderr=file,
                    )
                )

    def text(self, rank):
        return self.files[rank].read_text()

    def until(self, text):
        end = time.monotonic() + LIMIT_S
        while not all(re.search(text, path.read_text()) for path in self.files):
            assert time.monotonic() < end, [path.read_text()[-2000:] for path in self.files]
            time.sleep(0.01)
        return self

    def statuses(self):
        return [process.wait(LIMIT_S) for process in self.processes]

    def saved(self):
        return [re.findall(r"saves (\d+)", self.text(rank)) for rank in range(len(self.files))]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def start(tmp_path):
    begun = []

    def start(*positional, **named):
        begun.append(Ranks(tmp_path, *positional, **named))
        return begun[-1]

    yield start
    for each in begun:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "signalled", "word", "status"),
    [
        (3, [1], signal.SIGTERM, 143),
        (2, [1], signal.SIGINT, 130),
        pytest.param(3, [0, 1, 2], signal.SIGUSR1, 138, marks=pytest.mark.matrix),
    ],
)
def test_all_ranks_save_at_one_step_and_exit_with_the_signals_status(
    start, count, signalled, word, status
):
    ranks = start(count).until("step 30")
    for rank in signalled:
        ranks.processes[rank].send_signal(word)

    statuses = ranks.statuses()
    assert statuses == [status] * count, "\n".join(
        ranks.text(rank)[-600:] for rank in range(count) if statuses[rank] != status
    )
    saved = ranks.saved()
    assert saved == [saved[0]] * count
    assert len(saved[0]) == 1
    for rank in range(count):  # no rank started the saved step
        assert f"{rank} step {int(saved[0][0]) - 1}\n" in ranks.text(rank)
        assert f"{rank} step {saved[0][0]}\n" not in ranks.text(rank)


@pytest.mark.slow
def test_a_second_interrupt_ends_the_rank_at_once(start):
    ranks = start(2, frozen=1, mode="asleep").until("step 20")  # rank 0 is in a collective
    ranks.processes[0].send_signal(signal.SIGINT)
    ranks.until("SIGINT at rank 0: all ranks save at step 21 and exit")
    ranks.processes[0].send_signal(signal.SIGINT)

    begun = time.monotonic()
    assert ranks.processes[0].wait(LIMIT_S) == -signal.SIGINT
    assert time.monotonic() - begun < 3
    assert "saves" not in ranks.text(0)


@pytest.mark.slow
def test_with_a_frozen_rank_the_signalled_rank_terminates(start):
    ranks = start(2, frozen=1, mode="frozen").until("step 20")
    begun = time.monotonic()
    ranks.processes[0].send_signal(signal.SIGTERM)

    assert ranks.processes[0].wait(LIMIT_S) == -signal.SIGTERM
    assert time.monotonic() - begun < 20
    assert "no emergency checkpoint: rank 1 did not respond" in ranks.text(0)
    assert "saves" not in ranks.text(0)


@pytest.mark.slow
def test_termination_by_the_agent_works_inside_a_collective(start, tmp_path):
    trace = tmp_path / "traces" / "rank0.trace"
    trace.parent.mkdir()
    ranks = start(2, frozen=1, mode="asleep", HOLDFAST_TRACE=str(trace)).until("step 20")
    trace.with_name("ranks-end").touch()
    begun = time.monotonic()
    ranks.processes[0].send_signal(
        signal.SIGTERM
    )  # it waits for rank 1 in C++, where no Python handler runs

    assert ranks.processes[0].wait(LIMIT_S) == -signal.SIGTERM
    assert time.monotonic() - begun < 3


@pytest.mark.slow
def test_parent_death_signal_is_not_a_preemption(tmp_path):
    """recorder/bootstrap.py requests this signal; otherwise an orphan would make the other hosts save and exit."""
    output = tmp_path / "output"
    agent = (
        "import ctypes, signal, subprocess, sys\n"
        "request = lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)\n"
        "rank = subprocess.Popen(sys.argv[1:], stdout=sys.stderr, preexec_fn=request)\n"
        "print(rank.pid, flush=True)\n"
        "rank.wait()\n"
    )
    positional = ("HOLDFAST_", "RANK", "WORLD_SIZE")
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(positional)
    }
    with output.open("wb") as file:
        command = [sys.executable, "-c", agent, sys.executable, str(SCRIPT), "0.01", "-1", "plain"]
        parent = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
        )
    rank = os.pidfd_open(int(parent.stdout.readline()))
    try:
        end = time.monotonic() + LIMIT_S
        while "step 30" not in output.read_text():
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.01)
        parent.kill()
        assert select.select([rank], [], [], LIMIT_S)[0], "it goes on"
        assert "saves" not in output.read_text()
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
        parent.kill()
        parent.communicate()


@pytest.mark.slow
def test_a_single_rank_saves_and_its_children_ignore_the_signal(start):
    ranks = start(1, pause_s=0.0, mode="forks").until("step 30")
    assert "child lives" in ranks.text(0)
    ranks.processes[0].send_signal(signal.SIGTERM)

    assert ranks.statuses() == [143]
    assert len(ranks.saved()[0]) == 1


def test_a_short_grace_period_is_logged_once_and_handlers_are_restored(monkeypatch, caplog):
    monkeypatch.setenv("HOLDFAST_GRACE_S", "5")
    monkeypatch.setattr(emergency, "_warned_of_short_grace", False)
    monkeypatch.setattr(emergency, "_longest_save_s", 0.0)
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)]
    emergency.record_save_duration(2.0)
    emergency.start_listening()
    try:
        assert not caplog.records
        for measured_s in (3.0, 12.0, 15.0):
            emergency.record_save_duration(measured_s)
    finally:
        emergency.stop_listening()

    (record,) = caplog.records
    assert "a save takes 12.0 s, but the scheduler's grace period is 5.0 s" in record.getMessage()
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)] == before
