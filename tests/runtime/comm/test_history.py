"""The history of collectives on real ranks and a real disk: counted once, kept over restarts, harmless."""

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
from holdfast.errors import CollectiveTimeout
from holdfast.history import History, parse
from holdfast.runtime.comm import choice, history, hosts, limits
from holdfast.runtime.comm.groups import state_of
from tests.runtime.comm.ranks import run

STATE = SimpleNamespace(epoch=1, name="0", group=None)
LARGE = 1 << 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "history"
    monkeypatch.setenv("HOLDFAST_HISTORY", str(place))
    monkeypatch.delenv("HOLDFAST_TIMEOUTS", raising=False)
    monkeypatch.setattr(hosts, "known_layout", lambda _: ((0, 1),))
    limits.forget()
    history.forget()
    yield place
    limits.forget()
    history.forget()


def noted(number=1, seconds=600.0, outcome="timeout", limit_s=600.0, *, absent=False, nbytes=LARGE):
    call = SimpleNamespace(words="all_reduce of 9 float32", state=STATE, limit_s=limit_s, number=number)
    limits.note(call, seconds, nbytes, outcome, absent=absent)


def kept(folder):
    (file,) = folder.glob("*.json")
    return parse(file.read_bytes(), str(file))


def times_out(rank: int, folder: str, restart: int) -> Any:
    os.environ.update(HOLDFAST_HISTORY=folder, TORCHELASTIC_RESTART_COUNT=str(restart))
    hosts.layout_of(state_of(None), 20)
    holdfast.comm.all_reduce(torch.ones(1 << 16), chunk=None, timeout=20)
    with holdfast.phase("evaluation"):
        if rank == 2:
            time.sleep(3)
            return None
        with pytest.raises(CollectiveTimeout):
            holdfast.comm.all_reduce(torch.ones(1 << 16), chunk=None, timeout=1.5)
    return history.known().troubles[0].timeouts


def test_ranks_count_one_time_out_once_and_it_is_kept_over_a_restart(tmp_path):
    folder = tmp_path / "history"
    for restart in range(2):
        place = tmp_path / str(restart)
        place.mkdir()
        assert run(3, times_out, place, str(folder), restart)[:2] == [restart + 1] * 2
    history_of_both = kept(folder)
    (trouble,) = history_of_both.troubles
    assert (trouble.timeouts, trouble.absent, trouble.runs, history_of_both.runs) == (2, 2, 2, 2)
    assert (trouble.operation, trouble.group, trouble.phase) == ("all_reduce", "0", "evaluation")
    assert (trouble.link, trouble.size) == ("same host", 19)
    assert trouble.site.startswith("test_history.py:")


def all_learn(rank: int, folder: str) -> Any:
    os.environ["HOLDFAST_HISTORY"] = folder if rank == 0 else folder + "-elsewhere"
    state = state_of(None)
    return history.evaluation_delay(state, 20), len(history.shared(state, 20).troubles), len(history.known().troubles)


def test_what_must_be_the_same_everywhere_is_that_of_the_first_rank(tmp_path, folder):
    for number in range(4):
        with holdfast.phase("evaluation"):
            noted(number)
    assert run(2, all_learn, tmp_path, str(folder)) == [(2, 1, 1), (2, 1, 0)]


def heed(rank: int, folder: str) -> Any:
    """Which way the calls were made, and which evaluations were left out, where rank 0 alone has a history."""
    os.environ["HOLDFAST_HISTORY"] = folder if rank == 0 else folder + "-elsewhere"
    for _ in range(2):
        holdfast.comm.all_reduce(torch.ones(1 << 24))
    batches = [torch.ones(2, 1)]
    evaluation = holdfast.evaluate.Evaluation(None, batches, lambda _, batch: {"mean": batch.sum()}, budget=60)
    results = [evaluation.run(step) for step in range(4)]
    told = [(result.skipped, result.failed, dict(result.metrics), result.for_sinks()) for result in results]
    return list(choice.chosen(state_of(None)).values()), [each[:3] for each in told], told[1][3]


def test_pieces_and_evaluations_heed_the_first_ranks_history(tmp_path, folder):
    for number in range(2):
        noted(number, nbytes=1 << 26)
        with holdfast.phase("evaluation"):
            noted(number, nbytes=1 << 26)
    first, second = run(2, heed, tmp_path, str(folder))
    assert first == second
    ways, results, of_skipped = first
    assert "pieces of 8,388,608, which earlier time-outs speak for" in ways
    done, left_out = (False, False, {"mean": 1.0}), (True, True, {})
    assert results == [done, left_out, done, left_out]
    assert of_skipped == {"eval/skipped": 1.0}


def first_does_not_ask(rank: int) -> Any:
    if rank == 0:
        time.sleep(1.5)
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        history.shared(state_of(None), 0.5)
    with pytest.raises(CollectiveTimeout):  # the first call of a group, before anything is known of its ranks
        holdfast.comm.all_reduce(torch.ones(3), timeout=0.5)
    return caught.value.missing, str(caught.value), history.known().troubles[0].absent


def test_a_first_rank_that_does_not_ask_is_named_and_the_first_call_counts_too(tmp_path):
    missing, text, absent = run(2, first_does_not_ask, tmp_path)[1]
    assert missing == (0,)
    assert "the history of group '0' did not complete: rank 0 did not come within 500 ms" in text
    assert absent == 1


def test_what_is_soon_over_is_not_kept(folder):
    noted(outcome="well", seconds=9.9)
    noted(outcome="well", seconds=1.1, limit_s=12.0)
    noted(outcome="failed", seconds=500.0)
    assert not folder.exists()
    noted(outcome="well", seconds=1.3, limit_s=12.0)
    assert kept(folder).troubles[0].slow == 1


@pytest.mark.usefixtures("folder")
def test_nothing_is_kept_where_no_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("HOLDFAST_HISTORY")
    noted()
    assert list(tmp_path.iterdir()) == []
    assert len(history.known().troubles) == 1


def test_threads_lose_no_event(folder):
    history.known()
    threads = [threading.Thread(target=noted, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(folder).troubles[0].timeouts == history.known().troubles[0].timeouts == 20


@pytest.mark.parametrize("data", [b"", b"{}{}", b'{"schema": "x"}', b'{"troubles": [{}]}', b"\x80\x04."])
def test_a_strange_file_costs_a_sentence_and_is_replaced(folder, caplog, data):
    folder.mkdir()
    (folder / f"{socket.gethostname()}.json").write_bytes(data)
    (folder / "other.json").write_bytes(data)
    assert history.known() == History()
    assert caplog.text.count("delete the file, or leave it out") == 2
    noted()
    assert parse((folder / f"{socket.gethostname()}.json").read_bytes(), "x").troubles[0].timeouts == 1


def test_a_pipe_or_a_folder_in_the_files_place_is_not_waited_for(folder, caplog):
    folder.mkdir()
    os.mkfifo(folder / f"{socket.gethostname()}.json")
    (folder / "other.json").mkdir()
    begun = time.monotonic()
    assert history.known() == History()
    assert time.monotonic() - begun < history.DISK_LIMIT_S + 1
    assert "other.json" in caplog.text


def test_a_lock_that_nobody_gives_back_is_not_waited_for_long(folder):
    folder.mkdir()
    with (folder / f".{socket.gethostname()}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        noted()
    assert kept(folder).troubles[0].timeouts == 1


@pytest.mark.usefixtures("folder")
def test_a_folder_that_cannot_be_made_costs_a_sentence(caplog, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_HISTORY", str(tmp_path / "file" / "history"))
    noted()
    assert "the history of collectives is not kept: " in caplog.text
    assert len(history.known().troubles) == 1


@pytest.mark.usefixtures("folder")
def test_a_disk_that_hangs_is_not_waited_for(caplog, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(history, "DISK_LIMIT_S", 0.2)
    monkeypatch.setattr(history, "write_whole", lambda *_: release.wait(20))
    begun = time.monotonic()
    for number in range(50):
        noted(number)
    took = time.monotonic() - begun
    release.set()
    assert took < 5
    assert history.known().troubles[0].timeouts == 50
    assert caplog.text.count("its disk did not answer within 200 ms") == 1


def reads(rank: int, folder: str) -> Any:
    os.environ["HOLDFAST_HISTORY"] = folder
    dist.barrier()
    return rank, history.known().runs


def test_a_run_that_is_well_counts_too(tmp_path, folder):
    noted()
    assert kept(folder).runs == 1
    assert run(2, reads, tmp_path, str(folder)) == [(0, 2), (1, 2)]
    assert kept(folder).runs == 2
