"""``holdfast top``: watch the ranks of a run in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.serve.live.source import RunSource


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option(
    "--once", is_flag=True, help="Print the table once; default if stdout is no terminal."
)
def command(*, run: str | None, once: bool) -> None:
    """Show a row per rank of RUN, a run's folder, or of the newest run in a folder of runs.

    Thousands of ranks are folded into what differs. The folder is only read; it may be on a shared
    file system. Without RUN: the newest run in the folder used by `holdfast run`.

    RUN may also be HOST:PORT or a URL: that of `holdfast run --serve PORT`, or of `holdfast
    serve`. The token is read from the URL or HOLDFAST_SERVE_TOKEN.

    Keys: s sorts by the next column, r reverses, / filters, f shows each rank, b shows a block per
    process group, Enter opens a rank with its stack, q quits.
    """
    from holdfast.core.errors import MissingExtra

    source = _source(run)
    if once or not is_terminal():
        from holdfast.serve.terminal.plain import print_table

        print_table(source.read(), source.name, sys.stdout)
        return
    try:
        from holdfast.serve.terminal.application import TopApplication
    except ModuleNotFoundError as error:
        raise MissingExtra("holdfast[serve]") from error
    TopApplication(source).run()


def _source(run: str | None) -> RunSource:
    from holdfast.core import settings
    from holdfast.core.errors import MissingFile
    from holdfast.serve.live import runs, source

    if run is not None and source.is_address(run):
        return source.ServerSource(run, settings.read_text("HOLDFAST_SERVE_TOKEN"))
    base = Path(run or str(settings.read_setting("HOLDFAST_RUN_DIR").value)).expanduser()
    folders = runs.find_runs(base)
    if not folders:
        raise MissingFile(
            base,
            why="it contains no run",
            next_step="pass the run folder that `holdfast run` printed",
        )
    return source.FolderSource(folders[0])
