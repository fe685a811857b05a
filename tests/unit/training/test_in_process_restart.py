"""Which errors count as a peer failure, and how a surviving rank waits for its restart order."""

import json
import threading
import time

import pytest
import torch.distributed as dist

from holdfast.core.errors import CheckpointFailed
from holdfast.launcher.elastic import worker_replacement
from holdfast.training import in_process_restart


@pytest.mark.parametrize(
    ("error", "is_peer_failure"),
    [
        (
            RuntimeError(
                "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3921"
            ),
            True,
        ),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (CheckpointFailed("saving step 3", why=in_process_restart.PEER_DIED), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
        (KeyError("NCCL"), False),
    ],
)
def test_errors_caused_by_a_peer_failure(error, is_peer_failure):
    assert in_process_restart._is_peer_failure(error) is is_peer_failure
    raised_from, raised_beside, hidden = TypeError(), TypeError(), TypeError()
    raised_from.__cause__ = raised_beside.__context__ = hidden.__context__ = error
    hidden.__suppress_context__ = True  # raise … from None
    assert [
        in_process_restart._is_peer_failure(each) for each in (raised_from, raised_beside, hidden)
    ] == [
        is_peer_failure,
        is_peer_failure,
        False,
    ]


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TRACE", str(tmp_path / "rank0.trace"))
    return tmp_path / "rank0.trace"


def train_until_peer_error(trace, answer):
    """Run ``train`` in :func:`in_place` with this agent answer; per call, whether the in-place mark existed."""
    calls = []

    def train():
        calls.append((trace.parent / "rank0.trace.in-place").exists())
        raise RuntimeError("Connection closed by peer")

    def agent():
        while not (trace.parent / "rank0.trace.waits").exists():
            time.sleep(0.001)
        (trace.parent / "new").write_text(json.dumps(answer))
        (trace.parent / "new").rename(trace.parent / "rank0.trace.again")

    thread = threading.Thread(target=agent)
    thread.start()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        in_process_restart.in_place(train)
    thread.join()
    return calls


def test_if_no_rank_died_the_error_is_raised_and_no_files_remain(trace):
    assert train_until_peer_error(trace, {}) == [True]
    assert list(trace.parent.iterdir()) == []


def test_an_unrelated_error_is_raised_immediately(trace):
    def train():
        raise ValueError("unrelated")

    with pytest.raises(ValueError, match="unrelated"):
        in_process_restart.in_place(train)
    assert list(trace.parent.iterdir()) == []


def test_waiting_ranks_are_released_if_none_died_and_unresponsive_ones_are_reported_once(
    trace, monkeypatch
):
    monkeypatch.setattr(worker_replacement, "NO_DEATH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(worker_replacement, "ACCEPT_TIMEOUT_S", 0.05)
    environments = {
        0: {"HOLDFAST_TRACE": str(trace)},
        1: {"HOLDFAST_TRACE": str(trace.with_name("rank1.trace"))},
    }
    survivors = worker_replacement.SurvivingRanks()
    survivors.release_waiting(environments)
    assert survivors.take_unresponsive() == []
    trace.with_name("rank0.trace.waits").touch()
    survivors.release_waiting(environments)
    assert not trace.with_name("rank0.trace.again").exists()
    time.sleep(0.1)
    survivors.release_waiting(environments)
    assert json.loads(trace.with_name("rank0.trace.again").read_text()) == {}
    assert in_process_restart.has_restart_order()

    survivors.notify(environments, {0, 1})
    trace.with_name("rank1.trace.again").unlink()  # it accepted the restart
    time.sleep(0.1)
    assert survivors.take_unresponsive() == [0]
    assert survivors.take_unresponsive() == []
    assert not in_process_restart.has_restart_order()
