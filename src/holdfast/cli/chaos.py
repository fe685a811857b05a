"""``holdfast chaos``: the faults that ``holdfast run --inject`` can cause, and scenarios that hurt a job with them."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.report.reliability import Outcome
from holdfast.report.text import duration


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the faults that `holdfast run --inject` can cause, or `run` scenarios of them."""
    if ctx.invoked_subcommand is not None:
        return
    from holdfast.runtime.faults import KINDS

    if as_json:
        from holdfast.report.json import encode, envelope

        click.echo(encode(envelope("chaos", (), None, faults=KINDS)))
        return
    width = max(map(len, KINDS))
    for name, effect in KINDS.items():
        click.echo(f"{name:<{width}}  {effect}")
    click.echo(
        "\nholdfast run --inject 'hang@rank=2,step=30' …   (or collective=N, phase=NAME; generation=all)"
        "\nholdfast chaos run --list                        scenarios that hurt a small job of ours"
    )


@command.command("run")
@click.argument("scenarios", nargs=-1)
@click.option("--list", "listed", is_flag=True, help="List the scenarios.")
@click.option("--all", "everything", is_flag=True, help="Play all of them, which takes an hour or more.")
@click.option("--share", metavar="K/N", help="Play only the K-th of N shares, so that several can play at once.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Add what came of them to this file.")
@click.option("--go-on", "fresh_h", metavar="HOURS", type=click.FloatRange(min=0), default=0.0,
              help="Leave out what was survived in the last HOURS, as the file of results says.")  # fmt: skip
def play(
    scenarios: tuple[str, ...], *, listed: bool, everything: bool, share: str | None, results: Path | None,
    fresh_h: float,
) -> int:  # fmt: skip
    """Hurt a small job in each of SCENARIOS, and hold it against the same job left in peace.

    The exit status is 1 where a job did not survive.
    """
    from holdfast.actions.chaos import scenarios as known
    from holdfast.errors import BadValue
    from holdfast.report import reliability

    if listed:
        for each in known.SCENARIOS.values():
            where = each.mode if each.hosts == 1 else f"{each.mode} on {each.hosts} hosts"
            click.echo(f"{each.name:<32}  {each.fault}; {each.moment}; {where}")
        return 0
    if everything == bool(scenarios):
        raise BadValue("SCENARIOS", why="none is named" if not everything else "--all means all of them",
                       next_step="name some (--list), or say --all")  # fmt: skip
    if fresh_h and results is None:
        raise BadValue("--go-on", why="no file of results is named", next_step="say --results FILE")
    chosen = list(known.SCENARIOS.values()) if everything else [known.find(name) for name in scenarios]
    before = {each.name: each for each in reliability.read(results).outcomes} if results is not None else {}
    since = time.time() - 3600 * fresh_h
    fresh = {each.name for each in before.values() if each.survived and each.at > since}
    left = [each for each in _share(chosen, share) if each.name not in fresh]

    from holdfast.actions.chaos.campaign import campaign, machine

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that jobs end and small disks go, as with Ctrl-C
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    clock = Clock([each.name for each in left], {name: each.took_s for name, each in before.items()})
    failed = 0
    try:
        for outcome in campaign(left, folder):
            failed += bool(outcome.wrong)
            click.echo(f"{clock.tick(outcome)}  {_line(outcome)}")
            if results is not None:
                reliability.add(results, outcome, machine())
    except KeyboardInterrupt:
        click.echo(f"interrupted, {clock.left} were not played; with --results and --go-on the rest can be", err=True)
        return 130
    if failed:
        click.echo(f"{failed} of {len(left)} were not survived; what they left is in {folder}", err=True)
    else:
        folder.rmdir()
    return int(failed > 0)


def _share(chosen: list[Any], share: str | None) -> list[Any]:
    """Every n-th of them, from the k-th on. Raises BadValue."""
    from holdfast.errors import BadValue

    if share is None:
        return chosen
    found = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", share)
    if found is None or int(found[1]) > int(found[2]):
        raise BadValue("--share", why=f"{share!r} is no share", next_step="say 1/2 for the first of two")
    return chosen[int(found[1]) - 1 :: int(found[2])]


class Clock:
    """How far a campaign is, and how long the rest may take: as long as last time, or as one of them on average."""

    def __init__(self, names: list[str], took_s: Mapping[str, float]) -> None:
        self._names, self._took_s = list(names), took_s
        self._total, self._began, self._known_s = len(names), time.monotonic(), 0.0

    @property
    def left(self) -> int:
        """How many are not over."""
        return len(self._names)

    def tick(self, outcome: Outcome) -> str:
        """The next one is over."""
        self._names.remove(outcome.name)
        done, spent_s = self._total - len(self._names), time.monotonic() - self._began
        self._known_s += self._took_s.get(outcome.name, 0.0)
        pace = spent_s / self._known_s if self._known_s else 1.0  # this time, next to last time
        left_s = sum(pace * self._took_s[name] if self._took_s.get(name) else spent_s / done for name in self._names)
        return f"[{done}/{self._total}, {f'about {duration(left_s)} left' if self._names else 'the last'}]"


def _line(outcome: Outcome) -> str:
    """What came of a scenario, for people."""
    if outcome.skipped:
        return f"not played  {outcome.name}: {outcome.skipped}"
    if outcome.wrong:
        return f"NOT SURVIVED  {outcome.name}: {'; '.join(outcome.wrong)}"
    named = f"; {', '.join(outcome.causes)}" if outcome.causes else ""
    took = f"{outcome.took_s:.1f} s ({outcome.peace_s:.1f} s in peace)"
    return f"survived  {outcome.name}: {took}, {outcome.redone} steps done again{named}"
