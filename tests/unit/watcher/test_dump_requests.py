"""Dumps are requested through the pipe of a real process and read by the node sensor."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core import trace_file
from holdfast.core.rank_table import RankState
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder.backends import CallDetails, PythonRecorder
from holdfast.watcher.agent_messages import DumpLocation
from holdfast.watcher.flight_recorder import dump_requests
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump
from holdfast.watcher.flight_recorder.dump_requests import DumpRequests
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.node import NodeSensor, WorkerProcess
from holdfast.watcher.rules import hang
from tests.unit.diagnose.dump_factory import until, written

LISTENER = Path(__file__).with_name("dump_listener.py")
ALL_REDUCE = trace_file.OPERATIONS.index("all_reduce")
CALL = CallDetails(
    elements=12, dtype=trace_file.DTYPES.index("float32"), shape=(3, 4), tensors=1, reduction=0
)

Child = subprocess.Popen[str]
Start = Callable[..., Child]


@pytest.fixture
def place(tmp_path: Path) -> DumpLocation:
    """Return the locations of pipe and dump of rank 1."""
    return DumpLocation(f"{tmp_path}/generation0-rank1-ask", f"{tmp_path}/generation0-rank1-dump")


@pytest.fixture
def start(tmp_path: Path, place: DumpLocation) -> Iterator[Start]:
    """Start a listener that writes these dumps, one per request."""
    with contextlib.ExitStack() as stack:

        def start_listener(*answers: bytes | str, at: DumpLocation = place, rank: int = 1) -> Child:
            files = []
            for number, answer in enumerate(answers):
                file = tmp_path / f"answer{time.monotonic_ns()}-{number}"
                if isinstance(answer, bytes):
                    file.write_bytes(answer)
                files.append(answer if isinstance(answer, str) else str(file))
            command = [sys.executable, str(LISTENER), at.pipe, at.dump, str(rank), *files]
            child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(child.kill)
            wait_for_word(child, "ready")
            return child

        yield start_listener


def wait_for_word(child: Child, word: str) -> None:
    """Wait until the listener prints the word."""
    assert child.stdout is not None
    assert child.stdout.readline() == f"{word}\n"


def let_finish(child: Child) -> None:
    """Make the listener write the second half of its dump."""
    assert child.stdin is not None
    child.stdin.write("on\n")
    child.stdin.flush()
    wait_for_word(child, "dumped")


def answered(dump: FlightRecorderDump | None) -> tuple[int, int]:
    """Return the number of calls in a dump, and of completed ones."""
    assert dump is not None
    return len(dump.entries), sum(each.finished for each in dump.entries)


def test_a_request_is_answered_by_a_dump(start: Start, place: DumpLocation) -> None:
    child = start(written(until(31, 30)))
    requests = DumpRequests(child.pid, place)
    requests.read()
    assert requests.dump is None
    requests.request()
    wait_for_word(child, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 30)
    assert requests.error == ""


def test_an_old_dump_does_not_answer_a_request(start: Start, place: DumpLocation) -> None:
    """The old dump is complete: from an earlier generation, or one that torch wrote without a request."""
    Path(f"{place.dump}1").write_bytes(written(until(5, 5)))
    child = start("mute")
    requests = DumpRequests(child.pid, place)
    requests.request()
    requests.read()
    assert requests.dump is None
    late = start(written(until(6, 6)))
    requests = DumpRequests(late.pid, place)
    requests.request()
    wait_for_word(late, "dumped")
    requests.read()
    assert answered(requests.dump) == (6, 6)


def test_a_partly_written_dump_is_read_later(start: Start, place: DumpLocation) -> None:
    child = start("slowly", written(until(31, 30)))
    requests = DumpRequests(child.pid, place)
    requests.request()
    wait_for_word(child, "half")
    requests.read()
    assert (requests.dump, requests.error) == (None, "")
    let_finish(child)
    requests.read()
    assert answered(requests.dump) == (31, 30)


def test_the_next_request_returns_a_newer_dump(
    start: Start, place: DumpLocation, clock: list[float]
) -> None:
    child = start(written(until(31, 30)), written(until(31, 31)))
    requests = DumpRequests(child.pid, place)
    requests.request()
    wait_for_word(child, "dumped")
    requests.read()
    requests.request()  # too soon
    clock[0] += dump_requests.FIRST_PAUSE_S
    assert answered(requests.dump) == (31, 30)
    requests.request()
    wait_for_word(child, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 31)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the monotonic clock of the requests, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(dump_requests.time, "monotonic", lambda: now[0])
    return now


def test_a_rank_that_does_not_respond_times_out(
    start: Start, place: DumpLocation, clock: list[float]
) -> None:
    requests = DumpRequests(start("mute").pid, place)
    requests.request()
    clock[0] += dump_requests.RESPONSE_LIMIT_S
    requests.read()
    assert requests.error == ""
    clock[0] += 0.1
    requests.read()
    assert requests.error == "its flight recorder wrote no dump within 6 s"


def test_a_malformed_dump_gives_one_sentence(start: Start, place: DumpLocation) -> None:
    child = start(b"cos\nsystem\n(S'true'\ntR.")
    requests = DumpRequests(child.pid, place)
    requests.request()
    wait_for_word(child, "dumped")
    requests.read()
    assert requests.dump is None
    assert requests.error.startswith(
        f"cannot read the flight-recorder dump {place.dump}1: it is not a flight-recorder dump of torch"
    )


@pytest.mark.slow
def test_a_pipe_of_another_process_is_not_written_to(start: Start, place: DumpLocation) -> None:
    """Several processes share a stem, or a dead one left its pipe."""
    other, own = start(written(until(5, 5)), rank=0), start(written(until(31, 30)), rank=1)
    requests = DumpRequests(own.pid, place)
    requests.request()
    wait_for_word(own, "dumped")
    requests.read()
    assert answered(requests.dump) == (31, 30)
    assert not Path(f"{place.dump}0").exists()
    assert other.poll() is None
    unrelated = DumpRequests(os.getpid(), place)
    unrelated.request()
    assert unrelated.error == "its torch has not opened the flight recorder's pipe"


def test_a_full_pipe_and_a_regular_file_do_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "ask3.pipe"
    os.mkfifo(pipe)
    assert not dump_requests._write(pipe)  # no reader
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


# ---- the node sensor


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return the trace file of rank 1, which entered 31 collectives of unknown completion."""
    writer = TraceWriter(
        tmp_path / "rank1.trace", rank=1, world_size=2, local_rank=1, generation=0, records=64
    )
    recorder = PythonRecorder(writer, "/nowhere/torch")
    for _ in range(31):
        recorder.mark_no_completion(recorder.record("0", ALL_REDUCE, CALL))
    writer.note_json(
        trace_file.TraceNote.MEMBERS, {"name": "0", "ranks": [0, 1], "description": "default_pg"}
    )
    return writer.path


def pending(state: RankState) -> list[tuple[int, bool]]:
    """Return the numbers of pending calls, and whether each is certain."""
    return [(call.sequence, call.certain) for call in state.pending]


def observe_with_dump(
    child: Child, trace: Path, place: DumpLocation | None
) -> tuple[NodeSensor, JobSummary, JobSummary]:
    """Return the state after two close observations, with a dump between them."""
    node = NodeSensor([WorkerProcess(1, child.pid, trace, place)], 2)
    first = node.observe_closely()
    wait_for_word(child, "half")
    let_finish(child)
    return node, first, node.observe_closely()


def test_the_second_observation_has_the_call_that_the_rank_waits_in(
    start: Start, trace: Path, place: DumpLocation
) -> None:
    _, first, second = observe_with_dump(start("slowly", written(until(31, 29))), trace, place)
    assert [certain for _, certain in pending(first.ranks[0])] == [False] * 31
    assert first.ranks[0].unseen == ()
    assert pending(second.ranks[0]) == [(30, True), (31, False)]
    assert second.ranks[0].pending[0].dtype == "float32"


def test_an_outdated_dump_leaves_completion_unknown(
    start: Start, trace: Path, place: DumpLocation
) -> None:
    _, _, second = observe_with_dump(start("slowly", written(until(28, 28))), trace, place)
    assert len(pending(second.ranks[0])) == 31
    assert not any(certain for _, certain in pending(second.ranks[0]))
    assert "counts 28 collectives, its trace file 31" in second.ranks[0].unseen[0]


def test_a_rank_without_a_dump_location_is_listed_as_unseen(start: Start, trace: Path) -> None:
    child = start("mute")
    node = NodeSensor([WorkerProcess(1, child.pid, trace)], 2)
    assert node.observe_closely().ranks[0].unseen == ()
    assert node.observe_closely().ranks[0].unseen == ("completion on NCCL: no dump was requested",)


def test_a_completed_call_counts_as_progress(
    start: Start, trace: Path, place: DumpLocation
) -> None:
    """Hosts that ran ahead are silent while the device completes the enqueued calls."""
    now = time.time() + 1.0
    dump = until(31, 30)
    dump["entries"][29]["time_discovered_completed_ns"] = int(now * 1e9)
    node, first, _ = observe_with_dump(start("slowly", written(dump)), trace, place)
    assert first.silent_since < now - 0.5
    time.sleep(max(now - time.time() + 0.01, 0))
    assert node.observe().silent_since == pytest.approx(now, abs=1e-3)


@pytest.mark.slow
def test_all_ranks_in_one_nccl_call_get_a_verdict(
    start: Start, trace: Path, place: DumpLocation, tmp_path: Path
) -> None:
    """Without a dump, equal counters give no verdict; with one, it names the network."""
    other = TraceWriter(
        tmp_path / "rank0.trace", rank=0, world_size=2, local_rank=0, generation=0, records=64
    )
    recorder = PythonRecorder(other, "/nowhere/torch")
    for _ in range(33):
        recorder.mark_no_completion(recorder.record("0", ALL_REDUCE, CALL))  # its host ran ahead
    ahead = DumpLocation(f"{tmp_path}/generation0-rank0-ask", f"{tmp_path}/generation0-rank0-dump")
    rank1 = start("slowly", written(until(31, 30)))
    rank0 = start("slowly", written(until(33, 30)), at=ahead, rank=0)
    node = NodeSensor(
        [WorkerProcess(0, rank0.pid, other.path, ahead), WorkerProcess(1, rank1.pid, trace, place)],
        2,
    )
    first = node.observe_closely()
    for child in (rank1, rank0):
        wait_for_word(child, "half")
        let_finish(child)
    second = node.observe_closely()
    verdicts = [
        hang.judge_hang(summary.ranks, summary.groups, world_size=2).root
        for summary in (first, second)
    ]
    assert verdicts[1] is not None
    assert verdicts[1].cause == "collective-incomplete"
    assert "all_reduce #31" in verdicts[1].message
    assert verdicts[1].subject.rank is None
    assert verdicts[0] is None or verdicts[0].cause != "collective-incomplete"
