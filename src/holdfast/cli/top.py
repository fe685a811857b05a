"""``holdfast top``: watch the ranks of a run in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


@click.command()
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--once", is_flag=True, help="Print the table once; default if stdout is no terminal."
)
def command(*, run: Path | None, once: bool) -> None:
    """Show a row per rank of RUN, a run's folder, or of the newest run in a folder of runs.

    Thousands of ranks are folded into what differs. The folder is only read; it may be on a shared
    file system. Without RUN: the newest run in the folder used by `holdfast run`.

    Keys: s sorts by the next column, r reverses, / filters, f shows each rank, Enter opens a rank
    with its stack, q quits.
    """
    import time

    from holdfast.core import settings
    from holdfast.core.errors import MissingExtra, MissingFile
    from holdfast.serve.live import reader, runs

    base = run or Path(str(settings.read_setting("HOLDFAST_RUN_DIR").value)).expanduser()
    folders = runs.find_runs(base)
    if not folders:
        raise MissingFile(
            base,
            why="it contains no run",
            next_step="pass the run folder that `holdfast run` printed",
        )
    if once or not is_terminal():
        from holdfast.serve.terminal.plain import print_table

        print_table(reader.read_live(folders[0], time.time()), folders[0], sys.stdout)
        return
    try:
        from holdfast.serve.terminal.application import TopApplication
    except ModuleNotFoundError as error:
        raise MissingExtra("holdfast[serve]") from error
    TopApplication(folders[0]).run()
