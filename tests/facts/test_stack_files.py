"""Files of stacks: whose each process is, how often it was sampled, and what is no rank at all."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts import stack_files
from holdfast.facts.evidence import Kind, Piece
from holdfast.facts.evidence.kinds import kind
from holdfast.facts.ranks import Place
from holdfast.facts.stack_dumps import processes
from holdfast.findings import Unknown

SLEEPS = ("wait_for_licence (train.py:21)", "main (pkg/model.py:30)", "<module> (train.py:38)")
WAITS = ("all_reduce (torch/distributed/distributed_c10d.py:3252)", "step (train.py:16)", "<module> (train.py:38)")


def dumped(pid, *frames, command="python train.py", state="idle", parent=None):
    """What `py-spy dump` writes of a process with a second thread."""
    above = f"Parent Process {parent}: python train.py\n" if parent else ""
    main = "".join(f"    {frame}\n" for frame in frames or SLEEPS)
    return (
        f"Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n{above}\n"
        f'Thread {pid} ({state}): "MainThread"\n{main}'
        f'Thread {pid + 1} (active+gil): "say "hi""\n    Condition.wait (threading.py:331)\n'
    )


def in_json(pid, *, active=False):
    frames = [{"name": "step", "filename": "/job/train.py", "module": None, "line": 16},
              {"name": "poll", "filename": "libc.so.6", "module": "/lib/libc.so.6", "line": 0}]  # fmt: skip
    threads = [
        {"pid": pid, "thread_id": 7, "thread_name": name, "os_thread_id": number, "active": active, "frames": frames}
        for name, number in (("idler", pid + 1), ("MainThread", pid))
    ]
    return json.dumps(threads, indent=2) + "\n"


def piece(name, text):
    data = text if isinstance(text, bytes) else text.encode()
    return Piece(name, Kind.STACKS, len(data), lambda: io.BytesIO(data))


def read(*files, **more):
    return stack_files.read([piece(name, text) for name, text in files], **more)


def ranks(table):
    return [] if table.samples is None else [(state.rank, state.pid) for state in table.samples.ranks]


def test_the_file_is_recognised_and_its_threads_are_read():
    assert kind(dumped(7).encode()) is Kind.STACKS
    (process,) = processes(dumped(7).encode(), "rank3.txt")
    main, other = process.threads
    assert main.frames == (
        Place("train.py", 21, "wait_for_licence"), Place("pkg/model.py", 30, "main"), Place("train.py", 38, "<module>")
    )  # fmt: skip
    assert (main.thread, main.origin, other.thread) == ("MainThread", "rank3.txt", 'say "hi"')
    assert (process.pid, process.command, process.running) == (7, "python train.py", False)
    assert other.frames[0].file == "…/lib/python3/threading.py"


def test_native_frames_and_locals_are_left_out():
    text = dumped(7, "0x7f3c (libc.so.6)", "at::native::add (Add.cpp:120)", *SLEEPS).replace(
        "    main (", "        Arguments:\n            x: 3 (train.py:9)\n    main ("
    )
    (process,) = processes(text.encode(), "f")
    assert [frame.line for frame in process.threads[0].frames] == [21, 30, 38]


def test_the_rank_is_in_the_name_of_the_file():
    assert ranks(read(("a/rank2.txt", dumped(7)), ("pyspy_rank-10.json", in_json(9)))) == [(2, 7), (10, 9)]


def test_the_rank_is_in_the_command_line_or_above_the_process():
    text = (
        dumped(7, command="env RANK=5 LOCAL_RANK=1 python train.py")
        + f"==== rank 6 on node2 ====\n{dumped(9)}"
        + f"RANK=7\n{dumped(11)}"
    )
    assert ranks(read(("rank0.txt", text))) == [(5, 7), (6, 9), (7, 11)]


def test_srun_puts_the_task_in_front_of_every_line():
    text = "".join(f"{rank}: {line}" for rank in (1, 0) for line in dumped(7 + rank).splitlines(keepends=True))
    assert kind(text.encode()) is Kind.STACKS
    assert ranks(read(("srun.out", text))) == [(0, 7), (1, 8)]


def test_several_arrays_of_json_are_several_processes():
    content = in_json(7, active=True) + in_json(9)
    assert kind(content.encode()) is Kind.STACKS
    table = read(("all.json", content), by_pid={7: 3, 9: 4})
    assert ranks(table) == [(3, 7), (4, 9)]
    assert table.running == {3}
    assert table.samples.ranks[0].stacks[0].frames == (Place("/job/train.py", 16, "step"),)


def test_where_nothing_tells_the_rank_nothing_is_numbered_and_that_is_said():
    table = read(("one.txt", dumped(7) + dumped(9)))
    assert table.samples is None
    assert table.unseen == ("one.txt: nothing tells which ranks these processes are: 7, 9",)


def test_ranks_on_a_host_count_where_there_is_one_host():
    both = "".join(dumped(pid, command=f"python train.py --local-rank={pid - 7}") for pid in (7, 8))
    assert ranks(read(("all.txt", both))) == [(0, 7), (1, 8)]
    for table in (
        read(("all.txt", both), world_size=16),
        read(("node1.txt", both), ("node2.txt", both.replace("7:", "70:"))),
    ):
        assert table.samples is None
        assert any("not of which host" in text for text in table.unseen)


def test_two_files_of_a_rank_are_two_samples():
    table = read(("1/rank0.txt", dumped(7, *WAITS)), ("2/rank0.txt", dumped(7)), ("2/rank1.txt", dumped(8)))
    first, second = table.samples.ranks
    assert [stack.frames[0].line for stack in first.stacks] == [3252, 21]
    assert (first.unseen, len(second.stacks)) == ((), 1)
    assert "one sample" in second.unseen[0]
    assert table.samples.threads[0][0].frames[0].line == 21


def test_of_two_processes_of_one_rank_the_later_counts_and_that_is_said():
    table = read(("1/rank0.txt", dumped(7)), ("2/rank0.txt", dumped(9)))
    assert ranks(table) == [(0, 9)]
    assert any("several processes" in text for text in table.unseen)


def test_workers_and_launchers_are_no_ranks():
    worker = dumped(8, "get (queue.py:180)", "_worker_loop (torch/utils/data/_utils/worker.py:249)", *SLEEPS)
    agent = dumped(6, "_monitor_workers (torch/distributed/elastic/agent/server/local_elastic_agent.py:9)", *SLEEPS)
    table = read(("rank3.txt", agent + dumped(7) + "-" * 80 + "\n" + dumped(9, parent=7) + worker))
    assert ranks(table) == [(3, 7)]


def test_faulthandler_may_have_written_twice():
    once = (
        'Thread 0x02 (most recent call first):\n  File "/job/a.py", line 1 in f\n\n'
        'Current thread 0x01 (most recent call first):\n  File "/job/train.py", line {} in step\n\n'
    )
    (state,) = read(("rank4.txt", once.format(40) + "Timeout (0:00:30)!\n" + once.format(41))).samples.ranks
    assert [stack.frames[0].line for stack in state.stacks] == [40, 41]


@pytest.mark.parametrize("content", [b"[", b"[1]", b"Process 3: x\nPython v3\n", b"Thread 0x1 (most", b""])
def test_what_holds_no_stacks_is_ignored_and_counts_as_lost(content):
    table = read(("rank0.txt", content))
    assert (table.samples, [item.lost for item in table.ignored]) == (None, [True])


@pytest.mark.parametrize("noise", ["\n", " (:", " ", "x\n", "Process 7: x\n", "]", "[ ", "Thread 1 (idle)\n", '] [{"'])
def test_megabytes_of_noise_are_read_in_no_time(noise):
    for beginning in (dumped(7), "[", in_json(7), "Thread 0x1 (most recent call first):\n"):
        found = processes((beginning + noise * (2_000_000 // len(noise))).encode(), "f")
        assert isinstance(found, Unknown) or all(process.threads for process in found)


PIECES = [
    "Process 7: python\n", "Process 99999999999: x\n", "Python v3.11\n", "rank 3\n", "RANK=999999\n", "\n", "3: ", "[",
    'Thread 7 (idle): "MainThread"\n', "    f (a.py:1)\n", "    f (a.py:99999999999)\n", "Parent Process 7: x\n",
    "Thread 0x1 (most recent call first):\n", '  File "a.py", line 1 in f\n', '[{"pid": 7, "frames": []}]',
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["rank1", "x"]), st.lists(st.sampled_from(PIECES) | st.text(max_size=6)))))
def test_no_file_makes_it_fail(files):
    table = read(*((f"{name}.txt", "".join(pieces).encode(errors="replace")) for name, pieces in files))
    assert table.samples is None or all(state.rank < table.samples.world_size for state in table.samples.ranks)
