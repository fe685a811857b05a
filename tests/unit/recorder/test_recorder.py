"""The recorder records every collective of an unchanged script with its call site."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast import recorder
from holdfast.core import native_extension
from holdfast.recorder import bootstrap, build, parse_duration
from holdfast.recorder.torch_extension import torch_release
from holdfast.watcher.trace_notes import TraceNotes
from holdfast.watcher.trace_reader import TraceReading
from holdfast.watcher.tracebacks import read_crash
from tests.fork_server import fork_server
from tests.ports import free_port

SCRIPT = Path(__file__).parent / "record_everything.py"
LINES = SCRIPT.read_text().splitlines()


def line_of(mark: str) -> int:
    """Return the number of the line that ends with ``# LINE mark``."""
    return next(number for number, line in enumerate(LINES, 1) if line.endswith(f"# LINE {mark}"))


def record(
    folder: Path, mode: str, *arguments: str, native: Path | None = None
) -> list[TraceReading]:
    """Run the script on two forked ranks, each under the bootstrap; return their traces."""
    store = folder / "store"
    ranks = []
    for rank in range(2):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(shared_port(store)),
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_TRACE": str(folder / f"rank{rank}.trace"),
            "HOLDFAST_RECORDER": mode,
            "HOLDFAST_NATIVE": str(native or ""),
        }
        command = ("-m", "holdfast.recorder.bootstrap", str(SCRIPT), *arguments)
        with (folder / f"errors{rank}").open("wb") as errors:
            ranks.append(
                fork_server().start_program(*command, environment=environment, stderr=errors)
            )
    for rank, process in enumerate(ranks):
        assert process.wait(100) == 0, (folder / f"errors{rank}").read_text()
    return [TraceReading(folder / f"rank{rank}.trace") for rank in range(2)]


def shared_port(port_file: Path) -> int:
    """Return a free port, the same for every call with the same file."""
    if not port_file.exists():
        port_file.write_text(str(free_port()))
    return int(port_file.read_text())


@pytest.fixture(scope="module")
def native() -> Path:
    """Return the compiled recorder; skip without a compiler, where the Python recorder is used."""
    if native_extension.find_compiler() is None:
        pytest.skip("no C++ compiler on this machine: the native recorder cannot be built")
    log: list[str] = []
    library = build.ensure_built(log.append)
    assert library is not None, log
    return library


#: Number of calls per collective in the script (coalesced all-reduces count as one call or as two).
EXPECTED = {
    "broadcast": 1,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 1,
    "reduce": 1,
    "gather": 1,
    "scatter": 1,
    "all_to_all_single": 1,
    "barrier": 1,
    "monitored_barrier": 1,
    "init_process_group": 1,
    "new_group": 1,
    "destroy_process_group": 1,
}
ALL_REDUCES = 8  # 1 plain, 2 coalesced, 3 in backward, 1 in the pair, 1 asynchronous


def check(traces: list[TraceReading], *, below: int, reduction: str = "max") -> None:
    """Check that both ranks recorded every call as completed, at the script's lines."""
    for rank, trace in enumerate(traces):
        calls = trace.recent(1000)
        counts = Counter(call.name for call in calls)
        assert counts["send" if rank == 0 else "recv"] == 2
        assert counts["all_reduce"] + 2 * counts["all_reduce_coalesced"] == ALL_REDUCES + below
        for name, count in EXPECTED.items():
            assert counts[name] >= count, name  # DDP and FSDP call some more often
        assert all(call.site is not None and call.site.file == str(SCRIPT) for call in calls), calls
        assert trace.read_notes().ended is not None
        assert trace.step().number == 3
        assert trace.read_notes().members["0"].ranks == (0, 1)
        assert not trace.notes.dropped
        (reduced,) = [
            call for call in calls if call.site and call.site.line == line_of("all_reduce")
        ]
        # Every field of a record that C++ and Python encode separately.
        assert (reduced.name, reduced.dtype, reduced.shape, reduced.elements) == (
            "all_reduce",
            "float32",
            (2, 5),
            10,
        )
        assert (reduced.tensors, reduced.reduce, reduced.peer, reduced.tag) == (
            1,
            reduction,
            None,
            -1,
        )
        assert reduced.caller is not None
        assert (reduced.caller.line, reduced.group, reduced.failed) == (
            line_of("caller"),
            "0",
            False,
        )
    backward = [
        call
        for call in traces[0].recent(1000)
        if call.site and call.site.line == line_of("backward")
    ]
    assert sum(call.name == "all_reduce" and call.elements == 72 for call in backward) == 3
    same = [collectives(trace) for trace in traces]
    assert same[0] == same[1]


def collectives(trace: TraceReading) -> list[tuple[object, ...]]:
    """Return what must be equal on every rank."""
    return [
        (call.group, call.sequence, call.name, call.dtype, call.site)
        for call in trace.recent(1000)
        if not call.is_point_to_point and call.name not in ("scatter", "gather")
    ]


def test_the_native_recorder_records_everything(native: Path, tmp_path: Path) -> None:
    fsdp = ["fsdp"] if torch_release() >= (2, 8) else []  # earlier, FSDP2 requires a GPU
    in_inference = torch_release() >= (2, 9)  # earlier, not recorded
    traces = record(tmp_path, "native", "below-autograd", *fsdp, native=native)
    check(traces, below=1 + in_inference)
    for trace in traces:
        assert trace.read_notes().words[0].startswith("recorder: native")
        assert trace.pending() == []
        reduced = [call.elements for call in trace.recent(1000) if call.name == "all_reduce"]
        assert reduced.count(6) == 1  # the functional collective
        assert reduced.count(7) == in_inference
        if not fsdp:
            continue
        sharded = [
            call for call in trace.recent(1000) if call.site and call.site.line == line_of("fsdp")
        ]
        assert {"all_gather_into_tensor", "reduce_scatter_tensor"} <= {
            call.name for call in sharded
        }


def test_the_python_recorder_records_the_same(tmp_path: Path) -> None:
    traces = record(tmp_path, "python")
    # Python cannot read the reduction earlier.
    check(traces, below=0, reduction="max" if torch_release() >= (2, 10) else "")
    assert not [call for trace in traces for call in trace.pending() if call.certain]


def test_without_a_trace_the_script_runs_unrecorded(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys; print(__name__, sys.argv, __file__, 'email' in sys.modules); sys.exit(3)"
    )
    command = [sys.executable, "-m", "holdfast.recorder.bootstrap", str(script), "--flag", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    # email: importlib.metadata, which doubles the time until the script starts
    assert done.stdout == f"__main__ ['{script}', '--flag', 'x'] {script} False\n"


def run_script(
    folder: Path, text: str, native: Path | None = None
) -> tuple[subprocess.CompletedProcess[str], TraceNotes]:
    """Run a script as the only rank of a job; return the process and its notes."""
    script = folder / "script.py"
    script.write_text(text)
    environment = os.environ | {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "HOLDFAST_TRACE": str(folder / "rank0.trace"),
        "HOLDFAST_NATIVE": str(native or ""),
    }
    command = [sys.executable, "-m", "holdfast.recorder.bootstrap", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=100
    )
    return done, TraceReading(folder / "rank0.trace").read_notes()


#: Freeing the model joins the group's thread, which needs the GIL to free the tensors.
FREES_MODEL_AFTER_GROUP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train():
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    dist.all_gather([torch.empty(1 << 23)], torch.ones(1 << 23), async_op=True)
    dist.destroy_process_group()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
train()
print("done")
"""


@pytest.mark.slow
def test_a_model_freed_after_its_group_does_not_deadlock(tmp_path: Path, native: Path) -> None:
    done, _ = run_script(tmp_path, FREES_MODEL_AFTER_GROUP, native)
    assert done.stdout == "done\n", done.stderr


def test_a_traceback_shows_only_the_script(tmp_path: Path) -> None:
    done, notes = run_script(tmp_path, "def step():\n    raise ValueError('bad batch')\n\nstep()\n")
    assert done.returncode == 1
    assert "bootstrap" not in done.stderr
    assert "runpy" not in done.stderr
    assert notes.raised is not None
    assert (notes.raised.type, notes.raised.text) == ("ValueError", "bad batch")
    assert notes.raised.place is not None
    assert (notes.raised.place.line, notes.raised.place.function) == (2, "step")
    assert [frame.line for frame in notes.raised.frames] == [2, 4]


def test_the_stack_of_a_crash_is_kept_beside_the_trace(tmp_path: Path) -> None:
    limit = "from resource import *; setrlimit(RLIMIT_CORE, (0, 0))\n"
    text = f"{limit}import os\ndef step():\n    os.abort()\n\nstep()\n"
    done, _ = run_script(tmp_path, text)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal" not in done.stderr
    stack = read_crash(tmp_path / "rank0.trace.stacks")
    assert stack is not None
    assert [frame.line for frame in stack.frames[:2]] == [4, 6]


def test_stacks_are_written_to_a_new_file_after_the_trace_is_renewed(tmp_path: Path) -> None:
    """The agent deletes the files of an ended generation, whose survivors continue in process."""
    text = """
import os, resource, signal
from holdfast import recorder
from holdfast.core.trace_file import STACK_SIGNAL
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.unlink(os.environ["HOLDFAST_TRACE"] + ".stacks")
recorder.renew_process_trace(rank=0, world_size=1, local_rank=0, generation=1)
signal.raise_signal(STACK_SIGNAL)
os.abort()
"""
    done, _ = run_script(tmp_path, text)
    assert done.returncode == -signal.SIGABRT
    stacks = tmp_path / "rank0.trace.stacks"
    assert "line 8 in <module>" in stacks.read_text()
    stack = read_crash(stacks)
    assert stack is not None
    assert stack.frames[0].line == 9


@pytest.mark.slow
def test_a_destroyed_group_is_freed(tmp_path: Path) -> None:
    """The threads of a group that is kept abort 4 of 80 ranks when the interpreter ends."""
    text = """
import weakref
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
groups = [weakref.ref(dist.group.WORLD), weakref.ref(dist.new_group([0]))]
dist.destroy_process_group()
print([each() for each in groups])
"""
    done, _ = run_script(tmp_path, text)
    assert done.stdout == "[None, None]\n", done.stderr


@pytest.mark.parametrize("status", [1, 0])
def test_the_exception_in_whose_handler_a_script_exits_is_recorded(
    status: int, tmp_path: Path
) -> None:
    text = f"import sys\ntry:\n    int('x')\nexcept ValueError as error:\n    sys.exit({status})\n"
    done, notes = run_script(tmp_path, text)
    assert done.returncode == status
    assert notes.ended is not None
    assert notes.ended.place is not None
    assert (notes.ended.how, notes.ended.place.line) == ("sys.exit", 5)
    assert (notes.raised is not None) is (status == 1)
    if notes.raised is not None and notes.raised.place is not None:
        assert (notes.raised.type, notes.raised.place.line) == ("ValueError", 3)


def test_the_line_at_which_a_thread_leaves_the_process_is_recorded(tmp_path: Path) -> None:
    text = """
import os, threading, time
def leave():
    os._exit(4)
if os.fork() == 0:
    os._exit(0)  # a child is not the rank
os.wait()
threading.Thread(target=leave).start()
time.sleep(60)
"""
    done, notes = run_script(tmp_path, text)
    assert done.returncode == 4
    assert notes.ended is not None
    assert notes.ended.place is not None
    assert (notes.ended.how, notes.ended.place.line) == ("os._exit", 4)


def test_an_exit_in_a_handler_after_the_script_is_not_its_end(tmp_path: Path) -> None:
    done, notes = run_script(tmp_path, "import atexit, os\natexit.register(os._exit, 3)\n")
    assert done.returncode == 3
    assert notes.ended is not None
    assert notes.ended.how == "end of script"


def test_the_end_of_a_long_message_is_recorded(tmp_path: Path) -> None:
    _, notes = run_script(tmp_path, "raise ValueError('a' + 'x' * 9000 + 'b')")
    assert notes.raised is not None
    assert notes.raised.text.startswith("a")
    assert notes.raised.text.endswith("b")
    assert len(notes.raised.text) < 7000


def test_spawned_children_find_the_script(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing as mp\n\ndef work(x):\n    return x * 2\n\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [21]))\n"
    )
    command = [sys.executable, "-m", "holdfast.recorder.bootstrap", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[42]\n", done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("10m", 600), ("1.5h", 5400), ("250ms", 0.25), (7, 7), ("3", 3)],
)
def test_budgets_are_durations(text: str | float, expected: float) -> None:
    assert parse_duration(text) == expected


def test_a_rank_that_waits_for_its_user_is_in_a_phase():
    phases = []

    def read(prompt):
        phases.append(recorder.current_phase())
        return prompt

    asks = bootstrap._user_may_take_time(read)
    assert asks("name? ") == "name? "
    assert phases == [("input()", 86400.0)]
    assert recorder.current_phase() == ("", 0.0)
