"""What logs show of a failure of no known cause: the lines that are new before its end."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.unknown_lines import find_changes, is_severe
from holdfast.diagnose.logs.reader import LogReader
from holdfast.diagnose.logs.samples import HEAD_BYTES, TAIL_BYTES
from tests.unit.diagnose.test_log_rules import verdict

EXIT = (
    "E0203 04:05:07.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
    "local_rank: 2 (pid: 82) of binary: /usr/bin/python\n"
)
UNKNOWN = "warp core: cannot reach the flux regulator at node7:4411"


def usual(lines: int) -> str:
    return "".join(
        f"loader: shard {number} of node{number % 8} opened in {number}.5 ms\n"
        for number in range(lines)
    )


def test_a_new_error_before_an_exit_code_is_shown_instead_of_a_guess() -> None:
    found = verdict(f"{usual(50)}[rank2]: {UNKNOWN}\n{EXIT}")
    assert found.root is not None
    assert (found.root.cause, found.root.subject.rank) == ("unclassified-failure", 2)
    assert UNKNOWN in found.root.message
    assert found.root.evidence[0].text == UNKNOWN
    assert [one.cause for one in found.consequences] == ["python-exception-on-one-rank"]


def test_without_a_new_error_an_exit_code_is_what_is_known() -> None:
    root = verdict(f"{usual(50)}{EXIT}").root
    assert root is not None
    assert root.cause == "python-exception-on-one-rank"


def test_a_job_that_a_rank_ended_without_a_reason_has_failed() -> None:
    end = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
    found = verdict(usual(50) + end)
    assert found.root is not None
    assert (found.root.cause, found.root.subject.rank) == ("unclassified-failure", 2)
    with_reason = verdict(f"{usual(50)}{UNKNOWN}\n{end}")
    assert with_reason.root is not None
    assert UNKNOWN in with_reason.root.message
    assert verdict(f"{usual(50)}{end}training finished\n").root is None


def test_an_error_that_is_printed_all_the_time_is_no_reason() -> None:
    noisy = "".join(f"probe {number} failed on node{number}\n" for number in range(60))
    root = verdict(f"{noisy}{EXIT}").root
    assert root is not None
    assert root.cause == "python-exception-on-one-rank"


def test_a_crash_is_shown_with_the_error_before_it() -> None:
    log = f"{usual(60)}{UNKNOWN}\n[rank2]: Fatal Python error: Segmentation fault\n"
    root = verdict(log).root
    assert root is not None
    assert root.cause == "segfault-in-worker"
    assert UNKNOWN in [fact.text for fact in root.evidence]


def test_a_new_error_at_the_end_of_the_log_is_no_success() -> None:
    steps = "".join(f"step {number} loss 2.5\n" for number in range(50))
    found = verdict(steps + UNKNOWN + "\n")
    assert found.root is None
    assert [one.cause for one in found.suspects] == ["unclassified-failure"]
    for later in ("step 51 loss 2.4\n", "training finished\n"):
        assert not verdict(f"{steps}{UNKNOWN}\n{later}").suspects


def test_the_line_of_one_log_only_is_chosen() -> None:
    logs = [usual(50) + "pipeline stalled, retry failed\n" for _ in range(4)]
    logs[2] += UNKNOWN + "\n"
    names = tuple(f"rank{rank}.log" for rank in range(4))
    found = verdict(*logs, names=names)
    assert [(one.message.endswith(UNKNOWN), one.subject.rank) for one in found.suspects] == [
        (True, 2)
    ]


def test_words_of_an_error() -> None:
    for text in (UNKNOWN, "E0203 worker lost", "bind: permission denied", "foo.BarError: x"):
        assert is_severe(text)
    for text in ("0 errors, 3 warnings", "connected", "errors: 0"):
        assert not is_severe(text)


@given(st.lists(st.text("ab \n\r1", max_size=40), max_size=60), st.sampled_from((0, 7, 300, 4000)))
def test_samples_have_the_lines_of_the_log(texts: list[str], filler: int) -> None:
    lines = [*usual(filler).splitlines(), *"\n".join(texts).replace("\r", "").split("\n"), UNKNOWN]
    reader = LogReader()
    reader.add("job.log", io.BytesIO("\n".join(lines).encode()))
    facts = reader.facts()
    sample = facts.samples[0]
    assert len(sample.head) <= HEAD_BYTES
    assert len(sample.tail) <= TAIL_BYTES
    changed = find_changes(LogIndex(facts))
    assert changed[-1].line.text == UNKNOWN
    assert changed[-1].line.number == len(lines)
