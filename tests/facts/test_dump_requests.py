"""A dump is asked for through the pipe of a real process, and picked up; then a node makes certainty of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import blackbox
from holdfast.blackbox import BoxWriter
from holdfast.facts import dump_requests
from holdfast.facts.dump_requests import DumpPlace, DumpRequests
from holdfast.facts.flight_recorder import Dump
from holdfast.facts.node import Node, Summary, Worker
from holdfast.facts.ranks import RankState
from holdfast.rules import hang
from holdfast.runtime.recorder.pens import Call, PythonPen
from tests.facts.dumps import until, written

LISTENER = Path(__file__).with_name("listener.py")
ALL_REDUCE = blackbox.OPERATIONS.index("all_reduce")
CALL = Call(elements=12, dtype=blackbox.DTYPES.index("float32"), shape=(3, 4), tensors=1, reduction=0)

Child = subprocess.Popen[str]
Start = Callable[..., Child]


@pytest.fixture
def place(tmp_path: Path) -> DumpPlace:
    """Where rank 1 is asked and answers."""
    return DumpPlace(f"{tmp_path}/generation0-rank1-ask", f"{tmp_path}/generation0-rank1-dump")


@pytest.fixture
def start(tmp_path: Path, place: DumpPlace) -> Iterator[Start]:
    """Starts a listener that answers with these dumps, one after the other."""
    with contextlib.ExitStack() as stack:

        def begin(*answers: bytes | str, at: DumpPlace = place, rank: int = 1) -> Child:
            given = []
            for number, answer in enumerate(answers):
                file = tmp_path / f"answer{time.monotonic_ns()}-{number}"
                if isinstance(answer, bytes):
                    file.write_bytes(answer)
                given.append(answer if isinstance(answer, str) else str(file))
            command = [sys.executable, str(LISTENER), at.pipe, at.dump, str(rank), *given]
            child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(child.kill)
            heard(child, "ready")
            return child

        yield begin


def heard(child: Child, word: str) -> None:
    """Wait until the listener says the word."""
    assert child.stdout is not None
    assert child.stdout.readline() == f"{word}\n"


def let_finish(child: Child) -> None:
    """Have the listener write the second half of the dump that it began."""
    assert child.stdin is not None
    child.stdin.write("on\n")
    child.stdin.flush()
    heard(child, "dumped")


def answered(dump: Dump | None) -> tuple[int, int]:
    """How many calls a dump holds, and how many of them are over."""
    assert dump is not None
    return len(dump.entries), sum(each.finished for each in dump.entries)


def test_a_request_is_answered_by_a_dump(start: Start, place: DumpPlace) -> None:
    child = start(written(until(31, 30)))
    requests = DumpRequests(child.pid, place)
    requests.read()
    assert requests.dump is None
    requests.ask()
    heard(child, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 30)
    assert requests.trouble == ""


def test_a_dump_that_lay_there_before_is_not_the_answer(start: Start, place: DumpPlace) -> None:
    """One of an earlier generation, or that torch wrote by itself: at the same place, and whole."""
    Path(f"{place.dump}1").write_bytes(written(until(5, 5)))
    child = start("mute")
    requests = DumpRequests(child.pid, place)
    requests.ask()
    requests.read()
    assert requests.dump is None
    late = start(written(until(6, 6)))
    requests = DumpRequests(late.pid, place)
    requests.ask()
    heard(late, "dumped")
    requests.read()
    assert answered(requests.dump) == (6, 6)


def test_a_dump_that_is_still_being_written_is_waited_for(start: Start, place: DumpPlace) -> None:
    child = start("slowly", written(until(31, 30)))
    requests = DumpRequests(child.pid, place)
    requests.ask()
    heard(child, "half")
    requests.read()
    assert (requests.dump, requests.trouble) == (None, "")
    let_finish(child)
    requests.read()
    assert answered(requests.dump) == (31, 30)


def test_the_next_request_brings_a_newer_dump(start: Start, place: DumpPlace, clock: list[float]) -> None:
    child = start(written(until(31, 30)), written(until(31, 31)))
    requests = DumpRequests(child.pid, place)
    requests.ask()
    heard(child, "dumped")
    requests.read()
    requests.ask()  # too soon
    clock[0] += dump_requests.FIRST_PAUSE_S
    assert answered(requests.dump) == (31, 30)
    requests.ask()
    heard(child, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 31)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that requests are measured by, in s."""
    now = [1000.0]
    monkeypatch.setattr(dump_requests.time, "monotonic", lambda: now[0])
    return now


def test_a_rank_that_does_not_answer_is_not_waited_for(start: Start, place: DumpPlace, clock: list[float]) -> None:
    requests = DumpRequests(start("mute").pid, place)
    requests.ask()
    clock[0] += dump_requests.ANSWER_LIMIT_S
    requests.read()
    assert requests.trouble == ""
    clock[0] += 0.1
    requests.read()
    assert requests.trouble == "its flight recorder gave no dump within 6 s"


def test_an_answer_that_is_no_dump_is_said_in_one_sentence(start: Start, place: DumpPlace) -> None:
    child = start(b"cos\nsystem\n(S'true'\ntR.")
    requests = DumpRequests(child.pid, place)
    requests.ask()
    heard(child, "dumped")
    requests.read()
    assert requests.dump is None
    assert requests.trouble.startswith(f"cannot read the flight recorder's dump {place.dump}1: it is not a dump")


@pytest.mark.slow
def test_a_pipe_of_another_process_is_not_written_to(start: Start, place: DumpPlace) -> None:
    """Where several processes share the beginning of the name, or one is gone and left its pipe."""
    other, mine = start(written(until(5, 5)), rank=0), start(written(until(31, 30)), rank=1)
    requests = DumpRequests(mine.pid, place)
    requests.ask()
    heard(mine, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 30)
    assert not Path(f"{place.dump}0").exists()
    assert other.poll() is None
    stranger = DumpRequests(os.getpid(), place)
    stranger.ask()
    assert stranger.trouble == "its torch does not listen for requests of the flight recorder"


def test_a_full_pipe_and_a_plain_file_block_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "ask3.pipe"
    os.mkfifo(pipe)
    assert not dump_requests._write(pipe)  # nobody reads
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert dump_requests._write(pipe)
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.close(writer)
        assert not dump_requests._write(pipe)
    finally:
        os.close(reader)


# ---- the node


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The box of rank 1, which entered 31 collectives of the default group, on a backend that does not tell more."""
    made = BoxWriter(tmp_path / "rank1.box", rank=1, world_size=2, local_rank=1, generation=0, records=64)
    pen = PythonPen(made, "/nowhere/torch")
    for _ in range(31):
        pen.cannot_tell(pen.record("0", ALL_REDUCE, CALL))
    made.note_json(blackbox.Note.MEMBERS, {"name": "0", "ranks": [0, 1], "description": "default_pg"})
    return made.path


def pending(state: RankState) -> list[tuple[int, bool]]:
    """Numbers of the calls that may be in flight, with whether that is certain."""
    return [(call.sequence, call.certain) for call in state.pending]


def looked(child: Child, box: Path, place: DumpPlace | None) -> tuple[Node, Summary, Summary]:
    """A node after two close looks; the first one's request is answered between them."""
    node = Node([Worker(1, child.pid, box, place)], 2)
    first = node.look_closer()
    heard(child, "half")
    let_finish(child)
    return node, first, node.look_closer()


def test_the_second_look_knows_what_the_rank_waits_in(start: Start, box: Path, place: DumpPlace) -> None:
    _, first, second = looked(start("slowly", written(until(31, 29))), box, place)
    assert [certain for _, certain in pending(first.ranks[0])] == [False] * 31
    assert first.ranks[0].unseen == ()
    assert pending(second.ranks[0]) == [(30, True), (31, False)]
    assert second.ranks[0].pending[0].dtype == "float32"


def test_a_dump_of_another_moment_settles_nothing(start: Start, box: Path, place: DumpPlace) -> None:
    _, _, second = looked(start("slowly", written(until(28, 28))), box, place)
    assert len(pending(second.ranks[0])) == 31
    assert not any(certain for _, certain in pending(second.ranks[0]))
    assert "counts 28 collectives of group '0', and its box 31" in second.ranks[0].unseen[0]


def test_a_rank_that_cannot_be_asked_is_unseen(start: Start, box: Path) -> None:
    child = start("mute")
    node = Node([Worker(1, child.pid, box)], 2)
    assert node.look_closer().ranks[0].unseen == ()
    assert node.look_closer().ranks[0].unseen == ("completion on NCCL: its torch is not asked for dumps",)


def test_what_the_device_completes_is_progress(start: Start, box: Path, place: DumpPlace) -> None:
    """Hosts that ran ahead are silent while the device works through what they enqueued: that is no hang."""
    now = time.time() + 1.0
    dump = until(31, 30)
    dump["entries"][29]["time_discovered_completed_ns"] = int(now * 1e9)
    node, first, _ = looked(start("slowly", written(dump)), box, place)
    assert first.silent_since < now - 0.5
    time.sleep(max(now - time.time() + 0.01, 0))
    assert node.look().silent_since == pytest.approx(now, abs=1e-3)


@pytest.mark.slow
def test_all_ranks_in_one_nccl_call_get_a_verdict(start: Start, box: Path, place: DumpPlace, tmp_path: Path) -> None:
    """Without a dump, equal counters say nothing; with one, the transport is named, and no rank is."""
    other = BoxWriter(tmp_path / "rank0.box", rank=0, world_size=2, local_rank=0, generation=0, records=64)
    pen = PythonPen(other, "/nowhere/torch")
    for _ in range(33):
        pen.cannot_tell(pen.record("0", ALL_REDUCE, CALL))  # its host ran ahead
    ahead = DumpPlace(f"{tmp_path}/generation0-rank0-ask", f"{tmp_path}/generation0-rank0-dump")
    mine = start("slowly", written(until(31, 30)))
    theirs = start("slowly", written(until(33, 30)), at=ahead, rank=0)
    node = Node([Worker(0, theirs.pid, other.path, ahead), Worker(1, mine.pid, box, place)], 2)
    first = node.look_closer()
    for child in (mine, theirs):
        heard(child, "half")
        let_finish(child)
    second = node.look_closer()
    verdicts = [hang.judge(look.ranks, look.groups, world_size=2).root for look in (first, second)]
    assert verdicts[1] is not None
    assert verdicts[1].cause == "network-fabric-fault"
    assert "all_reduce #31" in verdicts[1].message
    assert verdicts[1].subject.rank is None
    assert verdicts[0] is None or verdicts[0].cause != "network-fabric-fault"
