"""The results file of `holdfast chaos run`, and the page generated from it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import os_error_reason

SCHEMA = "holdfast/chaos/1"
MAX_BYTES = 16 << 20
_HEAD = """# Reliability

{note}
`holdfast chaos run` injects a fault into a real job and compares it with an undisturbed run. A job
passed if

- it ended at the right step with bit-identical weights;
- all losses of all attempts are bit-identical to those of the undisturbed run;
- no sample was skipped or used twice in the steps that count;
- every attempt resumed from the newest committed checkpoint that was not damaged since;
- no process and no shared memory was left behind;
- every verdict names the injected fault, and the first one also the rank;
- `holdfast history` shows the cause, the evidence and the decision for every failure.

If the recovery policy changes the computation, the undisturbed run computes the same: it skips the
same batches, uses as many micro-batches from the same step on, or is resubmitted with as many
ranks; the steps that count are compared.

`make chaos` runs all scenarios; `holdfast chaos run NAME` runs one on your own machine.
"""


#: Fields whose names in the file differ.
_FIELD_NAMES = {"violations": "wrong", "repeated_steps": "redone", "undisturbed_s": "peace_s"}


class ScenarioOutcome(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_FIELD_NAMES
):
    """The outcome of one scenario.

    ``violations`` is empty if the job passed; ``skipped`` is why it was not run. ``causes`` are
    those of its verdicts, ``repeated_steps`` the number of repeated steps, ``took_s`` the job's
    duration, ``undisturbed_s`` that of the undisturbed run. ``at`` is its end in Unix seconds.
    """

    name: str
    fault: str
    moment: str
    mode: str
    ranks: int
    hosts: int = 1
    causes: tuple[str, ...] = ()
    repeated_steps: int = 0
    took_s: float = 0.0
    undisturbed_s: float = 0.0
    violations: tuple[str, ...] = ()
    skipped: str = ""
    at: float = 0.0

    @property
    def passed(self) -> bool:
        """Return whether the scenario ran and no expectation was violated."""
        return not self.violations and not self.skipped


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All outcomes on one machine; ``at`` is the time of the newest in Unix seconds."""

    schema: str = SCHEMA
    at: float = 0.0
    machine: Mapping[str, str] = {}
    outcomes: tuple[ScenarioOutcome, ...] = ()

    def merged_with(
        self, newer: Iterable[ScenarioOutcome], at: float, machine: Mapping[str, str]
    ) -> Results:
        """Return these results with newer outcomes, which replace those of the same name."""
        both = {outcome.name: outcome for outcome in (*self.outcomes, *newer)}
        return replace(self, at=at, machine=machine, outcomes=tuple(both.values()))

    def select(self, known: Iterable[ScenarioOutcome]) -> Results:
        """Return outcomes for exactly the ``known`` scenarios, with their descriptions."""
        by_name = {outcome.name: outcome for outcome in self.outcomes}
        outcomes = (
            replace(by_name.get(each.name, each), fault=each.fault, moment=each.moment)
            for each in known
        )
        return replace(self, outcomes=tuple(outcomes))


def read_outcomes(path: Path) -> Results:
    """Read a results file; empty if it does not exist.

    Raises:
        InvalidValue: it was not written by holdfast.
        MissingFile: it cannot be read.
    """

    def invalid(problem: str) -> InvalidValue:
        step = "specify another file"
        return InvalidValue(f"the results file {path}", why=f"it {problem}", next_step=step)

    try:
        data = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return Results()
    except OSError as error:
        raise MissingFile(path, why=os_error_reason(error)) from error
    return decode_document(data, Results, schema=SCHEMA, max_bytes=MAX_BYTES, error=invalid)


def write(path: Path, results: Results) -> None:
    """Write the results atomically. Raises MissingFile."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def add_outcome(path: Path, outcome: ScenarioOutcome, machine: Mapping[str, str]) -> None:
    """Add one outcome to a results file; safe with concurrent writers.

    Raises:
        InvalidValue, MissingFile: as :func:`read_outcomes`, or the file cannot be written.
    """
    with _locked_folder(path.parent):
        write(path, read_outcomes(path).merged_with([outcome], outcome.at, machine))


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MissingFile(folder, why=os_error_reason(error)) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def render_page(results: Results, note: str) -> str:
    """Return the results page in Markdown."""
    day = time.strftime("%Y-%m-%d", time.gmtime(results.at))
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    passed = sum(outcome.passed for outcome in results.outcomes)
    failed = sum(bool(outcome.violations) for outcome in results.outcomes)
    skipped = len(results.outcomes) - passed - failed
    summary = f"Last run: {day}, {machine}. {passed} of {len(results.outcomes)} scenarios passed"
    summary += f", {failed} failed" if failed else ""
    summary += f", {skipped} not run.\n" if skipped else ".\n"
    modes = dict.fromkeys((outcome.mode, outcome.hosts) for outcome in results.outcomes)
    tables = [_mode_table(results, mode, hosts) for mode, hosts in modes]
    head = _HEAD.replace("{note}", note.rstrip())
    return "\n".join([head, summary, *tables, *_failure_list(results)]).rstrip() + "\n"


def _mode_table(results: Results, mode: str, hosts: int) -> str:
    outcomes = [each for each in results.outcomes if (each.mode, each.hosts) == (mode, hosts)]
    where = "one host" if hosts == 1 else f"{hosts} hosts"
    moments = list(dict.fromkeys(outcome.moment for outcome in outcomes))
    faults = list(dict.fromkeys(outcome.fault for outcome in outcomes))
    at = {(outcome.fault, outcome.moment): outcome for outcome in outcomes}
    columns = [moment for moment in moments if sum((fault, moment) in at for fault in faults) > 1]
    lines = [
        f"## {mode}, {outcomes[0].ranks} ranks on {where}\n",
        "Duration of the job in seconds, and the causes named by the verdicts.\n",
        f"| fault | {' | '.join(columns)} | other moments | causes |",
        f"|{' --- |' * (len(columns) + 3)}",
    ]
    for fault in faults:
        cells = [_cell(at.get((fault, moment))) for moment in columns]
        others = "; ".join(
            f"{moment}: {_cell(at[fault, moment])}"
            for moment in moments
            if moment not in columns and (fault, moment) in at
        )
        causes = {cause for each in outcomes if each.fault == fault for cause in each.causes}
        named = ", ".join(sorted(causes))
        lines.append(f"| {fault} | {' | '.join(cells)} | {others} | {named} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: ScenarioOutcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.skipped:
        return "not run"
    took = f"{outcome.took_s:.0f}"
    return took if outcome.passed else f"**failed** ({took})"


def _failure_list(results: Results) -> Iterator[str]:
    names_by_reason: dict[str, list[str]] = {}
    for outcome in results.outcomes:
        if not outcome.passed:
            why = outcome.skipped or "; ".join(outcome.violations)
            names_by_reason.setdefault(why, []).append(f"`{outcome.name}`")
    if names_by_reason:
        yield "## Failed or not run\n"
        lines = (f"- {', '.join(names)}: {why}\n" for why, names in names_by_reason.items())
        yield "".join(lines)
