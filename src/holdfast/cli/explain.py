"""``holdfast explain``: prints what is known of one cause of failure, or lists all of them."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("name", metavar="CODE|NAME", required=False)
@click.option("--list", "list_all", is_flag=True, help="List all causes, by family.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, name: str | None, list_all: bool, as_json: bool) -> None:
    """Explain a cause of failure, given its code (SYNC002) or its name (rank-missing-collective).

    What happens, how it shows before, during and after, what is known to be missed, what to do and how safe that is.
    """
    from holdfast.report import catalogue
    from holdfast.rules.causes import CAUSES, FAMILIES, find

    if list_all == (name is not None):
        raise click.UsageError("give the code or the name of one cause, or --list for all of them")
    causes = CAUSES if name is None else (find(name),)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("explain", (), None, causes=causes))
    elif name is None:
        catalogue.draw_list(causes, FAMILIES, sys.stdout)
    else:
        catalogue.draw_entry(causes[0], FAMILIES[causes[0].family], sys.stdout)
