"""``holdfast chaos``: list injectable faults, and run fault-injection scenarios."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from holdfast.chaos.reliability import ScenarioOutcome
from holdfast.chaos.scenario import Scenario
from holdfast.cli.general_options import OutputFile, require_torch
from holdfast.core.errors import InvalidValue
from holdfast.core.exit_status import ERRORS_FOUND, OK
from holdfast.core.text import format_duration

#: Status of a process that SIGINT ended, as shells report it: 128 + 2.
_INTERRUPTED = 130


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the faults of `holdfast run --inject`, or `run` fault-injection scenarios."""
    if ctx.invoked_subcommand is not None:
        return
    from holdfast.recorder.faults import FAULT_KINDS

    if as_json:
        from holdfast.report.json import encode_json, envelope

        click.echo(encode_json(envelope("chaos", (), None, faults=FAULT_KINDS)))
        return
    width = max(map(len, FAULT_KINDS))
    for name, effect in FAULT_KINDS.items():
        click.echo(f"{name:<{width}}  {effect}")
    click.echo(
        "\nholdfast run --inject 'hang@rank=2,step=30' …   "
        "(or collective=N, phase=NAME; generation=all)"
        "\nholdfast chaos run --list                        "
        "fault-injection scenarios with a small job"
    )


@command.command("run")
@click.argument("scenarios", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="List the scenarios.")
@click.option(
    "--all", "everything", is_flag=True, help="Run all scenarios (takes an hour or more)."
)
@click.option(
    "--share",
    metavar="K/N",
    help="Run only share K of N (e.g. 1/2), to distribute scenarios over several processes.",
)
@click.option(
    "--results",
    type=OutputFile(),
    help="Add the outcomes to this results file.",
)
@click.option(
    "--resume",
    "resume_h",
    metavar="HOURS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Skip scenarios that passed within the last HOURS, according to the results file.",
)
@click.option("--go-on", "go_on_h", type=click.FloatRange(min=0), default=0.0, hidden=True)
def run_scenarios(
    scenarios: tuple[str, ...],
    *,
    listed: bool,
    everything: bool,
    share: str | None,
    results: Path | None,
    resume_h: float,
    go_on_h: float,
) -> int:
    """Run SCENARIOS with a small job, and compare each with an undisturbed run.

    A scenario passes if the result is bit-identical. Exit status: 0 all passed, 1 a scenario
    failed.
    """
    from holdfast.chaos import reliability
    from holdfast.chaos.scenarios import SCENARIOS, find_scenario

    if listed:
        for scenario in SCENARIOS.values():
            hosts = "" if scenario.hosts == 1 else f" on {scenario.hosts} hosts"
            text = f"{scenario.fault}; {scenario.moment}; {scenario.mode}{hosts}"
            click.echo(f"{scenario.name:<32}  {text}")
        return OK
    if everything == bool(scenarios):
        raise InvalidValue(
            "SCENARIOS",
            why="--all already selects all of them" if everything else "no scenario is given",
            next_step="specify scenarios (see --list) or --all",
        )
    resume_h = resume_h or go_on_h
    if resume_h and results is None:
        raise InvalidValue(
            "--resume", why="it needs a results file", next_step="add --results FILE"
        )
    chosen = list(SCENARIOS.values()) if everything else [find_scenario(name) for name in scenarios]
    earlier = () if results is None else reliability.read_outcomes(results).outcomes
    since = time.time() - 3600 * resume_h
    recent = {outcome.name for outcome in earlier if outcome.passed and outcome.at > since}
    pending = [scenario for scenario in _select_share(chosen, share) if scenario.name not in recent]
    require_torch()
    return _run_pending(pending, earlier, results)


def _run_pending(
    pending: Sequence[Scenario], earlier: Sequence[ScenarioOutcome], results: Path | None
) -> int:
    """Run the scenarios, print and store their outcomes; return the exit status."""
    from holdfast.chaos import reliability
    from holdfast.chaos.campaign import describe_machine, run_campaign

    # Clean up jobs and disks on SIGTERM as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    clock = CampaignClock(
        [scenario.name for scenario in pending],
        {outcome.name: outcome.took_s for outcome in earlier},
    )
    failed = 0
    try:
        for outcome in run_campaign(pending, folder):
            failed += bool(outcome.violations)
            click.echo(f"{clock.tick(outcome)}  {_outcome_line(outcome)}")
            if results is not None:
                reliability.add_outcome(results, outcome, describe_machine())
    except KeyboardInterrupt:
        click.echo(
            f"interrupted; {clock.left} scenarios were not run "
            "(use --results and --resume to continue)",
            err=True,
        )
        return _INTERRUPTED
    if failed:
        click.echo(
            f"{failed} of {len(pending)} scenarios failed; their files are in {folder}", err=True
        )
    else:
        folder.rmdir()
    return ERRORS_FOUND if failed else OK


def _select_share(chosen: list[Scenario], share: str | None) -> list[Scenario]:
    """Return every n-th scenario from the k-th on. Raises InvalidValue."""
    if share is None:
        return chosen
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", share)
    if match is None or int(match[1]) > int(match[2]):
        raise InvalidValue(
            "--share",
            why=f"{share!r} is not a share",
            next_step="use e.g. 1/2 for the first of two",
        )
    return chosen[int(match[1]) - 1 :: int(match[2])]


class CampaignClock:
    """Estimates the remaining time of a campaign from earlier durations, or from the average."""

    def __init__(self, names: list[str], took_s: Mapping[str, float]) -> None:
        self._names, self._took_s = list(names), took_s
        self._total, self._began, self._known_s = len(names), time.monotonic(), 0.0

    @property
    def left(self) -> int:
        """Return the number of unfinished scenarios."""
        return len(self._names)

    def tick(self, outcome: ScenarioOutcome) -> str:
        """Record a finished scenario; return the progress text."""
        self._names.remove(outcome.name)
        done, spent_s = self._total - len(self._names), time.monotonic() - self._began
        self._known_s += self._took_s.get(outcome.name, 0.0)
        pace = spent_s / self._known_s if self._known_s else 1.0  # relative to the last campaign
        left_s = sum(
            pace * self._took_s[name] if self._took_s.get(name) else spent_s / done
            for name in self._names
        )
        progress = f"about {format_duration(left_s)} left" if self._names else "last"
        return f"[{done}/{self._total}, {progress}]"


def _outcome_line(outcome: ScenarioOutcome) -> str:
    """Return the outcome of a scenario as text."""
    if outcome.skipped:
        return f"not run  {outcome.name}: {outcome.skipped}"
    if outcome.violations:
        return f"FAILED  {outcome.name}: {'; '.join(outcome.violations)}"
    named = f"; {', '.join(outcome.causes)}" if outcome.causes else ""
    took = f"{outcome.took_s:.1f} s ({outcome.undisturbed_s:.1f} s undisturbed)"
    return f"passed  {outcome.name}: {took}, {outcome.repeated_steps} steps repeated{named}"
