"""The page of `make chaos` results, generated from the results file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from holdfast.chaos.reliability import Results, ScenarioOutcome

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


def select_outcomes(results: Results, known: Iterable[ScenarioOutcome]) -> Results:
    """Return outcomes for exactly the ``known`` scenarios, with their descriptions."""
    by_name = {outcome.name: outcome for outcome in results.outcomes}
    outcomes = (
        replace(by_name.get(each.name, each), fault=each.fault, moment=each.moment)
        for each in known
    )
    return replace(results, outcomes=tuple(outcomes))


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
