"""The line to the watcher: nothing that the watcher does, or does not do, makes the agent wait."""

import os
import time

import pytest

from holdfast.actions import channel
from holdfast.actions.channel import Channel

ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(b"no JSON\\n" + line); sys.stdout.buffer.flush()
"""
DEAF = "import time; time.sleep(1000)"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a channel to a watcher of the given source."""
    started = []

    def begin(source):
        (tmp_path / "stand_in.py").write_text(source)
        monkeypatch.setattr(channel, "WATCHER", "stand_in")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        started.append(Channel(environment, tmp_path / "watcher.log"))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def arrived(line, count):
    found = []
    until = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        found += line.answers()
        time.sleep(0.01)
    return found


def test_orders_go_out_and_answers_come_in(start):
    line = start(ECHO)
    line.send("exits", codes={"2": -9})
    line.send("judge")
    assert arrived(line, 2) == [{"kind": "exits", "codes": {"2": -9}}, {"kind": "judge"}]
    line.close()
    assert (line.status, line.alive) == (0, False)


def test_a_watcher_that_dies_is_noticed_and_does_no_harm(start, tmp_path):
    line = start("raise SystemExit('broken')")
    until = time.monotonic() + 20
    while line.alive and time.monotonic() < until:
        time.sleep(0.01)
    line.send("judge")
    assert (line.alive, line.status, list(line.answers())) == (False, 1, [])
    assert (tmp_path / "watcher.log").read_text() == "broken\n"


@pytest.mark.slow
def test_a_watcher_that_does_not_listen_costs_no_time(start):
    line = start(DEAF)
    begun = time.monotonic()
    for _ in range(100):
        line.send("summaries", blobs={"1": "x" * 10_000})  # more than any pipe holds
    assert time.monotonic() - begun < 1
    line.close()
    assert line.status == -9
