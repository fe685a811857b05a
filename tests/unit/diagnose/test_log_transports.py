"""Every form in which a log is passed on gives the verdict of the plain log."""

from __future__ import annotations

import io
import json
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnose.logs import carried_logs
from holdfast.diagnose.logs.carried_logs import LogTransport
from holdfast.diagnose.logs.learned_prefixes import LearnedPrefixes
from holdfast.diagnose.pipeline import DiagnosisResult, diagnose
from holdfast.diagnose.transports import FirstLines, recognition
from tests.hypothesis_profiles import examples
from tests.unit.diagnose.log_transports import FORMS, LOGS


def result(folder: Path, raw: bytes) -> DiagnosisResult:
    """Return the diagnosis of a file with these bytes."""
    path = folder / "job.out"
    path.write_bytes(raw)
    return diagnose([str(path)])


def summary(found: DiagnosisResult) -> tuple[int, str, int | None, int | None, str]:
    """Return exit status, and cause, rank, source line and message of the root cause."""
    root = found.verdict.root
    if root is None:
        return found.exit_status, "", None, None, ""
    return found.exit_status, root.cause, root.subject.rank, root.subject.line, root.message


@cache
def plain_summary(log: str) -> tuple[int, str, int | None, int | None, str]:
    """Return the summary of the plain log."""
    with TemporaryDirectory() as folder:
        return summary(result(Path(folder), FORMS["plain"](LOGS[log])))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("exception", (1, "python-exception-on-one-rank", 1, 41)),
        ("timeout", (1, "rank-missing-collective", 2, None)),
        ("oom-kill", (1, "host-oom-killed", 2, None)),
        ("unranked", (1, "python-exception-on-one-rank", None, 41)),
        ("healthy", (0, "", None, None)),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_the_verdict_is_that_of_the_plain_log(
    tmp_path: Path, form: str, log: str, expected: tuple[int, str, int | None, int | None]
) -> None:
    plain = plain_summary(log)
    assert plain[:-1] == expected
    assert summary(result(tmp_path, FORMS[form](LOGS[log]))) == plain


def lines_in(raw: bytes, transport: LogTransport | None = None) -> list[tuple[int, str]]:
    """Return the lines that ``raw`` carries, with their line numbers in the file."""
    log = (transport or LogTransport()).open(io.BytesIO(raw))
    parts = []
    while data := log.read(1 << 20):
        parts.append(data)
    lines = b"".join(parts).decode(errors="replace").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    return [(log.origin(at).number, line) for at, line in enumerate(lines, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_lines_do_not_depend_on_chunks(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form.startswith("utf-16"):  # decoded by the file's opener
        return
    raw = FORMS[form](LOGS["exception"])
    expected = lines_in(raw)
    monkeypatch.setattr(carried_logs, "_CHUNK_BYTES", 1 << 13)
    assert lines_in(raw) == expected


def test_a_first_line_with_the_length_of_a_terminal_is_whole() -> None:
    first = "Training a model of 7 layers on a set of 41 files, with seed 3 and precision b16"
    lines = [first, "loaded 41 files", "step 1 loss 2.0", "step 2 loss 1.9"]
    assert len(first) == 80
    assert [line for _, line in lines_in("\n".join(lines).encode())] == lines


@settings(max_examples=examples(60))  # the machine may be busy
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_a_growing_log_has_the_same_lines(form: str, draw: st.DataObject) -> None:
    raw = FORMS[form](LOGS["exception"])
    if form.startswith(("utf-16", "wrapped")) or form == "cloudwatch-newest-first":
        return
    ends = [at + 1 for at, byte in enumerate(raw) if byte == 10] or [len(raw)]
    cut = draw.draw(st.sampled_from(ends[len(ends) // 2 :]))
    transport = LogTransport()
    found = lines_in(raw[:cut], transport) + lines_in(raw[cut:], transport)
    expected = lines_in(raw)
    missing = {line for _, line in expected} - {line for _, line in found}
    assert len(missing) <= 1  # a line that was cut there
    assert [number for number, _ in found] == sorted(number for number, _ in found)


@given(
    st.binary(max_size=300)
    | st.lists(
        st.sampled_from(["{", "}", "[", "]", '"message"', '"', ":", "a", ",", "\n", "\\", "> "])
    ).map(lambda parts: "".join(parts).encode())
)
def test_arbitrary_bytes_never_lose_a_traceback(raw: bytes) -> None:
    carried = lines_in(raw.replace(b"\x1b", b"") + b"\nTraceback (most recent call last):\n")
    assert "Traceback (most recent call last):" in "\n".join(line for _, line in carried)


def test_memory_does_not_grow_with_a_carried_log() -> None:
    record = json.dumps(
        {"log": "step 3/90 loss 2.0\n", "stream": "stderr", "time": "2026-03-01T00:00:00Z"}
    )

    class Endless(io.RawIOBase):
        left = 4

        def read(self, _size: int = -1) -> bytes:
            self.left -= 1
            return (record.encode() + b"\n") * 2000 if self.left >= 0 else b""

    log = LogTransport().open(Endless())
    tracemalloc.start()
    count = 0
    while data := log.read(1 << 18):
        count += data.count(b"\n")
        assert log.origin(count).number == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == log.lines == 8000
    assert peak < 4 << 20


def test_a_prefix_is_learned_from_two_different_lines_after_it() -> None:
    prefixes = LearnedPrefixes()
    assert prefixes.split("a-1 main KeyError: 3") == ("", "a-1 main KeyError: 3")
    prefixes.split("a-1 main Traceback (most recent call last):")
    assert prefixes.split("a-2 main KeyError: 3")[1] == "a-2 main KeyError: 3"
    assert (
        prefixes.split('a-1 main   File "/job/a.py", line 3, in f')[1]
        == '  File "/job/a.py", line 3, in f'
    )
    assert prefixes.split("a-27 main KeyError: 3") == ("a-27 main ", "KeyError: 3")
    assert prefixes.split("step 5: KeyError: 3")[1] == "step 5: KeyError: 3"


@pytest.mark.parametrize(
    "log",
    [
        "".join(
            f"{name:<72}| loss {number}\n" for number, name in enumerate(("alpha", "beta", "gamma"))
        ),
        "> a\n",
        "a: 1\nb: 2\n",
        "message\nno table\n",
        '{"loss": 2.0, "step": 3}\n',
        "x = [1, 2,\n3]\n",
        "C:\\new\\nothing\\nowhere\n",
        "AT&T\n",
        f"UserWarning: lr_scheduler.step() before {'o' * 20}.step()\nstep 3/90\n" * 5 + "Killed\n",
    ],
)
def test_a_plain_log_is_not_changed(log: str) -> None:
    assert "".join(f"{line}\n" for _, line in lines_in(log.encode())) == log


#: Parts of lines that recognizers look for, and of which lines of a logger consist.
PARTS = ("2026-03-01 00:00:01", "[rank3]: ", "[E0301 12:", "T00:00:00.123Z stdout F ", ",message,")
PARTS += (
    "> ",
    "&amp;",
    "\\n",
    '{"log": "x"}',
    "[",
    "word ",
    "é",
    " " * 60,
    "File x\t",
    "x" * 90,
    "\r",
)


@given(
    st.lists(
        st.builds(
            lambda start, parts: start + "".join(parts),
            st.sampled_from(PARTS[:3]),
            st.lists(st.sampled_from(PARTS), max_size=8),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_recognizer_claims_what_is_from_a_logger(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    if recognition.is_from_logger(data):
        first = FirstLines(data)
        assert not any(recognizer(first) for recognizer in recognition.RECOGNIZERS)


def test_lines_of_a_record_cite_its_line(tmp_path: Path) -> None:
    found = result(tmp_path, FORMS["json-exc-info"](LOGS["exception"])).verdict.root
    assert found is not None
    assert found.evidence[0].origin.endswith(":21")
