"""``holdfast chaos``: the faults that ``holdfast run --inject`` can cause, and scenarios that hurt a job with them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from holdfast.report.reliability import Outcome


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
@click.option("--all", "everything", is_flag=True, help="Play all of them, which takes half an hour or more.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Add what came of them to this file.")
def play(scenarios: tuple[str, ...], *, listed: bool, everything: bool, results: Path | None) -> int:
    """Hurt a small job in each of SCENARIOS, and hold it against the same job left in peace.

    The exit status is 1 where a job did not survive.
    """
    from holdfast.actions.chaos import scenarios as known
    from holdfast.errors import BadValue
    from holdfast.report import reliability

    if listed:
        for each in known.SCENARIOS.values():
            click.echo(f"{each.name:<28}  {each.fault}; {each.moment}; {each.mode}")
        return 0
    if everything == bool(scenarios):
        raise BadValue("SCENARIOS", why="none is named" if not everything else "--all means all of them",
                       next_step="name some (--list), or say --all")  # fmt: skip
    chosen = list(known.SCENARIOS.values()) if everything else [known.find(name) for name in scenarios]
    before = reliability.read(results) if results is not None else None

    from holdfast.actions.chaos.campaign import campaign, machine

    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    failed = 0
    for outcome in campaign(chosen, folder):
        failed += bool(outcome.wrong)
        click.echo(_line(outcome))
        if results is not None and before is not None:
            before = before.having([outcome], time.time(), machine())
            reliability.write(results, before)
    if failed:
        click.echo(f"{failed} of {len(chosen)} were not survived; what they left is in {folder}", err=True)
    else:
        folder.rmdir()
    return int(failed > 0)


def _line(outcome: Outcome) -> str:
    """What came of a scenario, for people."""
    if outcome.skipped:
        return f"not played  {outcome.name}: {outcome.skipped}"
    if outcome.wrong:
        return f"NOT SURVIVED  {outcome.name}: {'; '.join(outcome.wrong)}"
    named = f"; {', '.join(outcome.causes)}" if outcome.causes else ""
    took = f"{outcome.took_s:.1f} s ({outcome.peace_s:.1f} s in peace)"
    return f"survived  {outcome.name}: {took}, {outcome.redone} steps done again{named}"
