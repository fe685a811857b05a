"""Exceptions read from the end of a rank's stderr, and from the text of wrapping exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from holdfast.core.rank_table import RaisedException, SourceLine
from holdfast.watcher import tracebacks

TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 30, in main
    load(rank)
  File "/job/train.py", line 4, in load
    raise ValueError("bad record in shard 7")
  File "/usr/lib/python3.11/json/decoder.py", line 9, in decode
    raise
ValueError: bad record in shard 7
"""
ABORT = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 62 vs 60.
"""


@pytest.fixture
def stderr(tmp_path):
    def write(text):
        path = tmp_path / "stderr.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK,
        "step 1\n" * 100_000 + TRACEBACK + "\nSet HYDRA_FULL_ERROR=1 for a complete trace.\n",
        "".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines()),
        TRACEBACK.replace("bad record in shard 7\n", "other\n") + "retrying\n" + TRACEBACK,
    ],
)
def test_the_last_traceback_is_read_with_its_innermost_user_line(stderr, text):
    path = stderr(text)
    raised = tracebacks.read_exception(path)
    assert (raised.type, raised.text, raised.origin) == (
        "ValueError",
        "bad record in shard 7",
        str(path),
    )
    assert raised.place == SourceLine("/job/train.py", 4, "load")
    assert [frame.line for frame in raised.frames] == [9, 4, 30]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\nno frame: here\n",
        TRACEBACK + "step\n" * 200,  # the job continued after it
        b"\xff\x00" * 100_000,
        b"x" * (1 << 20),
        "Traceback (most recent call last):\n" * 50_000,
        TRACEBACK.rpartition("ValueError")[0] + "  " * 100_000,
    ],
)
def test_output_without_an_exception_that_ended_the_process_gives_none(stderr, text):
    assert tracebacks.read_exception(stderr(text)) is None


def test_an_abort_is_explained_by_the_cpp_exception(stderr):
    raised = tracebacks.read_exception(stderr(TRACEBACK + ABORT), aborted=True)
    assert raised.type == "gloo::EnforceNotMet"
    assert raised.text.startswith("[enforce fail at pair.cc:456]")
    assert tracebacks.read_exception(stderr(TRACEBACK), aborted=True) is None


def test_a_missing_file_gives_none(tmp_path):
    assert tracebacks.read_exception(tmp_path / "absent") is None


def test_the_exception_of_a_loader_worker_is_unwrapped():
    text = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        'last):\n  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 1, in _loop\n'
        '    data = fetcher\n  File "/job/data.py", line 12, in __getitem__\n    return 1\n'
        "KeyError: 'label'\n"
    )
    caller = SourceLine("/job/train.py", 9, "main")
    wrapped = RaisedException("KeyError", text, caller, frames=(caller,))
    original = tracebacks.original_exception(wrapped)
    place = SourceLine("/job/data.py", 12, "__getitem__")
    assert (original.type, original.text, original.place) == ("KeyError", "'label'", place)
    assert [frame.line for frame in original.frames] == [12, 1, 9]


def test_a_cut_wrapped_traceback_leaves_the_exception_as_it_is():
    wrapped = RaisedException(
        "KeyError", "Original Traceback (most recent call last):\n  File", None
    )
    assert tracebacks.original_exception(wrapped) is wrapped


def test_the_stderr_of_a_process_is_known_if_it_is_a_file(tmp_path):
    path = tmp_path / "stderr.log"
    with path.open("wb") as file, subprocess.Popen(["sleep", "60"], stderr=file) as process:
        found = tracebacks.stderr_file(process.pid)
        process.kill()
    assert found == path
    assert tracebacks.stderr_file(1 << 30) is None


def test_the_stack_of_a_crashed_process_is_read(tmp_path):
    dump = tmp_path / "trace.stacks"
    program = textwrap.dedent(f"""
        import faulthandler, os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.enable(open({str(dump)!r}, "w"))
        def read():
            os.kill(os.getpid(), 7)
        read()
    """)
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGBUS
    assert [frame.function for frame in tracebacks.read_crash(dump).frames] == ["read", "<module>"]
    assert tracebacks.read_crash(tmp_path / "missing") is None
    dump.write_text(
        "Fatal Python error: Aborted\n\nThread 0x00007f (most recent call first):\n  <no Python frame>\n"
    )
    assert tracebacks.read_crash(dump) is None
