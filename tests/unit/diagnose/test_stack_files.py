"""Stack files: assignment of processes to ranks, number of samples, and exclusion of helpers."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import SourceLine
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.evidence.file_types import detect_kind
from holdfast.diagnose.stacks import stack_files
from holdfast.diagnose.stacks.stack_dumps import parse_processes

SLEEPS = ("wait_for_licence (train.py:21)", "main (pkg/model.py:30)", "<module> (train.py:38)")
WAITS = (
    "all_reduce (torch/distributed/distributed_c10d.py:3252)",
    "step (train.py:16)",
    "<module> (train.py:38)",
)


def dumped(pid, *frames, command="python train.py", state="idle", parent=None):
    """Return the output of `py-spy dump` for a process with two threads."""
    above = f"Parent Process {parent}: python train.py\n" if parent else ""
    main = "".join(f"    {frame}\n" for frame in frames or SLEEPS)
    return (
        f"Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n{above}\n"
        f'Thread {pid} ({state}): "MainThread"\n{main}'
        f'Thread {pid + 1} (active+gil): "say "hi""\n    Condition.wait (threading.py:331)\n'
    )


def in_json(pid, *, active=False):
    frames = [
        {"name": "step", "filename": "/job/train.py", "module": None, "line": 16},
        {"name": "poll", "filename": "libc.so.6", "module": "/lib/libc.so.6", "line": 0},
    ]
    threads = [
        {
            "pid": pid,
            "thread_id": 7,
            "thread_name": name,
            "os_thread_id": number,
            "active": active,
            "frames": frames,
        }
        for name, number in (("idler", pid + 1), ("MainThread", pid))
    ]
    return json.dumps(threads, indent=2) + "\n"


def piece(name, text):
    data = text if isinstance(text, bytes) else text.encode()
    return EvidenceFile(name, EvidenceKind.STACKS, len(data), lambda: io.BytesIO(data))


def read(*files, **more):
    return stack_files.read_stack_files([piece(name, text) for name, text in files], **more)


def ranks(table):
    return (
        [] if table.samples is None else [(state.rank, state.pid) for state in table.samples.ranks]
    )


def test_file_type_and_threads_are_parsed():
    assert detect_kind(dumped(7).encode()) is EvidenceKind.STACKS
    (process,) = parse_processes(dumped(7).encode(), "rank3.txt")
    main, other = process.threads
    assert main.frames == (
        SourceLine("train.py", 21, "wait_for_licence"),
        SourceLine("pkg/model.py", 30, "main"),
        SourceLine("train.py", 38, "<module>"),
    )
    assert (main.thread, main.origin, other.thread) == ("MainThread", "rank3.txt", 'say "hi"')
    assert (process.pid, process.command, process.running) == (7, "python train.py", False)
    assert other.frames[0].file == "…/lib/python3/threading.py"


def test_native_frames_and_locals_are_skipped():
    text = dumped(7, "0x7f3c (libc.so.6)", "at::native::add (Add.cpp:120)", *SLEEPS).replace(
        "    main (", "        Arguments:\n            x: 3 (train.py:9)\n    main ("
    )
    (process,) = parse_processes(text.encode(), "f")
    assert [frame.line for frame in process.threads[0].frames] == [21, 30, 38]


def test_rank_from_file_name():
    assert ranks(read(("a/rank2.txt", dumped(7)), ("pyspy_rank-10.json", in_json(9)))) == [
        (2, 7),
        (10, 9),
    ]


def test_rank_from_command_line_or_heading():
    text = (
        dumped(7, command="env RANK=5 LOCAL_RANK=1 python train.py")
        + f"==== rank 6 on node2 ====\n{dumped(9)}"
        + f"RANK=7\n{dumped(11)}"
    )
    assert ranks(read(("rank0.txt", text))) == [(5, 7), (6, 9), (7, 11)]


def test_rank_from_srun_labels():
    text = "".join(
        f"{rank}: {line}" for rank in (1, 0) for line in dumped(7 + rank).splitlines(keepends=True)
    )
    assert detect_kind(text.encode()) is EvidenceKind.STACKS
    assert ranks(read(("srun.out", text))) == [(0, 7), (1, 8)]


def test_json_arrays_are_separate_processes():
    content = in_json(7, active=True) + in_json(9)
    assert detect_kind(content.encode()) is EvidenceKind.STACKS
    table = read(("all.json", content), by_pid={7: 3, 9: 4})
    assert ranks(table) == [(3, 7), (4, 9)]
    assert table.running == {3}
    assert table.samples.ranks[0].stacks[0].frames == (SourceLine("/job/train.py", 16, "step"),)


def test_process_without_known_rank_is_unseen():
    table = read(("one.txt", dumped(7) + dumped(9)))
    assert table.samples is None
    assert table.unseen == ("one.txt: the ranks of these processes are unknown: 7, 9",)


def test_local_ranks_are_used_for_a_single_host_only():
    both = "".join(dumped(pid, command=f"python train.py --local-rank={pid - 7}") for pid in (7, 8))
    assert ranks(read(("all.txt", both))) == [(0, 7), (1, 8)]
    for table in (
        read(("all.txt", both), world_size=16),
        read(("node1.txt", both), ("node2.txt", both.replace("7:", "70:"))),
    ):
        assert table.samples is None
        assert any("their host is unknown" in text for text in table.unseen)


def test_two_files_of_a_rank_are_two_samples():
    table = read(
        ("1/rank0.txt", dumped(7, *WAITS)), ("2/rank0.txt", dumped(7)), ("2/rank1.txt", dumped(8))
    )
    first, second = table.samples.ranks
    assert [stack.frames[0].line for stack in first.stacks] == [3252, 21]
    assert (first.unseen, len(second.stacks)) == ((), 1)
    assert "only one sample" in second.unseen[0]
    assert table.samples.threads[0][0].frames[0].line == 21


def test_later_process_of_a_rank_is_used_and_reported():
    table = read(("1/rank0.txt", dumped(7)), ("2/rank0.txt", dumped(9)))
    assert ranks(table) == [(0, 9)]
    assert any("several processes" in text for text in table.unseen)


def test_workers_and_launchers_are_not_ranks():
    worker = dumped(
        8, "get (queue.py:180)", "_worker_loop (torch/utils/data/_utils/worker.py:249)", *SLEEPS
    )
    agent = dumped(
        6,
        "_monitor_workers (torch/distributed/elastic/agent/server/local_elastic_agent.py:9)",
        *SLEEPS,
    )
    table = read(("rank3.txt", agent + dumped(7) + "-" * 80 + "\n" + dumped(9, parent=7) + worker))
    assert ranks(table) == [(3, 7)]


def test_two_faulthandler_dumps_are_two_samples():
    once = (
        'Thread 0x02 (most recent call first):\n  File "/job/a.py", line 1 in f\n\n'
        'Current thread 0x01 (most recent call first):\n  File "/job/train.py", line {} in step\n\n'
    )
    (state,) = read(
        ("rank4.txt", once.format(40) + "Timeout (0:00:30)!\n" + once.format(41))
    ).samples.ranks
    assert [stack.frames[0].line for stack in state.stacks] == [40, 41]


@pytest.mark.parametrize(
    "content", [b"[", b"[1]", b"Process 3: x\nPython v3\n", b"Thread 0x1 (most", b""]
)
def test_file_without_stacks_is_skipped_as_lost(content):
    table = read(("rank0.txt", content))
    assert (table.samples, [item.lost for item in table.skipped]) == (None, [True])


@pytest.mark.parametrize(
    "noise", ["\n", " (:", " ", "x\n", "Process 7: x\n", "]", "[ ", "Thread 1 (idle)\n", '] [{"']
)
def test_much_noise_is_parsed_quickly(noise):
    for beginning in (dumped(7), "[", in_json(7), "Thread 0x1 (most recent call first):\n"):
        found = parse_processes((beginning + noise * (500_000 // len(noise))).encode(), "f")
        assert isinstance(found, Unknown) or all(process.threads for process in found)


PIECES = [
    "Process 7: python\n",
    "Process 99999999999: x\n",
    "Python v3.11\n",
    "rank 3\n",
    "RANK=999999\n",
    "\n",
    "3: ",
    "[",
    'Thread 7 (idle): "MainThread"\n',
    "    f (a.py:1)\n",
    "    f (a.py:99999999999)\n",
    "Parent Process 7: x\n",
    "Thread 0x1 (most recent call first):\n",
    '  File "a.py", line 1 in f\n',
    '[{"pid": 7, "frames": []}]',
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rank1", "x"]), st.lists(st.sampled_from(PIECES) | st.text(max_size=6))
        )
    )
)
def test_any_file_content_is_parsed(files):
    table = read(
        *((f"{name}.txt", "".join(pieces).encode(errors="replace")) for name, pieces in files)
    )
    assert table.samples is None or all(
        state.rank < table.samples.world_size for state in table.samples.ranks
    )
