"""The channel to the watcher: a slow, hung or dead watcher never blocks the agent."""

import os
import time

import pytest

from holdfast.launcher import watcher_channel
from holdfast.launcher.watcher_channel import WatcherChannel
from holdfast.watcher.agent_messages import JudgeNow, PeerSummaries, ProgressNote, WorkerExits

REPLIES = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(b'no JSON\\n{"kind": "other"}\\n{"kind": "note", "text": 7}\\n')
    sys.stdout.buffer.write(b'{"kind": "note", "text": "got it", "added": 1}\\n')
    sys.stdout.buffer.flush()
"""
HANGING = "import time; time.sleep(1000)"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a channel to a watcher with this source."""
    started = []

    def begin(source):
        (tmp_path / "stand_in.py").write_text(source)
        monkeypatch.setattr(watcher_channel, "WATCHER", "stand_in")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        started.append(WatcherChannel(environment, tmp_path / "watcher.log"))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def read_replies(channel, count):
    replies = []
    until = time.monotonic() + 20
    while len(replies) < count and time.monotonic() < until:
        replies += channel.replies()
        time.sleep(0.01)
    return replies


def test_replies_are_decoded_and_other_lines_are_logged(start, tmp_path):
    channel = start(REPLIES)
    channel.send(WorkerExits(codes={2: -9}))
    channel.send(JudgeNow())
    assert read_replies(channel, 2) == [ProgressNote(text="got it")] * 2
    channel.close()
    assert (channel.status, channel.alive) == (0, False)
    log = (tmp_path / "watcher.log").read_text().splitlines()
    assert len(log) == 6
    assert log[1].startswith("holdfast agent: ignored a message (Invalid value 'other'")
    assert log[2].endswith("""b'{"kind": "note", "text": 7}\\n'""")


def test_a_watcher_that_exits_is_detected(start, tmp_path):
    channel = start("raise SystemExit('broken')")
    until = time.monotonic() + 20
    while (channel.alive or channel.status is None) and time.monotonic() < until:
        time.sleep(0.01)
    channel.send(JudgeNow())
    assert (channel.alive, channel.status, list(channel.replies())) == (False, 1, [])
    assert (tmp_path / "watcher.log").read_text() == "broken\n"


@pytest.mark.slow
def test_sending_to_a_hung_watcher_does_not_block(start):
    channel = start(HANGING)
    begun = time.monotonic()
    for _ in range(100):
        channel.send(PeerSummaries(summaries={1: "x" * 10_000}))  # more than a pipe can hold
    assert time.monotonic() - begun < 1
    channel.close()
    assert channel.status == -9
