"""The leader's watcher writes the live state of the whole job: bounded, atomic, never blocking."""

from __future__ import annotations

import threading

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.errors import MissingFile
from holdfast.core.live_state import NONE, SERIES_ROWS, SERIES_UNKNOWN, LiveState, SeriesPoint
from holdfast.watcher import live_writer
from holdfast.watcher.live_columns import MAX_WAITS, build_live_state, build_series_point
from holdfast.watcher.live_writer import LiveWriter, SeriesFile, StepRates
from tests.unit.serve.simulated_job import OVERHEATED, simulate, start_message

AT = 1_700_000_000.0


def read_state(folder):
    return msgspec.json.decode((folder / "live-0.json").read_bytes(), type=LiveState)


def test_the_columns_hold_each_rank_and_who_waits_for_whom():
    state = build_live_state(simulate(16, AT, step=7, stuck=2), {3: 1.5}, [OVERHEATED])
    ranks = state.ranks
    assert ranks.rank == list(range(16))
    assert ranks.step == [7] * 16
    assert ranks.rate[3] == 1.5
    assert ranks.rate[4] is None
    assert state.phases[ranks.phase[5]] == "evaluation"
    assert ranks.call[2] == NONE
    call = state.calls[ranks.call[3]]
    assert (call.group, call.sequence, call.operation) == ("default_pg", 22, "all_reduce")
    wait = state.waits[ranks.wait[3]]
    assert (wait.waiters, wait.awaited) == ("0-1,3-15", "2")
    assert ranks.gpu[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert [node.ranks for node in state.nodes] == [8, 8]
    assert state.groups[0].behind == 1
    assert state.findings[0].cause == "gpu-throttled"


def test_a_large_job_is_bounded():
    small, large = (
        build_live_state(simulate(n, AT, step=7, stuck=2), {}, [OVERHEATED] * 100)
        for n in (512, 2048)
    )
    assert len(large.waits) <= MAX_WAITS
    assert large.cut >= 68
    grown = len(msgspec.json.encode(large)) - len(msgspec.json.encode(small))
    assert grown / (2048 - 512) < 160  # bytes per rank
    assert len(build_series_point(large).waits) == SERIES_ROWS


def test_a_block_of_ranks_shows_its_slowest_rank():
    point = build_series_point(build_live_state(simulate(1024, AT, step=7, slow=99), {}, []))
    assert point.waits.index(min(point.waits)) == 99 * SERIES_ROWS // 1024
    assert set(point.rates) == {SERIES_UNKNOWN}


def test_step_rates_cover_the_last_seconds_and_start_again_after_a_restart():
    rates = StepRates()
    assert rates.update(0, simulate(4, AT, step=100)) == {}
    assert rates.update(0, simulate(4, AT + 4, step=110))[0] == 2.5
    assert rates.update(0, simulate(4, AT + 20, step=126))[0] == 1.0
    assert rates.update(1, simulate(4, AT + 21, step=1)) == {}


def test_the_thread_writes_state_and_series(tmp_path):
    writer = LiveWriter(1.0)
    base = LiveState(notice="suspected hang", stall_s=5.0)
    writer.update(
        start_message(tmp_path, generation=3), simulate(16, AT, step=7), (OVERHEATED,), base
    )
    writer.close()
    state = read_state(tmp_path)
    assert (state.generation, state.notice, state.stall_s) == (3, "suspected hang", 5.0)
    assert state.written_by == "node 0 node000:4711"
    (line,) = (tmp_path / "live-0.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=SeriesPoint).step == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live-0.json", "live-0.jsonl"]


def test_a_run_of_some_seconds_has_many_points_and_a_long_one_few(tmp_path, monkeypatch):
    writer, state, path = LiveWriter(1.0), LiveState(), tmp_path / "live-0.jsonl"
    written = []
    for second in range(400):
        monkeypatch.setattr(live_writer.time, "monotonic", lambda at=second: float(at))
        writer._append_point(path, state)
        written.append(path.read_bytes().count(b"\n"))
    assert written[20] == 21
    assert written[399] - written[199] == 40


def test_a_disk_that_hangs_delays_neither_the_watcher_nor_its_end(tmp_path, monkeypatch):
    released, entered = threading.Event(), threading.Event()

    def hang(*_arguments, **_options):
        entered.set()
        released.wait()
        raise MissingFile("live-0.json")

    monkeypatch.setattr(live_writer, "write_atomic", hang)
    monkeypatch.setattr(live_writer, "CLOSE_LIMIT_S", 0.01)
    writer = LiveWriter(1e-9)
    arguments = start_message(tmp_path), simulate(4, AT, step=1), (), LiveState()
    writer.update(*arguments)
    assert entered.wait(5)
    writer.update(*arguments)
    writer.close()
    released.set()


def test_a_state_that_takes_long_makes_the_next_one_later():
    assert LiveWriter(1.0)._next_period(0.001) == 1.0
    assert LiveWriter(1.0)._next_period(0.2) == pytest.approx(4.0)


def test_zero_disables_it(tmp_path):
    writer = LiveWriter(0.0)
    writer.update(start_message(tmp_path), simulate(4, AT, step=1), (), LiveState())
    writer.close()
    assert not list(tmp_path.iterdir())


def test_a_full_series_is_thinned_out(tmp_path):
    series = SeriesFile(tmp_path / "live-0.jsonl", max_bytes=20_000)
    point = SeriesPoint(at=0.0, waits=bytes(64))
    for second in range(2000):
        series.append(replace(point, at=float(second)))
    lines = series.path.read_bytes().splitlines()
    times = [msgspec.json.decode(line, type=SeriesPoint).at for line in lines]
    assert series.path.stat().st_size <= 20_000
    assert times[0] == 0.0
    assert times[-1] > 1900
    assert times == sorted(times)
