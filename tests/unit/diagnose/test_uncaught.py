"""Logs with an uncaught exception, a fatal signal or a failure table always have a root cause.

The lines have the formats of CPython, torch, torchrun, Slurm, Open MPI and bash.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.findings import Finding
from holdfast.diagnose.logs.bounded_signals import MAX_TRACEBACKS
from tests.unit.diagnose.test_log_rules import verdict

RAISED = ("python-exception-on-one-rank", "python-exception-all-ranks")
#: Exceptions that look like echoes of another failure.
LIKE_ECHOES = (
    "torch.distributed.DistBackendError: NCCL timeout after 1800 seconds",
    "RuntimeError: Timed out initializing process group",
    "TimeoutError: NCCL操作超时",
    "RuntimeError: NCCL communicator was aborted",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub.example', port=443): Read timed out.",
    "EOFError: Ran out of input",
    "subprocess.TimeoutExpired: Command '['nvidia-smi']' timed out after 30 seconds",
)
OTHERS = (
    "KeyError: 'label'",
    "AssertionError",
    "StopIteration",
    "_queue.Empty",
    "struct.error: unpack requires 4 bytes",
    "BadShard: 17",
    "job.data.BadShard",
    "RuntimeWarning: overflow",
    "torch.OutOfMemoryError: CUDA out of memory.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "zipfile.BadZipFile: File is not a zip file",
    "loader.<locals>.BadShard: 17",
    "RuntimeError: two lines,\nof which the second stands alone",
    "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 2.",
    "RuntimeError: Caught KeyError in DataLoader worker process 0.",
    "Exception",
    "ValueError: ",
)
TORCHRUN = "torch/distributed/elastic/multiprocessing/api.py:869]"
STEPS = "".join(f"step {step} / 90 loss 2.0\n" for step in (1, 2))
LATER_STEPS = "".join(f"step {step} / 90 loss 2.0\n" for step in (3, 4, 5, 6))
COMMUNICATOR_FREED = (
    "n1:5:9 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 10 - Abort COMPLETE\n"
)


def traceback(error: str, rank: int | None = None, *, cut: bool = False) -> str:
    """Return a traceback of CPython with torch's rank prefix, optionally ``cut`` off before its end."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 60, in <module>',
        "    main()",
        '  File "/job/train.py", line 41, in step',
        "    use(x)",
        "    ^^^^^^",
        *([] if cut else error.split("\n")),
    )
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in lines)


def torchruns_line(code: int) -> str:
    """Return what torchrun prints as soon as a process fails."""
    return f"E0203 04:05:07.000000 77 {TORCHRUN} failed (exitcode: {code}) local_rank: 1 (pid: 82) of binary: python\n"


def torchruns_table(code: int) -> str:
    """Return what torchrun prints at its end; the last line names a signal."""
    known = -code in set(signal.Signals)
    why = (
        f"Signal {-code} ({signal.Signals(-code).name}) received by PID 82"
        if known
        else "To enable traceback see:"
    )
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=======\ntrain.py FAILED\n-------\n"
        "Failures:\n  <NO_OTHER_FAILURES>\n-------\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-02-03_04:05:06\n  host      : n1\n  rank      : 1 (local_rank: 1)\n"
        f"  exitcode  : {code} (pid: 82)\n  error_file: <N/A>\n  traceback : {why}\n=======\n"
    )


def spawned(code: int) -> str:
    """Return what torch.multiprocessing.spawn raises."""
    known = -code in set(signal.Signals)
    how = f"signal {signal.Signals(-code).name}" if known else f"exit code {code}"
    return f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with {how}\n"


def deepspeeds_line(code: int) -> str:
    """Return what DeepSpeed's launcher prints."""
    return f"[2026-02-03 04:05:06,027] [ERROR] [launch.py:325:sigkill] ['fit'] exits with return code = {code}\n"


EXIT_CODES = st.one_of(
    st.integers(1, 255), st.sampled_from([-number for number in signal.Signals if number < 32])
)
FAILED = st.builds(
    lambda write, code: write(code),
    st.sampled_from([torchruns_line, torchruns_table, spawned, deepspeeds_line]),
    EXIT_CODES,
)
FATAL = (
    "Segmentation fault (core dumped)",
    "Fatal Python error: Segmentation fault",
    "Fatal Python error: Aborted",
    "Fatal Python error: Floating point exception",
    "Fatal Python error: Illegal instruction",
    "Fatal Python error: none_dealloc: deallocating None",
    "Fatal Python error: Bus error",
    "Killed",
    "run.sh: line 5: 12345 Killed                  python train.py",
    "run.sh: line 5: 12345 Aborted                 (core dumped) python train.py",
    "run.sh: line 5: 12345 Floating point exception(core dumped) python train.py",
    "Illegal instruction (core dumped)",
    "Bus error (core dumped)",
    "Trace/breakpoint trap (core dumped)",
    "terminate called after throwing an instance of 'c10::Error'",
    "*** SIGSEGV received at time=1770091506 on cpu 3 ***",
    "*** SIGFPE received at time=1770091506 on cpu 3 ***",
    "Signal: Floating point exception (8)",
    "[Tue Feb  3 04:05:06 2026] python3.11[81]: segfault at 0 ip 00007f1 sp 00007f2 error 4 in libtorch_cpu.so",
    "[Tue Feb  3 04:05:06 2026] traps: pt_main_thread[81] trap invalid opcode ip:7f1 sp:7f2 error:0",
    "srun: error: n1: task 1: Floating point exception (core dumped)",
    "srun: error: n1: task 1: Killed",
    "srun: error: n1: task 1: Illegal instruction (core dumped)",
    "srun: error: n1: task 1: Exited with exit code 255",
    "mpirun noticed that process rank 1 with PID 77 on node n3 exited on signal 8 (Floating point exception).",
    "mpirun noticed that process rank 1 with PID 77 on node n3 exited on signal 4.",
)


def root(*logs: str, names: tuple[str, ...] = ()) -> Finding:
    """Return the root cause in the logs of a failed job."""
    found = verdict(*logs, names=names).root
    assert found is not None, "nothing failed"
    return found


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_an_apparent_echo_is_the_root_without_another_cause(error: str, rank: int | None) -> None:
    found = root(STEPS + traceback(error, rank))
    assert (found.cause, found.subject.rank) == ("python-exception-on-one-rank", rank)
    assert (found.subject.file, found.subject.line) == ("/job/train.py", 41)
    assert [fact.text for fact in found.evidence] == [error]
    assert error[:60] in found.message


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_an_apparent_echo_on_all_ranks(error: str) -> None:
    found = root(STEPS + "".join(traceback(error, rank) for rank in range(4)))
    assert (found.cause, found.subject.rank) == ("python-exception-all-ranks", 0)
    assert len(found.evidence) == 4
    assert root(STEPS + traceback(error) * 4).cause == "python-exception-all-ranks"


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_an_echo_of_a_logged_cause_is_not_the_root(error: str) -> None:
    echoes = "".join(traceback(error, rank) for rank in (0, 2, 3))
    raised = verdict(STEPS + echoes + traceback("KeyError: 'label'", 1))
    assert raised.root is not None
    assert (raised.root.cause, raised.root.subject.rank) == ("python-exception-on-one-rank", 1)
    assert "KeyError" in raised.root.message
    killed = verdict(STEPS + echoes + torchruns_line(-9))
    assert killed.root is not None
    assert killed.root.cause == "host-oom-killed"
    assert not {one.cause for one in (*killed.suspects, *killed.consequences)} & {*RAISED}


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_the_failure_table_is_not_the_root_if_the_exception_is_logged(error: str) -> None:
    found = root(STEPS + traceback(error, 1) + torchruns_line(1) + torchruns_table(1))
    assert (found.cause, found.subject.rank, found.subject.line) == (
        "python-exception-on-one-rank",
        1,
        41,
    )


def test_the_last_exception_of_a_chain_is_cited() -> None:
    chain = (
        traceback("EOFError: Ran out of input")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("RuntimeError: NCCL communicator was aborted")
    )
    assert "NCCL communicator was aborted" in root(STEPS + chain).message


def test_a_traceback_within_torch_has_its_innermost_frame() -> None:
    log = traceback(LIKE_ECHOES[3]).replace(
        "/job/train.py", "/usr/lib/python3.11/site-packages/torch/nn/x.py"
    )
    assert root(STEPS + log).subject.line == 41


@pytest.mark.parametrize("error", [*LIKE_ECHOES, *OTHERS])
def test_later_progress_shows_that_an_exception_was_caught(error: str) -> None:
    for rank in (None, 0):
        caught = "ERROR:root:reading the shard failed, trying again\n" + traceback(error, rank)
        assert verdict(STEPS + caught + LATER_STEPS).root is None
        assert verdict(STEPS + caught + "training finished\n").root is None


@pytest.mark.parametrize("error", LIKE_ECHOES)
@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("ERROR:root:reading the shard failed\n", ""),
        ("2026-02-03 04:05:06,789 [ERROR] reading the shard failed\n", ""),
        ("", "retrying in 5 s\n"),
        ("the shard was not read, trying again\n", ""),
    ],
)
def test_one_step_is_enough_after_a_logged_or_retried_exception(
    error: str, above: str, below: str
) -> None:
    step = "step 3 / 90 loss 2.0\n"
    assert verdict(STEPS + above + traceback(error) + below + step).root is None
    assert root(STEPS + above + traceback(error) + below).cause == "python-exception-on-one-rank"
    assert root(STEPS + traceback(error) + step).cause == "python-exception-on-one-rank"


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_progress_after_a_restart_shows_recovery(error: str) -> None:
    failed = STEPS + traceback(error, 1) + torchruns_line(1)
    assert verdict(failed + LATER_STEPS).root is None
    assert verdict(failed + LATER_STEPS + "training finished\n").root is None
    assert verdict(failed + LATER_STEPS + failed).root is not None


@pytest.mark.parametrize(
    "where", ["Exception ignored in: <function Loader.__del__ at 0x7f>", "--- Logging error ---"]
)
@pytest.mark.parametrize("error", [*LIKE_ECHOES, "AssertionError: can only test a child process"])
def test_an_exception_that_python_ignored_is_no_cause(where: str, error: str) -> None:
    log = f"{STEPS}training finished\n{where}\n{traceback(error)}"
    assert verdict(log).root is None
    assert root(log + traceback(error)).cause == "python-exception-on-one-rank"


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_a_thread_that_fails_after_training_is_no_cause(error: str) -> None:
    thread = "Exception in thread Thread-4 (_pin_memory_loop):\n" + traceback(error)
    assert verdict(STEPS + "training finished\n" + thread).root is None
    assert root(STEPS + thread).cause == "python-exception-on-one-rank"


def test_an_error_in_a_single_line_is_no_traceback() -> None:
    assert (
        verdict(
            f"{STEPS}TimeoutError: the mirror did not answer, trying another\nEOFError: 1 of 3\n"
        ).root
        is None
    )


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_steps_of_another_rank_show_no_recovery_unless_training_finished(error: str) -> None:
    others = "".join(f"[rank0]: {line}\n" for line in LATER_STEPS.splitlines())
    assert root(STEPS + traceback(error, 1) + others).subject.rank == 1
    assert (
        verdict(STEPS + traceback(error, 1) + others + "[rank0]: training finished\n").root is None
    )


def test_the_last_of_many_tracebacks_is_kept() -> None:
    retries = (traceback("KeyError: 'label'") + LATER_STEPS) * (MAX_TRACEBACKS + 40)
    assert verdict(retries).root is None
    assert "NCCL communicator was aborted" in root(retries + traceback(LIKE_ECHOES[3])).message


BEFORE = st.sampled_from(
    ["", STEPS, STEPS + LATER_STEPS, "training finished\n", STEPS + "epoch 3: DONE\n"]
)
AFTER = st.sampled_from(
    ["", COMMUNICATOR_FREED, "job script: DONE\n", "[rank0]: step 7 / 90 loss 2.0\n"]
)
CAUGHT = st.sampled_from(
    ["", traceback("KeyError: 3") + STEPS * 2, traceback(LIKE_ECHOES[5]) + STEPS * 2]
)
UNCAUGHT = st.builds(
    lambda error, rank, cut: traceback(error, rank, cut=cut),
    st.sampled_from([*LIKE_ECHOES, *OTHERS]),
    st.sampled_from([None, 1, 12]),
    st.booleans(),
)


@settings(deadline=None)  # the machine may be busy
@given(BEFORE, CAUGHT, UNCAUGHT, AFTER)
def test_an_uncaught_traceback_at_the_end_has_a_root_cause(
    before: str, caught: str, uncaught: str, after: str
) -> None:
    assert root(before + caught + uncaught + after).evidence


@settings(deadline=None)  # the machine may be busy
@given(BEFORE, CAUGHT, st.one_of(FAILED, st.sampled_from([f"{line}\n" for line in FATAL])), AFTER)
def test_a_fatal_signal_or_failure_table_has_a_root_cause(
    before: str, caught: str, failure: str, after: str
) -> None:
    assert root(before + caught + failure + after).evidence


@pytest.mark.parametrize("error", LIKE_ECHOES)
def test_a_logged_exception_was_caught_if_another_log_shows_the_end(
    error: str,
) -> None:
    names, done = ("0/stderr.log", "0/stdout.log"), STEPS + LATER_STEPS + "training finished\n"
    assert verdict("ERROR:root:failed\n" + traceback(error), done, names=names).root is None
    assert root("ERROR:root:failed\n" + traceback(error), STEPS + LATER_STEPS, names=names).evidence
    assert root(traceback(error), done, names=names).evidence


@pytest.mark.parametrize(
    "line", ["run.sh: line 5: 12345 Terminated              python train.py", spawned(-15)]
)
def test_a_termination_is_the_root_unless_training_finished(line: str) -> None:
    assert root(f"{STEPS}{line}\n").cause == "signal-sigterm-preempted"
    assert root(f"{line}\n", STEPS + LATER_STEPS, names=("0/stderr.log", "0/stdout.log")).evidence


@settings(deadline=None)  # the machine may be busy
@given(
    st.one_of(
        FAILED,
        st.sampled_from([f"{line}\n" for line in FATAL]),
        st.sampled_from(OTHERS).map(traceback),
    )
)
def test_steps_in_an_unordered_log_show_no_recovery(failure: str) -> None:
    assert root(failure, STEPS + LATER_STEPS, names=("0/stderr.log", "0/stdout.log")).evidence


@settings(deadline=None)  # the machine may be busy
@given(st.one_of(EXIT_CODES.map(torchruns_line), st.sampled_from(LIKE_ECHOES).map(traceback)))
def test_attempts_in_different_logs_are_ordered(failure: str) -> None:
    names = ("run/attempt_0/1/stderr.log", "run/attempt_1/0/stdout.log")
    assert verdict(STEPS + failure, STEPS + LATER_STEPS, names=names).root is None
    assert verdict(STEPS + LATER_STEPS, failure, names=(names[0], names[1])).root is not None


def test_a_restart_in_the_launchers_log_and_a_finished_training() -> None:
    done = STEPS + LATER_STEPS + "training finished\n"
    assert verdict(torchruns_line(1), done, names=("job.err", "job.out")).root is None
    assert (
        verdict(torchruns_line(1) + torchruns_table(1), done, names=("job.err", "job.out")).root
        is not None
    )
