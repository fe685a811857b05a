"""What a survivor takes for another rank's death, and how it waits for a word; what the agent answers."""

import json
import threading
import time

import pytest
import torch.distributed as dist

from holdfast.errors import CheckpointFailed
from holdfast.runtime import replacing, surviving


@pytest.mark.parametrize(
    ("error", "of_a_peer"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3921"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (CheckpointFailed("saving step 3", why=surviving.PEER_DIED), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
        (KeyError("NCCL"), False),
    ],
)
def test_what_may_come_from_another_ranks_death(error, of_a_peer):
    assert surviving._is_of_a_peer(error) is of_a_peer
    raised_from, raised_beside, hidden = TypeError(), TypeError(), TypeError()
    raised_from.__cause__ = raised_beside.__context__ = hidden.__context__ = error
    hidden.__suppress_context__ = True  # raise … from None
    assert [surviving._is_of_a_peer(each) for each in (raised_from, raised_beside, hidden)] == [
        of_a_peer, of_a_peer, False,
    ]  # fmt: skip


@pytest.fixture
def box(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_BOX", str(tmp_path / "rank0.box"))
    return tmp_path / "rank0.box"


def answered(box, answer):
    """What :func:`in_place` does with an error of a peer's, and the calls that it made, where the agent answers so."""
    calls = []

    def train():
        calls.append((box.parent / "rank0.box.in-place").exists())
        raise RuntimeError("Connection closed by peer")

    def agent():
        while not (box.parent / "rank0.box.waits").exists():
            time.sleep(0.001)
        (box.parent / "new").write_text(json.dumps(answer))
        (box.parent / "new").rename(box.parent / "rank0.box.again")

    thread = threading.Thread(target=agent)
    thread.start()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        surviving.in_place(train)
    thread.join()
    return calls


def test_where_nobody_died_the_error_is_raised_and_nothing_is_left(box):
    assert answered(box, {}) == [True]
    assert list(box.parent.iterdir()) == []


def test_an_error_of_ones_own_is_raised_at_once(box):
    def train():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        surviving.in_place(train)
    assert list(box.parent.iterdir()) == []


def test_who_waits_is_sent_back_where_nobody_died_and_who_is_silent_is_named_once(box, monkeypatch):
    monkeypatch.setattr(replacing, "NOBODY_DIED_S", 0.05)
    monkeypatch.setattr(replacing, "ANSWER_LIMIT_S", 0.05)
    environments = {0: {"HOLDFAST_BOX": str(box)}, 1: {"HOLDFAST_BOX": str(box.with_name("rank1.box"))}}
    survivors = replacing.Survivors()
    survivors.send_back(environments)
    assert survivors.silent() == []
    box.with_name("rank0.box.waits").touch()
    survivors.send_back(environments)
    assert not box.with_name("rank0.box.again").exists()
    time.sleep(0.1)
    survivors.send_back(environments)
    assert json.loads(box.with_name("rank0.box.again").read_text()) == {}
    assert surviving.is_told()

    survivors.tell(environments, {0, 1})
    box.with_name("rank1.box.again").unlink()  # it took its word
    time.sleep(0.1)
    assert survivors.silent() == [0]
    assert survivors.silent() == []
    assert not surviving.is_told()
