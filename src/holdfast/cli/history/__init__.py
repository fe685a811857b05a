"""``holdfast history``: the timeline of one run, or a command for all runs of a project."""

from __future__ import annotations

import click

from holdfast.cli.command_table import Table, TableGroup

#: Command -> its module, and its line in ``holdfast history --help``.
COMMANDS: Table = {
    "timeline": (
        "holdfast.cli.history.timeline",
        "Show a run's timeline across restarts (the default).",
    ),
    "runs": ("holdfast.cli.history.runs", "List the runs in the history store."),
    "incidents": (
        "holdfast.cli.history.incidents",
        "List failures of all runs, by time, cause or host.",
    ),
    "cost": (
        "holdfast.cli.history.cost",
        "Compute time between failures, goodput and GPU-hours lost by cause.",
    ),
    "collectives": (
        "holdfast.cli.history.collectives",
        "List collectives that timed out or were slow.",
    ),
    "index": ("holdfast.cli.history.index", "Add past run folders to the history store."),
    "prune": ("holdfast.cli.history.prune", "Delete old runs from the history store."),
}


class _HistoryGroup(TableGroup):
    """Runs ``timeline`` unless the first argument is a command: ``holdfast history RUN``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        general = {name for option in self.params for name in option.opts}
        first = next((word for word in args if word not in general), "")
        if first not in (*self.table, *ctx.help_option_names):
            args = ["timeline", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_HistoryGroup,
    table=COMMANDS,
    subcommand_metavar="[RUN] | COMMAND [ARGS]...",
    options_metavar="",
)
def command() -> None:
    """Show the timeline of a run across restarts, or what the history store has about all runs.

    `holdfast history [RUN] [--json]` shows the timeline of RUN, a run's folder, or of the newest
    run in a folder of runs.

    The other commands use the history store, to which `holdfast run` adds each run: a SQLite file
    beside the run folders, or the database in HOLDFAST_HISTORY_STORE.
    """
