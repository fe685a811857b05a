"""Parse output of py-spy and faulthandler: recorded, and as a hostile process might forge it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import SourceLine
from holdfast.host.processes.stack_text import (
    MAX_FRAMES,
    MAX_THREADS,
    from_crash,
    from_faulthandler,
    from_py_spy,
)

PYTHON_3_11 = """\
Thread 0x00007f51865f06c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/job/train.py", line 3 in <lambda>

Current thread 0x00007f5187088b80 (most recent call first):
  File "/job/train.py", line 41 in step
  File "/job/train.py", line 5 in <module>
"""

PYTHON_3_14 = """\
Thread 0x00007f2b9a7fe6c0 [pt_autograd_0] (most recent call first):
  <no Python frame>

Thread 0x00007f2b9a7fe6d0 [MainThread] (most recent call first):
  File "/job/train.py", line 9 in spoof

Current thread 0x00007f2ba0a4e740 [python] (most recent call first):
  File "/job/train.py", line 41 in step
  File "<frozen runpy>", line 88 in _run_code
  ...
"""


def thread(number, frames, name="MainThread"):
    found = [
        {"name": name, "filename": file, "line": line, "module": None}
        for name, file, line in frames
    ]
    return {
        "pid": 7,
        "thread_id": 1,
        "thread_name": name,
        "os_thread_id": number,
        "active": False,
        "frames": found,
    }


def test_the_main_thread_of_py_spy_comes_first():
    output = [
        thread(8, [("wait", "/usr/lib/python3.11/threading.py", 327)], "idler"),
        thread(7, [("Trainer.step", "train.py", 41), ("main.<locals>.go", "<string>", 1)]),
    ]
    main, idler = from_py_spy(json.dumps(output).encode(), 7, "/job")
    assert (main.thread, idler.thread) == ("MainThread", "idler")
    assert main.frames == (SourceLine("/job/train.py", 41, "step"), SourceLine("<string>", 1, "go"))


def test_a_sleeping_thread_that_holds_the_gil():
    """py-spy output of a rank that joined gloo's thread in a destructor: it owns the GIL and is not active."""
    kinds = [(False, True), (True, True), (False, False), (False, None)]
    output = [thread(7, []) | {"active": active, "owns_gil": owns} for active, owns in kinds]
    assert [each.holds_lock for each in from_py_spy(json.dumps(output).encode(), 7)] == [
        True,
        False,
        False,
        False,
    ]


def test_a_thread_cannot_pose_as_the_main_thread():
    stacks = from_py_spy(json.dumps([thread(8, []), thread(9, [], None)]).encode(), 7)
    assert [stack.thread for stack in stacks] == ["thread 0", "thread 1"]


@pytest.mark.parametrize("output", [b"", b"{}", b"[1]", b'[{"frames": 3}]', b"\xff", b"[" * 10_000])
def test_invalid_py_spy_output_is_unknown(output):
    assert isinstance(from_py_spy(output, 7), Unknown)


def test_a_huge_py_spy_dump_is_truncated():
    output = [thread(number, [("f", "x" * 5000, -3)] * (MAX_FRAMES + 5)) for number in (7, 8)]
    stacks = from_py_spy(json.dumps(output).encode(), 7)
    assert [len(stack.frames) for stack in stacks] == [MAX_FRAMES] * 2
    assert stacks[0].frames[0] == SourceLine("x" * 1024, 0, "f")
    many = json.dumps([thread(7, [])] * (MAX_THREADS + 5)).encode()
    assert len(from_py_spy(many, 7)) == MAX_THREADS


def test_the_last_thread_of_faulthandler_is_the_main_one():
    main, other = from_faulthandler(PYTHON_3_11)
    assert main.thread == "MainThread"
    assert main.frames == (
        SourceLine("/job/train.py", 41, "step"),
        SourceLine("/job/train.py", 5, "<module>"),
    )
    assert other.frames[1] == SourceLine("/job/train.py", 3, "<lambda>")


def test_thread_names_of_newer_interpreters():
    main, autograd, spoof = from_faulthandler(PYTHON_3_14)
    assert main.frames == (
        SourceLine("/job/train.py", 41, "step"),
        SourceLine("<frozen runpy>", 88, "_run_code"),
    )
    assert (autograd.thread, autograd.frames) == ("pt_autograd_0", ())
    assert spoof.thread == "thread 1"


def test_the_current_thread_is_used_if_the_list_is_truncated():
    output = 'Current thread 0x2 (most recent call first):\n  File "a.py", line 1 in f\n\n'
    output += 'Thread 0x1 (most recent call first):\n  File "b.py", line 2 in g\n\n...\n'
    main, other = from_faulthandler(output, "/job")
    assert main.frames == (SourceLine("/job/a.py", 1, "f"),)
    assert other.frames == (SourceLine("/job/b.py", 2, "g"),)


def test_the_newer_of_two_dumps_is_used():
    newer = PYTHON_3_11.replace("line 41", "line 42")
    stacks = from_faulthandler(PYTHON_3_11 + newer)
    assert len(stacks) == 2
    assert stacks[0].frames[0].line == 42


def test_escape_sequences_are_decoded():
    output = 'Thread 0x1 (most recent call first):\n  File "/tmp/\\xe9t\\u00e9/\\U0001f600/a\\x41 "b".py", line 3 in f\n'
    assert from_faulthandler(output)[0].frames == (SourceLine('/tmp/été/😀/a\\x41 "b".py', 3, "f"),)


def test_a_huge_faulthandler_dump_is_truncated():
    output = "".join(
        f"Thread 0x{number:x} (most recent call first):\n" for number in range(MAX_THREADS + 5)
    )
    assert len(from_faulthandler(output)) == MAX_THREADS
    deep = "Thread 0x1 (most recent call first):\n" + '  File "a.py", line 1 in f\n' * (
        MAX_FRAMES + 5
    )
    assert len(from_faulthandler(deep)[0].frames) == MAX_FRAMES


PIECES = [
    "Thread 0x1 (most recent call first):\n",
    "Current thread 0xZ (most recent call first):\n",
    "...\n",
    "  File ",
    '"x.py"',
    ", line 99999999999999999999 in f\n",
    "\\ud800",
    "\\U00110000",
    "\0",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8)))
def test_random_text_is_parsed_or_unknown(pieces):
    read = from_faulthandler("".join(pieces))
    assert isinstance(read, Unknown) or read
    spied = from_py_spy("".join(pieces).encode(errors="replace"), 1)
    assert isinstance(spied, Unknown | tuple)


def test_a_crash_is_read_from_the_last_fatal_dump():
    """The stack is that of the crashed thread, else of the main thread (gloo's threads abort)."""
    step, spoof = SourceLine("/job/train.py", 41, "step"), SourceLine("/job/train.py", 9, "spoof")
    crashed = f"Fatal Python error: Bus error\n\n{PYTHON_3_11}"
    assert from_crash(crashed).frames[0] == step
    assert from_crash(f"{PYTHON_3_14}\n{crashed}").frames[0] == step
    assert from_crash(f"{crashed}\nFatal Python error: Aborted\n\n{PYTHON_3_14}").frames[0] == step
    in_thread = PYTHON_3_14.replace("Thread 0x00007f2b9a7fe6d0", "Current thread 0x1").replace(
        "Current thread 0x00007f2ba0a4e740", "Thread 0x2"
    )
    assert from_crash(f"Fatal Python error: Aborted\n\n{in_thread}").frames == (spoof,)
    foreign = PYTHON_3_11.replace("Current thread", "Thread")
    assert from_crash(f"Fatal Python error: Aborted\n\n{foreign}").frames[0] == step
    assert isinstance(from_crash(PYTHON_3_11), Unknown)
