"""Messages between agent and watcher: every kind survives a round trip; other messages are rejected."""

from __future__ import annotations

import pytest

from holdfast.core.failures import JobState
from holdfast.core.findings import Verdict
from holdfast.core.rank_table import StepProblem
from holdfast.watcher.agent_messages import (
    DumpLocation,
    HangSuspected,
    JudgeNow,
    LeaderContact,
    NodeSummary,
    PeerSummaries,
    ProgressNote,
    RankWarning,
    StackAnswer,
    StackQuestion,
    StartWatching,
    StopWatching,
    SuspicionWithdrawn,
    UndecodableMessage,
    VerdictReport,
    WatchedWorker,
    WorkerExits,
    decode_reply,
    decode_request,
    encode_message,
)

START = StartWatching(
    generation=2,
    run_dir="/runs/1",
    node=0,
    nodes=2,
    leader=True,
    world_size=4,
    workers=(
        WatchedWorker(0, 100, "/dev/shm/x/rank0.trace", DumpLocation("/a", "/b")),
        WatchedWorker(1, 101, "/dev/shm/x/rank1.trace"),
    ),
)
REQUESTS = (
    START,
    WorkerExits(codes={0: -9, 1: 3}),
    PeerSummaries(summaries={1: "text"}),
    LeaderContact(silent_s=9.5),
    StopWatching(),
    JudgeNow(),
    StackQuestion(rank=3, nonce="n"),
    StackAnswer(nonce="n", frames=("a.py:1 in f",), why=""),
)
REPORT = VerdictReport(
    generation=2,
    hang=True,
    verdict=Verdict(question="Why did the job hang?"),
    stuck=(1,),
    detected_s=6.5,
    job=JobState(
        step=9,
        hosts={0: "a"},
        nodes={0: 0},
        trouble=StepProblem(what="nan", step=9, first=9, last=9),
    ),
)
REPLIES = (
    ProgressNote(text="a"),
    HangSuspected(text="b", verdict=Verdict(question="q")),
    SuspicionWithdrawn(text="c"),
    RankWarning(rank=1, about="loss", text="d"),
    NodeSummary(summary="e"),
    REPORT,
    *REQUESTS[-2:],
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda message: type(message).__name__)
def test_requests_survive_a_round_trip(request_) -> None:
    line = encode_message(request_)
    assert line.endswith(b"}\n")
    assert decode_request(line) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda message: type(message).__name__)
def test_replies_survive_a_round_trip(reply) -> None:
    assert decode_reply(encode_message(reply)) == reply


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON\n",
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"kind": "note", "text": "a reply"}\n',
        b'{"kind": "exits"}\n',
        b'{"kind": "exits", "codes": {"0": "nine"}}\n',
        b"[" * 100_000,
    ],
)
def test_other_lines_are_refused(line) -> None:
    with pytest.raises(UndecodableMessage, match="ignored a message"):
        decode_request(line)


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    assert decode_request(b'{"kind": "judge", "urgency": 3}') == JudgeNow()
