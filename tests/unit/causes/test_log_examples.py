"""The real scanner reads every example line of the catalogue, and the real rules judge it."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import pytest

from holdfast.causes import all_causes
from holdfast.causes.process.no_failure import NO_FAILURE
from holdfast.core.findings import Cause, Verdict
from holdfast.core.log_signals import LogSignal
from holdfast.diagnose import log_rules
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs import LogFacts, reader
from holdfast.diagnose.logs.signals import ROWS, general

#: Output of torchrun after the failure of a rank.
LAUNCHER_TABLE = (
    "W0203 04:05:06.000000 77 torch/distributed/elastic/multiprocessing/api.py:897] Sending "
    "process 81 closing signal SIGTERM\n"
    "E0203 04:05:07.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: 1) local_rank: 2 (pid: 82) of binary: /usr/bin/python\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)
SIGNALS = [(cause, signal) for cause in all_causes() for signal in cause.signals]
FAILURES = [cause for cause in all_causes() if cause is not NO_FAILURE]


def parametrize(*names: str, values: list[tuple[object, ...]]) -> pytest.MarkDecorator:
    """Parametrize by tuples; the test id is the name of the cause or of the signal."""
    ids = [f"{value[0].name}-{number}" for number, value in enumerate(values)]  # type: ignore[attr-defined]
    return pytest.mark.parametrize(names, values, ids=ids)


def facts_of(log: str) -> LogFacts:
    raw = f"{log}\n".encode()
    return reader.read_logs(
        [EvidenceFile("log.txt", EvidenceKind.LOG, len(raw), lambda: io.BytesIO(raw))]
    )


def verdict_of(log: str) -> Verdict:
    return judge(facts_of(log))


def names_in(log: str) -> set[str]:
    return {signal.name for signal in facts_of(log).signals}


@parametrize(
    "signal",
    "cause",
    "example",
    values=[(signal, cause, log) for cause, signal in SIGNALS for log in signal.examples],
)
def test_an_example_has_its_signal_and_names_its_cause(
    signal: LogSignal, cause: Cause, example: str
) -> None:
    assert signal.name in names_in(example)
    root = verdict_of(f"{example}\n{LAUNCHER_TABLE}").root
    assert root is not None
    assert root.cause == cause.name
    assert root.evidence


@parametrize(
    "signal",
    "example",
    values=[(signal, log) for _, signal in SIGNALS for log in signal.counter_examples],
)
def test_a_counter_example_names_no_cause(signal: LogSignal, example: str) -> None:
    assert verdict_of(example).root is None, signal.name


@parametrize(
    "cause",
    "example",
    values=[(cause, log) for cause in FAILURES for log in cause.log_examples],
)
def test_a_log_example_names_its_cause(cause: Cause, example: str) -> None:
    root = verdict_of(f"{example}\n{LAUNCHER_TABLE}").root
    assert root is not None
    assert root.cause == cause.name
    assert root.evidence


@pytest.mark.parametrize("log", [*NO_FAILURE.log_examples, ""])
def test_a_healthy_log_names_no_cause(log: str) -> None:
    assert verdict_of(log).root is None


@parametrize("signal", values=[(signal,) for _, signal in SIGNALS])
def test_a_signal_is_complete(signal: LogSignal) -> None:
    assert bool(signal.examples) == bool(signal.patterns), "patterns need an example line"
    assert 0 < signal.confidence < 1
    assert signal.sentence == signal.sentence.strip()
    assert not signal.sentence.endswith(".")
    for pattern in signal.patterns:
        expression = pattern if isinstance(pattern, str) else pattern.expression
        re.compile(expression)
        assert not re.search(r"\(\?(=|!|<=|<!)|\\[1-9]|\(\?P=", expression), expression


def test_signals_of_causes_and_general_signals_have_different_names() -> None:
    assert {signal.name for _, signal in SIGNALS} & {row.name for row in general.ROWS} == set()


def test_rules_refer_to_signals_that_exist() -> None:
    known = {row.name for row in ROWS} | {signal.name for _, signal in SIGNALS}
    names = {
        node.value
        for file in Path(log_rules.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", node.value)
    }
    assert len(names) > 40
    assert names - known == set()
