"""Sinks never delay or fail a training step, and the log reports lost writes once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from holdfast import sinks
from holdfast.training.sinks import JsonLines, guarded


class Recorder:
    """Records its writes."""

    def __init__(self):
        self.rows, self.closed = [], False

    def write(self, step, metrics):
        assert not self.closed
        self.rows.append((step, dict(metrics)))

    def close(self):
        self.closed = True


class RaisingSink(Recorder):
    def __init__(self, errors):
        super().__init__()
        self.errors = list(errors)

    def write(self, step, metrics):
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        super().write(step, metrics)


class HangingSink(Recorder):
    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def write(self, step, metrics):
        self.release.wait(30)
        super().write(step, metrics)


@pytest.fixture(autouse=True)
def rank_0(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_every_sink_gets_every_write_in_order_and_is_closed():
    recorders = [Recorder(), Recorder()]
    guard = guarded(recorders)
    for step in range(500):
        guard.write(step, {"loss": step / 2})
    guard.close()
    for sink in recorders:
        assert sink.rows == [(step, {"loss": step / 2}) for step in range(500)]
        assert sink.closed
    assert guard.lost == 0
    guard.write(501, {"loss": 1.0})
    guard.close()
    assert len(recorders[0].rows) == 500


def test_values_are_read_at_the_write_and_missing_ones_are_skipped(caplog):
    recorder = Recorder()
    guard = guarded([recorder])
    loss = torch.tensor(2.0)
    guard.write(
        1,
        {
            "loss": loss,
            "accuracy": None,
            "nan": math.nan,
            "text": "x",
            "two": torch.ones(2),
            "yes": True,
        },
    )
    loss.zero_()
    guard.write(2, {"text": "y"})
    guard.close()
    (_, first), (_, second) = recorder.rows
    assert {name: value for name, value in first.items() if name != "nan"} == {
        "loss": 2.0,
        "yes": 1.0,
    }
    assert math.isnan(first["nan"])
    assert second == {}
    assert caplog.text.count("metric 'text' is skipped: not a number") == 1
    assert caplog.text.count("metric 'two' is skipped") == 1


def test_a_raising_sink_is_logged_once_and_disabled(caplog):
    good, bad = Recorder(), RaisingSink([OSError("no space left on device")] * 99)
    guard = guarded([bad, good], most_failures=3)
    for step in range(50):
        guard.write(step, {"loss": 1.0})
    guard.close()
    assert len(good.rows) == 50
    assert bad.rows == []
    assert len(bad.errors) == 96
    assert guard.lost == 50
    assert [record.message for record in caplog.records] == [
        "RaisingSink failed; training continues: OSError: no space left on device",
        "RaisingSink failed 3 times in a row; it is disabled",
        "RaisingSink lost 50 of 50 writes",
    ]


def test_temporary_failures_lose_only_their_writes(caplog):
    bad = RaisingSink([ValueError("a"), SystemExit(3), None, KeyError("b"), None])
    guard = guarded([bad], most_failures=3)
    for step in range(10):
        guard.write(step, {"loss": 1.0})
    guard.close()
    assert [step for step, _ in bad.rows] == [2, 4, 5, 6, 7, 8, 9]
    assert guard.lost == 3
    assert caplog.text.count("training continues") == 1


def test_a_hanging_sink_delays_nothing_and_is_disabled(caplog):
    good, bad = Recorder(), HangingSink()
    guard = guarded([bad, good], write_limit_s=0.2, most_waiting=5)
    duration = 0.0
    for step in range(200):
        begun = time.monotonic()
        guard.write(step, {"loss": 1.0})
        duration += time.monotonic() - begun
        while len(good.rows) <= step and time.monotonic() - begun < 10:
            time.sleep(0.002)  # on a busy machine the other sink's thread runs late
    closing = time.monotonic()
    guard.close(10)
    assert time.monotonic() - closing < 3  # close does not wait for a disabled sink
    bad.release.set()
    assert duration < 1
    assert len(good.rows) == 200
    assert guard.lost == 200
    assert "HangingSink is too slow: 5 writes queued, dropping new ones" in caplog.text
    assert "HangingSink spent more than 200 ms on one write; it is disabled" in caplog.text


def test_close_waits_for_a_slow_sink_up_to_the_limit(caplog):
    bad = HangingSink()
    guard = guarded([bad])
    for step in range(3):
        guard.write(step, {"loss": 1.0})
    begun = time.monotonic()
    guard.close(0.3)
    assert 0.3 <= time.monotonic() - begun < 2
    bad.release.set()
    assert "HangingSink lost 3 of 3 writes" in caplog.text


def test_a_failing_close_is_logged(caplog):
    class HangingCloseSink(Recorder):
        def close(self):
            raise RuntimeError("no\nway")

    guard = guarded([HangingCloseSink()])
    guard.write(1, {"loss": 1.0})
    guard.close()
    assert [record.message for record in caplog.records] == [
        "HangingCloseSink could not be closed: RuntimeError: no"
    ]


def test_only_rank_0_writes(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    recorder = Recorder()
    guard = guarded([recorder])
    guard.write(1, {"loss": 1.0})
    guard.close()
    assert recorder.rows == []
    assert [
        thread.name for thread in threading.enumerate() if thread.name == "holdfast Recorder"
    ] == []


def test_an_empty_list_of_sinks_works():
    guard = guarded([])
    guard.write(1, {"loss": 1.0})
    guard.close()
    assert guard.lost == 0


def test_a_forked_child_neither_writes_nor_waits():
    recorder = Recorder()
    guard = guarded([recorder])
    guard.write(1, {"loss": 1.0})
    child = os.fork()
    if child == 0:
        guard.close(20)
        os._exit(7)
    begun = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert time.monotonic() - begun < 10
    guard.close()
    assert len(recorder.rows) == 1


ENDS = """
import sys
from holdfast import sinks
guard = sinks.guarded([sinks.JsonLines(sys.argv[1])])
for step in range(2000):
    guard.write(step, {"loss": 1.0})
raise SystemExit(5) if len(sys.argv) > 2 else KeyError("the script fails")
"""


@pytest.mark.parametrize("more", [[], ["exit"]])
def test_queued_writes_are_completed_at_exit(tmp_path, more):
    file = tmp_path / "metrics.jsonl"
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, file, *more], capture_output=True, text=True, check=False
    )
    assert ended.returncode == (5 if more else 1)
    written = len(file.read_bytes().splitlines())
    assert written >= 1000
    assert written == 2000 or f"JsonLines lost {2000 - written:,} of 2,000 writes" in ended.stderr


HANGS_AT_THE_END = """
import threading, time
from holdfast import sinks
from holdfast.training.sinks import background_writer as module
module.BackgroundSink.close.__defaults__ = (0.5,)
class HangingSink:
    def write(self, step, metrics): threading.Event().wait()
    def close(self): ...
guard = sinks.guarded([HangingSink()])
guard.write(1, {})
"""


def test_a_sink_that_hangs_forever_does_not_block_exit(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", HANGS_AT_THE_END],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "HangingSink lost 1 of 1 write" in ended.stderr


def test_public_names_exist():
    assert sinks.JsonLines is JsonLines
    assert set(sinks.__all__) <= set(dir(sinks))
    with pytest.raises(AttributeError, match="it offers JsonLines"):
        _ = sinks.Tensorboard
