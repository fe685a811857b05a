"""The timeout history on real ranks and a real disk: exact, persistent, and never blocking."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import holdfast
from holdfast.core.collective_history import CollectiveHistory, parse_history
from holdfast.core.errors import CollectiveTimeout
from holdfast.training.collectives import timeout_history
from holdfast.training.collectives import timeouts as collectives_timeouts
from holdfast.training.collectives.algorithm_choice import ReduceChoices
from holdfast.training.collectives.groups import rank_hosts
from holdfast.training.collectives.groups.group_info import state_of
from tests.unit.training.collectives.ranks import run

STATE = SimpleNamespace(epoch=1, name="0", group=None)
LARGE = 1 << 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "history"
    monkeypatch.setenv("HOLDFAST_HISTORY", str(path))
    monkeypatch.delenv("HOLDFAST_TIMEOUTS", raising=False)
    monkeypatch.setattr(rank_hosts, "known_host_layout", lambda _: ((0, 1),))
    collectives_timeouts.reset()
    timeout_history.reset()
    yield path
    collectives_timeouts.reset()
    timeout_history.reset()


def record(number=1, seconds=600.0, outcome="timeout", limit_s=600.0, *, nbytes=LARGE):
    call = SimpleNamespace(
        signature="all_reduce of 9 float32",
        state=STATE,
        limit_s=limit_s,
        number=number,
        nbytes=nbytes,
    )
    collectives_timeouts.record_call(call, seconds, outcome)


def read_history(folder):
    (file,) = folder.glob("*.json")
    return parse_history(file.read_bytes(), str(file))


def time_out(rank: int, folder: str, restart: int) -> Any:
    os.environ.update(HOLDFAST_HISTORY=folder, TORCHELASTIC_RESTART_COUNT=str(restart))
    rank_hosts.host_layout(state_of(None), 20)
    holdfast.comm.all_reduce(torch.ones(1 << 16), chunk=None, timeout=20)
    with holdfast.phase("evaluation"):
        if rank == 2:
            time.sleep(3)
            return None
        with pytest.raises(CollectiveTimeout):
            holdfast.comm.all_reduce(torch.ones(1 << 16), chunk=None, timeout=1.5)
    return timeout_history.current_history().troubles[0].timeouts


def test_timeout_of_several_ranks_counts_once_and_survives_restarts(tmp_path):
    folder = tmp_path / "history"
    for restart in range(2):
        path = tmp_path / str(restart)
        path.mkdir()
        assert run(3, time_out, path, str(folder), restart)[:2] == [restart + 1] * 2
    history_of_both = read_history(folder)
    (problem,) = history_of_both.troubles
    assert (problem.timeouts, problem.absent, problem.runs, history_of_both.runs) == (2, 2, 2, 2)
    assert (problem.operation, problem.group, problem.phase) == ("all_reduce", "0", "evaluation")
    assert (problem.link, problem.size) == ("same host", 19)
    assert problem.site.startswith("test_timeout_history.py:")


def read_shared_history(rank: int, folder: str) -> Any:
    os.environ["HOLDFAST_HISTORY"] = folder if rank == 0 else folder + "-elsewhere"
    state = state_of(None)
    return (
        timeout_history.advised_evaluation_delay(state, 20),
        len(timeout_history.shared_history(state, 20).troubles),
        len(timeout_history.current_history().troubles),
    )


def test_first_ranks_history_is_shared(tmp_path, folder):
    for number in range(4):
        with holdfast.phase("evaluation"):
            record(number)
    assert run(2, read_shared_history, tmp_path, str(folder)) == [(2, 1, 1), (2, 1, 0)]


def follow_advice(rank: int, folder: str) -> Any:
    """Return chosen algorithms and skipped evaluations if only rank 0 has a history."""
    os.environ["HOLDFAST_HISTORY"] = folder if rank == 0 else folder + "-elsewhere"
    for _ in range(2):
        holdfast.comm.all_reduce(torch.ones(1 << 24))
    batches = [torch.ones(2, 1)]
    evaluation = holdfast.evaluate.Evaluation(
        None, batches, lambda _, batch: {"mean": batch.sum()}, budget=60
    )
    results = [evaluation.run(step) for step in range(4)]
    outcomes = [
        (result.skipped, result.failed, dict(result.metrics), result.for_sinks())
        for result in results
    ]
    return (
        [choice.name for choice in state_of(None).cache[ReduceChoices].values()],
        [each[:3] for each in outcomes],
        outcomes[1][3],
    )


def test_chunks_and_skipped_evaluations_follow_the_first_ranks_history(tmp_path, folder):
    for number in range(2):
        record(number, nbytes=1 << 26)
        with holdfast.phase("evaluation"):
            record(number, nbytes=1 << 26)
    first, second = run(2, follow_advice, tmp_path, str(folder))
    assert first == second
    algorithms, results, of_skipped = first
    assert "chunks of 8,388,608 because of earlier timeouts" in algorithms
    done, skipped = (False, False, {"mean": 1.0}), (True, True, {})
    assert results == [done, skipped, done, skipped]
    assert of_skipped == {"eval/skipped": 1.0}


def rank_0_is_missing(rank: int) -> Any:
    if rank == 0:
        time.sleep(1.5)
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        timeout_history.shared_history(state_of(None), 0.5)
    with pytest.raises(CollectiveTimeout):  # the first call, before the ranks' hosts are known
        holdfast.comm.all_reduce(torch.ones(3), timeout=0.5)
    return (
        caught.value.missing,
        str(caught.value),
        timeout_history.current_history().troubles[0].absent,
    )


def test_missing_first_rank_is_reported_and_the_first_call_is_recorded(tmp_path):
    missing, text, absent = run(2, rank_0_is_missing, tmp_path)[1]
    assert missing == (0,)
    assert (
        "exchange of the history of group '0' did not complete: rank 0 did not arrive within 500 ms"
        in text
    )
    assert absent == 1


def test_fast_calls_are_not_recorded(folder):
    record(outcome="well", seconds=9.9)
    record(outcome="well", seconds=1.1, limit_s=12.0)
    record(outcome="failed", seconds=500.0)
    assert not folder.exists()
    record(outcome="well", seconds=1.3, limit_s=12.0)
    assert read_history(folder).troubles[0].slow == 1


@pytest.mark.usefixtures("folder")
def test_nothing_is_written_without_a_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("HOLDFAST_HISTORY")
    record()
    assert list(tmp_path.iterdir()) == []
    assert len(timeout_history.current_history().troubles) == 1


def test_concurrent_events_are_all_recorded(folder):
    timeout_history.current_history()
    threads = [threading.Thread(target=record, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        read_history(folder).troubles[0].timeouts
        == timeout_history.current_history().troubles[0].timeouts
        == 20
    )


@pytest.mark.parametrize(
    "data", [b"", b"{}{}", b'{"schema": "x"}', b'{"troubles": [{}]}', b"\x80\x04."]
)
def test_invalid_file_is_logged_and_replaced(folder, caplog, data):
    folder.mkdir()
    (folder / f"{socket.gethostname()}.json").write_bytes(data)
    (folder / "other.json").write_bytes(data)
    assert timeout_history.current_history() == CollectiveHistory()
    assert caplog.text.count("delete the file, or leave it out") == 2
    record()
    assert (
        parse_history((folder / f"{socket.gethostname()}.json").read_bytes(), "x")
        .troubles[0]
        .timeouts
        == 1
    )


def test_pipe_or_folder_instead_of_the_file_does_not_block(folder, caplog):
    folder.mkdir()
    os.mkfifo(folder / f"{socket.gethostname()}.json")
    (folder / "other.json").mkdir()
    began = time.monotonic()
    assert timeout_history.current_history() == CollectiveHistory()
    assert time.monotonic() - began < timeout_history.DISK_LIMIT_S + 1
    assert "other.json" in caplog.text


def test_lock_that_is_never_released_does_not_block(folder):
    folder.mkdir()
    with (folder / f".{socket.gethostname()}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        record()
    assert read_history(folder).troubles[0].timeouts == 1


@pytest.mark.usefixtures("folder")
def test_folder_that_cannot_be_created_is_logged(caplog, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_HISTORY", str(tmp_path / "file" / "history"))
    record()
    assert "cannot save the history of collectives: " in caplog.text
    assert len(timeout_history.current_history().troubles) == 1


@pytest.mark.usefixtures("folder")
def test_hanging_disk_does_not_block(caplog, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(timeout_history, "DISK_LIMIT_S", 0.2)
    monkeypatch.setattr(timeout_history, "write_atomic", lambda *_: release.wait(20))
    began = time.monotonic()
    for number in range(50):
        record(number)
    took = time.monotonic() - began
    release.set()
    assert took < 5
    assert timeout_history.current_history().troubles[0].timeouts == 50
    assert caplog.text.count("the disk did not answer within 200 ms") == 1


def read_runs(rank: int, folder: str) -> Any:
    os.environ["HOLDFAST_HISTORY"] = folder
    dist.barrier()
    return rank, timeout_history.current_history().runs


def test_run_without_problems_is_counted(tmp_path, folder):
    record()
    assert read_history(folder).runs == 1
    assert run(2, read_runs, tmp_path, str(folder)) == [(0, 2), (1, 2)]
    assert read_history(folder).runs == 2
