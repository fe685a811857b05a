"""Verdicts over GPU memory snapshots, which memory_snapshot_factory.py generates."""

from __future__ import annotations

import re

import pytest

from holdfast.core.findings import Level
from holdfast.diagnose.memory_snapshot_rules import judge
from holdfast.diagnose.memory_snapshots import parse_snapshot
from holdfast.diagnose.pipeline import diagnose
from tests.unit.diagnose import memory_snapshot_factory as factory
from tests.unit.diagnose.memory_snapshot_factory import GIB, MIB


def verdict(*data):
    return judge([parse_snapshot(each, f"rank_{at}.pickle") for at, each in enumerate(data)])


@pytest.mark.parametrize(
    ("data", "cause", "message", "first"),
    [
        (
            factory.full(),
            "gpu-oom-all-ranks",
            "70.0 GiB of 79.0 GiB in tensors are activations",
            "flash attention",
        ),
        (
            factory.fragmented(),
            "gpu-memory-fragmented",
            "24.0 GiB idle, the largest block 1.0 GiB",
            "segments grow",
        ),
        (
            factory.growing(8),
            "tensors-kept-over-steps",
            "8.0 GiB of earlier steps still held",
            "not tensors",
        ),
        (factory.growing(2), "gpu-oom-all-ranks", "are activations", "flash attention"),
        (
            factory.handled(),
            "gpu-oom-all-ranks",
            "6.0 GiB of 7.0 GiB in tensors are activations",
            "flash attention",
        ),
    ],
)
def test_cause_numbers_and_first_remedy(data, cause, message, first):
    root = verdict(data).root
    assert root.cause == cause
    assert message in root.message
    assert re.search(r"GiB requested at /home/me/model\.py:\d+ \(activations\)", root.message)
    assert first in root.remedies[0].text
    assert (root.level, root.subject.rank, root.subject.file) == (
        Level.ERROR,
        0,
        "/home/me/model.py",
    )


def test_remedies_state_savings_for_significant_purposes_only():
    texts = [remedy.text for remedy in verdict(factory.full()).root.remedies]
    assert any("Halve the micro-batch" in text and "saves up to 35.0 GiB" in text for text in texts)
    assert any("8-bit states" in text and "saves up to 4.5 GiB" in text for text in texts)
    assert not any("meta device" in text for text in texts)  # the model is 3 of 79 GiB


def test_insufficient_idle_memory_is_not_fragmentation():
    full = factory.segment(
        (70 * GIB, factory.LINEAR), (GIB, None), (5 * GIB, factory.LINEAR), (GIB, None)
    )
    found = verdict(
        factory.snapshot(full, trace=(factory.out_of_memory(4 * GIB, MIB, factory.LINEAR),))
    )
    assert found.root.cause == "gpu-oom-all-ranks"
    assert [out.cause for out in found.ruled_out] == ["gpu-memory-fragmented"]
    whole = factory.segment((6 * GIB, None), address=1 << 45)  # freed before the request failed
    again = factory.snapshot(
        factory.segment((70 * GIB, factory.LINEAR)),
        whole,
        trace=(factory.out_of_memory(4 * GIB, 0, []),),
    )
    assert verdict(again).root.cause == "gpu-oom-all-ranks"


def test_rank_with_more_memory_than_others_is_root():
    usual = factory.snapshot(factory.segment((40 * GIB, factory.LINEAR)))
    root = verdict(factory.full(), usual, usual).root
    assert (root.cause, root.subject.rank) == ("oom-on-one-rank-then-timeout", 0)
    assert "39.0 GiB more reserved than on the other ranks" in root.message


def test_snapshot_without_failed_request_is_a_note():
    usual = factory.snapshot(factory.segment((40 * GIB, factory.LINEAR), (8 * GIB, None)))
    root = verdict(usual).root
    assert (root.level, root.cause) == (Level.NOTE, "gpu-oom-all-ranks")
    assert "of 48.0 GiB reserved 40.0 GiB are held" in root.message


def test_memory_without_frames_is_unseen():
    found = verdict(
        factory.snapshot(
            factory.segment((40 * GIB, [])), trace=(factory.out_of_memory(GIB, 0, []),)
        )
    )
    assert "the purpose of 40.0 GiB of 40.0 GiB in tensors, which have no frames" in found.unseen[0]
    assert "_record_memory_history" in found.root.remedies[-1].text
    assert verdict(factory.snapshot()).root is None


def test_diagnose_combines_snapshot_and_log(tmp_path):
    (tmp_path / "oom_rank_3.pickle").write_bytes(factory.fragmented())
    (tmp_path / "train.log").write_text(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    found = diagnose([str(tmp_path)])
    assert found.exit_status == 1
    assert (found.verdict.root.cause, found.verdict.root.subject.rank) == (
        "gpu-memory-fragmented",
        3,
    )
    (tmp_path / "oom_rank_3.pickle").write_bytes(factory.fragmented()[:200])
    found = diagnose([str(tmp_path)])
    assert found.verdict.root.cause == "gpu-oom-all-ranks"
    assert "it ends in the middle" in found.verdict.unseen[-1]
