"""Facts read from logs: signals with their fields, tracebacks, and progress of each rank."""

from __future__ import annotations

import io
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.logs import LogFacts, scan
from holdfast.diagnose.logs.bounded_signals import KEPT_FIRST, KEPT_LAST, merge_facts
from holdfast.diagnose.logs.file_names import rank_in_name
from holdfast.diagnose.logs.reader import LogReader, read_logs
from holdfast.diagnose.logs.signals import ROWS


def facts(**logs: str | bytes) -> LogFacts:
    """Return the facts in these logs; keywords are file names."""
    pieces = []
    for name, text in logs.items():
        raw = text.encode() if isinstance(text, str) else text
        pieces.append(
            EvidenceFile(name, EvidenceKind.LOG, len(raw), lambda raw=raw: io.BytesIO(raw))
        )
    return read_logs(pieces)


def test_signals_keep_their_line_and_fields() -> None:
    found = facts(
        log="all fine\n[rank2]: last enqueued NCCL work: 41, last completed NCCL work: 40.\n"
    )
    (signal,) = [one for one in found.signals if one.name == "work-status"]
    assert (signal.line.rank, signal.line.number, signal.line.source) == (2, 2, "log")
    assert signal.fields == {"enqueued": 41, "completed": 40}
    assert found.ranks[2].enqueued == {"0": 41}
    assert (found.lines, found.last.number if found.last else 0) == (2, 2)


def test_interleaved_tracebacks_of_two_ranks_are_separated() -> None:
    log = "".join(
        f"[rank{rank}]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/job/a.py", line 3, in f',
            "KeyError: 'x'",
        )
        for rank in (0, 1)
    )
    found = facts(log=log).tracebacks
    assert [(one.type, one.line.rank, one.place.line if one.place else 0) for one in found] == [
        ("KeyError", 0, 3),
        ("KeyError", 1, 3),
    ]


def test_the_innermost_frame_of_user_code_is_the_location() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n'
        '  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 9, in g\nValueError: no\n'
    )
    (found,) = facts(log=log).tracebacks
    assert found.place is not None
    assert (found.place.file, found.place.line) == ("/job/a.py", 3)


FRAMES = (
    "Traceback (most recent call last):",
    '  File "/job/a.py", line 3, in f',
    "    use(x)",
    "    ^^^^^^",
)


@pytest.mark.parametrize(
    ("last", "kind", "text"),
    [
        ("_queue.Empty", "_queue.Empty", ""),
        (
            "subprocess.TimeoutExpired: timed out after 30 s",
            "subprocess.TimeoutExpired",
            "timed out after 30 s",
        ),
        ("BadShard: 17", "BadShard", "17"),
        ("f.<locals>.BadShard: 17", "f.<locals>.BadShard", "17"),
    ],
)
def test_the_last_line_of_a_traceback_is_recognized_by_position(
    last: str, kind: str, text: str
) -> None:
    ranks = "".join(f"[rank{rank}]: {line}\n" for line in (*FRAMES, last) for rank in (0, 1))
    found = facts(log=f"{ranks}step 4 / 9\nEpoch: 3\n").tracebacks
    assert [(one.type, one.text, one.line.rank, one.line.number) for one in found] == [
        (kind, text, 0, 9),
        (kind, text, 1, 10),
    ]
    assert all(one.header and one.place for one in found)
    assert facts(log=f"{last}\nBadShard: 3\n").tracebacks == ()


def test_a_cut_off_traceback_is_kept() -> None:
    (found,) = facts(log="step 3 / 9\n" + "\n".join(FRAMES)).tracebacks
    assert (found.type, found.line.number, found.header, found.place and found.place.line) == (
        "",
        2,
        2,
        3,
    )


def test_a_notice_above_a_traceback_belongs_to_it() -> None:
    trace = "\n".join((*FRAMES, "KeyError: 3"))
    ignored, other = facts(
        log=f"Exception ignored in: <function f at 0x7f>\n{trace}\n{trace}\n"
    ).tracebacks
    assert (ignored.notice, other.notice) == ("Exception ignored in: <function f at 0x7f>", "")
    (far,) = facts(log=f"Exception in thread Thread-3:\n\n\n\n{trace}\n").tracebacks
    assert far.notice == ""


def test_torchruns_failure_table_sets_the_exit_code() -> None:
    log = "Failures:\n[1]:\n  host      : n1\n  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 41)\n"
    assert (facts(log=log).ranks[5].exit_code, facts(log=log).ranks[5].host) == (-9, "n1")


def test_nccl_lines_map_processes_to_ranks() -> None:
    log = (
        "n1:5:9 [0] NCCL INFO comm 0x7f rank 6 nranks 8 cudaDev 0 busId 10 - Init COMPLETE\n"
        "n1:5:9 [0] NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    )
    found = facts(log=log)
    assert found.world_size == 8
    assert {one.line.rank for one in found.signals if one.name == "shm-full"} == {6}


def test_the_first_and_last_of_repeated_signals_are_kept() -> None:
    found = facts(log="".join(f"Connection closed by peer {number}\n" for number in range(500)))
    kept = [one.line.number for one in found.signals if one.name == "peer-closed"]
    assert len(kept) == KEPT_FIRST + KEPT_LAST
    assert (kept[0], kept[-1]) == (1, 500)


def test_few_signals_per_rank_are_kept_of_many_ranks() -> None:
    lines = "".join(
        f"[rank{rank}]: Connection closed by peer\n" for rank in range(10_000) for _ in range(8)
    )
    kept = [one for one in facts(log=lines).signals if one.name == "peer-closed"]
    assert len({one.line.rank for one in kept}) == 10_000
    assert len(kept) < 60_000


def test_ranks_in_file_names() -> None:
    assert rank_in_name("run/none_abc/attempt_0/3/stderr.log") == 3
    assert rank_in_name("logs/rank_12.txt") == 12
    assert rank_in_name("logs.tgz!rank3/stderr.log") == 3
    assert rank_in_name("slurm-811234.out") is None
    assert rank_in_name("crank7x.log") is None


def test_the_innermost_rank_in_a_path_counts() -> None:
    assert rank_in_name("node_rank0/rank1.log") == 1
    assert rank_in_name("rank2/attempt_0/3/stderr.log") == 3
    assert rank_in_name("evidence.tgz!rank_5/out/stdout.log") == 5


def test_ray_lines_map_processes_to_ranks() -> None:
    found = facts(
        log="(Trainer pid=70, ip=10.0.0.9) - (node_id=ab12, ip=10.0.0.9, pid=81) world_rank=3, local_rank=1\n"
        "(Loop pid=82) Setting up process group for: env:// [rank=4, world_size=8]\n"
        "(Loop pid=81) Too many open files\n(Loop pid=82) Too many open files\n(Loop pid=90) Too many open files\n"
        "ray.exceptions.RayTaskError(KeyError): \x1b[36mray::Loop.fit()\x1b[39m (pid=82, ip=10.0.0.9)\n"
    )
    assert [one.line.rank for one in found.signals if one.name == "fd-limit"] == [3, 4, None]
    assert [one.fields for one in found.signals if one.name == "worker-failed"] == [{"rank": 4}]


def test_a_pid_of_two_ranks_is_ambiguous() -> None:
    lines = (
        "".join(f"(Loop pid=81) rank {rank} of 4 is here\n" for rank in (1, 2))
        + "(Loop pid=81) Too many open files\n"
    )
    assert [one.line.rank for one in facts(log=lines).signals if one.name == "fd-limit"] == [None]


def test_work_numbers_are_kept_by_process_group() -> None:
    lines = (
        "[rank2]:[E203 04:05:06.2 ProcessGroupNCCL.cpp:2168] [PG ID 3 PG GUID 17 Rank 2]  failure detected by watchdog "
        "at work sequence id: 9 PG status: last enqueued work: 11, last completed work: 8\n"
        "[rank2]:[E ProcessGroupNCCL.cpp:1540] [PG 1 Rank 2] Timeout at NCCL work: 7, last enqueued NCCL work: 8, last "
        "completed NCCL work: 6.\n"
    )
    assert facts(log=lines).ranks[2].enqueued == {"17": 11, "1": 8}


@pytest.mark.parametrize(
    "digits",
    ["9" * 12, "9" * 21, "9" * 5000, "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}"],
)
def test_absurd_numbers_are_ignored(digits: str) -> None:
    found = facts(
        log=f"n1:5:9 [0] NCCL INFO comm 0x7f rank {digits} nranks {digits} cudaDev 0\n"
        f"  rank      : {digits} (local_rank: {digits})\n  exitcode  : {digits} (pid: {digits})\n"
        f"(Loop pid=81) rank {digits} of 4\n\tpid: {digits}\n"
        f"[rank2]: last enqueued work: {digits}, last completed work: 3\n"
        f"failed (exitcode: {digits}) local_rank: {digits} (pid: {digits})\nsrun: error: n1: task {digits}: Killed\n"
        f"process {digits} terminated with signal SIGKILL\n"
    )
    assert all(rank < 10**6 for rank in found.ranks)
    assert (found.world_size or 0) < 10**6


def test_minus_one_as_unsigned_is_a_number() -> None:
    lines = "[rank2]: last enqueued NCCL work: 1, last completed NCCL work: 18446744073709551615.\n"
    assert facts(log=lines).ranks[2].completed == {"0": 2**64 - 1}


def test_patterns_have_no_look_around() -> None:
    for row in ROWS:
        assert not any(mark in row.expression for mark in ("(?=", "(?!", "(?<=", "(?<!")), row.name


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_arbitrary_bytes_do_not_raise(lines: list[bytes]) -> None:
    logs = b"\n".join(lines), b"\r".join(lines)
    assume(
        not any(log.startswith((b"\xff\xfe", b"\xfe\xff")) for log in logs)
    )  # UTF-16, of other lines
    found = facts(noise=logs[0], rank1=logs[1])
    assert found.lines == sum(
        log.count(b"\n") + (bool(log) and not log.endswith(b"\n")) for log in logs
    )


LINES = (
    "[rank2]: step 7 loss 1.0\n",
    "all fine\n",
    "[rank1]: Traceback (most recent call last):\n",
    '[rank1]:   File "/job/a.py", line 3, in f\n',
    "[rank1]: KeyError: 'x'\n",
    "  exitcode  : -9 (pid: 41)\n",
    "  rank      : 5 (local_rank: 1)\n",
    "n1:5:9 [0] NCCL INFO comm 0x7f rank 6 nranks 8 cudaDev 0 busId 10 - Init\n",
    "n1:5:9 [0] NCCL WARN Call to posix_fallocate failed : No space left on device\n",
    "[rank2]: last enqueued NCCL work: 41, last completed NCCL work: 40.\n",
    "[rank1]: _queue.Empty\n",
    "[rank1]: Exception ignored in: <function f at 0x7f>\n",
    "[rank1]:     use(x)\n",
)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.lists(st.sampled_from(LINES), min_size=1, max_size=12), min_size=1, max_size=4))
def test_merged_facts_equal_those_read_together(logs: list[list[str]]) -> None:
    processes: dict[str, int] = {}
    parts = []
    for number, lines in enumerate(logs):
        reader = LogReader(rank_by_process=processes)
        reader.add(f"log{number}", io.BytesIO("".join(lines).encode()))
        parts.append(reader.facts())
    assert merge_facts(parts) == facts(
        **{f"log{number}": "".join(lines) for number, lines in enumerate(logs)}
    )


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=30), st.data())
def test_a_log_read_in_parts_yields_the_same_facts(lines: list[str], data: st.DataObject) -> None:
    reader, at = LogReader(), 0
    while at < len(lines):
        until = data.draw(st.integers(at + 1, len(lines)))
        assert (
            reader.add("log", io.BytesIO("".join(lines[at:until]).encode()), after_lines=at)
            == until - at
        )
        at = until
    grown, whole = reader.facts(), facts(log="".join(lines))
    assert [(one.name, one.line, one.fields) for one in grown.signals] == [
        (one.name, one.line, one.fields) for one in whole.signals
    ]
    assert (grown.tracebacks, grown.last, grown.lines, grown.bytes) == (
        whole.tracebacks,
        whole.last,
        whole.lines,
        whole.bytes,
    )


#: Parts of logs with line ends, colors, escaped line feeds, records and quotes.
PIECES = (
    *LINES,
    "\n",
    "\r\n",
    "no end",
    "\x1b[31mred\x1b[0m\n",
    '{"log": "step 3/9 loss 2.0\\n"}\n',
)
PIECES += ("> step 4/9 loss 1.5\n", "Traceback (most recent call last):\\n  File x\n", " \n")


@pytest.mark.parametrize("many", [1, 1 << 60])
@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8), min_size=1, max_size=5))
def test_small_logs_in_memory_yield_the_same_facts(many: int, logs: list[list[str]]) -> None:
    contents = {f"rank{number}.log": "".join(one).encode() for number, one in enumerate(logs)}
    in_memory = [
        EvidenceFile(name, EvidenceKind.LOG, len(raw), partial(io.BytesIO, raw), content=raw)
        for name, raw in contents.items()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "MANY_SPARSE", many)
        assert read_logs(in_memory) == facts(**contents)
