"""No log with an uncaught exception, a fatal signal or a failure table is said to be healthy.

Random logs of step lines, noise and one failure, in every form in which logs are passed on.
"""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.findings import Finding
from holdfast.diagnose.evidence.file_types import detect_encoding
from holdfast.diagnose.evidence.streams import Utf8Stream
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs.reader import LogReader, create_scanner
from tests.hypothesis_profiles import examples
from tests.unit.diagnose.log_transports import FORMS, Line
from tests.unit.diagnose.test_uncaught import (
    FATAL,
    LIKE_ECHOES,
    OTHERS,
    deepspeeds_line,
    torchruns_line,
    torchruns_table,
)

SCANNER = create_scanner()
STEPS = (
    "step {}/90 loss 2.0",
    "Epoch: [3]  [ {}/500]  eta: 0:10:00  lr: 0.001000  loss: 2.1",
    " iteration {}/ 1000 | lm loss: 2.3E+00 |",
    "{{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': {}}}",
)
NOISE = (
    "",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "UserWarning: lr_scheduler.step() was called before optimizer.step()",
    "saving checkpoint to /checkpoints/step-3",
    "memory: allocated 20.1 GiB",
    "n1:5:9 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 10 - Init COMPLETE",
    (
        "[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - "
        "Address family not supported by protocol)."
    ),
)
IN_OTHER_LANGUAGES = (
    "ValueError: 错误: 形状不匹配",
    "RuntimeError: 进程组初始化失败",
    "OSError: [Errno 5] Eingabe-/Ausgabefehler: '/data'",
    "PermissionError: [Errno 13] Permission non accordée: '/x'",
    "job.data.Ошибка: плохо",
    "壊れたデータ: 17",
)
UNUSUAL = (
    "SystemError: returned a result with an exception set",
    "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients",
    "asyncio.exceptions.CancelledError",
    "RecursionError: maximum recursion depth exceeded",
    "ExceptionGroup: several (2 sub-exceptions)",
    "zmq.error.Again: Resource temporarily unavailable",
    "ValueError: training finished too early",
    "DeprecationWarning: no longer supported",
    "Error: unknown",
)
ERRORS = tuple(
    error for error in (*OTHERS, *LIKE_ECHOES, *IN_OTHER_LANGUAGES, *UNUSUAL) if "\n" not in error
)
#: The forms whose lines a test can make of any log.
ONE_TO_ONE = sorted(FORMS.keys() - {"json-exc-info"})
#: Lost line feeds and broken words show in logs of a few lines only.
SHORT = (
    "glued-by-spaces",
    "glued-without-spaces",
    "literal-newlines",
    "python-repr",
    "wrapped-by-editor",
)
WITH_LINES = [form for form in ONE_TO_ONE if form not in SHORT]
#: This word is a signal only if it is the whole line: not after an unknown prefix.
NAMED = [[line] for line in FATAL if line != "Killed"]
REPORTED = [
    write(code).splitlines()
    for write in (torchruns_line, torchruns_table, deepspeeds_line)
    for code in (1, -9, -11)
]


def root(raw: bytes) -> Finding | None:
    """Return the root cause in one log."""
    reader, encoding = LogReader(SCANNER), detect_encoding(raw) or "utf-8"
    stream = io.BytesIO(raw)
    reader.add("job.out", stream if encoding == "utf-8" else Utf8Stream(stream, encoding))
    return judge(reader.facts()).root


def traceback(error: str) -> list[str]:
    """Return an uncaught exception, as CPython prints it."""
    return [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 60, in <module>',
        "    main()",
        '  File "/job/train.py", line 41, in step',
        "    use(batch)",
        error,
    ]


def log_with(
    failure: list[str], steps: list[str], after: list[str], rank: int | None
) -> tuple[Line, ...]:
    """Return a log of ``steps`` that ends with ``failure`` and noise."""
    before = [text.format(number) for number, text in enumerate(steps, 1)]
    texts = [*before, *failure, *after]
    return tuple(Line(rank, 1_772_323_200.0 + at, text) for at, text in enumerate(texts))


LOGS = {
    "steps": st.lists(st.sampled_from((*STEPS, *NOISE[:5])), max_size=12),
    "after": st.lists(st.sampled_from(NOISE), max_size=3),
    "rank": st.sampled_from([None, 1]),
}


@pytest.mark.slow
@settings(max_examples=examples(150))  # the machine may be busy
@given(st.sampled_from(ERRORS), st.fixed_dictionaries(LOGS), st.sampled_from(ONE_TO_ONE))
def test_an_uncaught_traceback_in_any_form(error: str, parts: dict[str, object], form: str) -> None:
    found = root(FORMS[form](log_with(traceback(error), **parts)))
    assert found is not None, form
    if found.cause == "python-exception-on-one-rank" and form in WITH_LINES:
        assert (found.subject.file, found.subject.line) == ("/job/train.py", 41)
        assert error.split(":", 1)[0] in found.message


@pytest.mark.slow
@settings(max_examples=examples(100))  # the machine may be busy
@given(
    st.sampled_from([*NAMED, *REPORTED]), st.fixed_dictionaries(LOGS), st.sampled_from(WITH_LINES)
)
def test_a_fatal_signal_or_failure_table_in_any_form(
    failure: list[str], parts: dict[str, object], form: str
) -> None:
    assert root(FORMS[form](log_with(failure, **parts))) is not None, form


RICH = """╭───────────────────── Traceback (most recent call last) ─────────────────────╮
│ /job/train.py:60 in <module>                                                │
│                                                                             │
│ ❱ 60 main()                                                                 │
│                                                                             │
│ /job/train.py:41 in step                                                    │
│                                                                             │
│ ❱ 41     use(batch)                                                         │
╰─────────────────────────────────────────────────────────────────────────────╯
"""
IPYTHON = """---------------------------------------------------------------------------
BadShard                                  Traceback (most recent call last)
Cell In[3], line 5
      3 import job
----> 5 job.step(batch)

File /job/train.py:41, in step(batch)
     40 def step(batch):
---> 41     use(batch)

"""


@pytest.mark.parametrize("error", ["KeyError: 'x'", "BadShard: 17"])
@pytest.mark.parametrize("trace", [RICH, IPYTHON])
def test_tracebacks_of_rich_and_ipython(trace: str, error: str) -> None:
    found = root(f"step 3/90 loss 2.0\n{trace}{error}\n".encode())
    assert found is not None
    assert (found.cause, found.subject.line) == ("python-exception-on-one-rank", 41)
    assert error in found.message
