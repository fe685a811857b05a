"""``holdfast checklist``: run the items that a cluster team checks, one list per occasion."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.general_options import InputPath, OutputFile
from holdfast.core.errors import UnknownName

if TYPE_CHECKING:
    from holdfast.preflight.checklists.items import ChecklistItem

_VALUES = {
    "script": ("FILE", "Script or folder of the job."),
    "checkpoints": ("DIR", "Folder of the checkpoints."),
    "run": ("DIR", "Run folder, or folder of runs."),
    "logs": ("PATH", "Logs of the failed job."),
    "data": ("PATTERN", "Folder or pattern of the data shards."),
    "baseline": ("FILE", "Measurement written by `holdfast bench --save`."),
    "nnodes": ("N", "Number of hosts of the job."),
    "rdzv-endpoint": ("HOST:PORT", "Rendezvous endpoint of the job."),
    "nproc-per-node": ("N", "Workers of the job on this host."),
}
#: Values that name a file or folder that exists already.
_INPUTS = ("script", "run", "logs", "baseline")


def _value_options(command: Any) -> Any:
    """Add an option per value that items may need."""
    for name, (metavar, text) in reversed(_VALUES.items()):
        kind = InputPath() if name in _INPUTS else click.IntRange(1) if metavar == "N" else str
        command = click.option(f"--{name}", metavar=metavar, help=text, type=kind)(command)
    return command


@click.command()
@click.argument("name", metavar="start|running|recovery|performance|tools")
@_value_options
@click.option("--only", "ids", metavar="ID", multiple=True, help="Run only this item. Repeatable.")
@click.option("--items", metavar="FILE", type=Path, help="Add your own items from a TOML file.")
@click.option("--list", "list_all", is_flag=True, help="List the items; run none.")
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(
    *,
    name: str,
    ids: tuple[str, ...],
    items: Path | None,
    list_all: bool,
    html: Path | None,
    as_json: bool,
    **values: str | int | None,
) -> int:
    """Run a checklist: before the start, while a job runs, after a failure, …

    Each item runs a check of holdfast: ✓ passed, ✗ failed, ? could not be checked (never counted as
    passed), - not on this host. Exit status: 0 all passed, 1 an item failed, 3 unknown.
    """
    from holdfast.preflight.checklists.items import read_checklist, read_items

    chosen = _select((*read_checklist(name), *(read_items(items) if items else ())), ids)
    if list_all:
        for item in chosen:
            click.echo(f"{item.id:<20} {item.title}")
        return 0
    return _run(name, chosen, values, html, as_json=as_json)


def _select(items: Sequence[ChecklistItem], ids: Sequence[str]) -> tuple[ChecklistItem, ...]:
    """Return the items with these ids; a later item replaces an earlier one with its id."""
    known = {item.id: item for item in items}
    for each in ids:
        if each not in known:
            raise UnknownName("item", each, known)
    return tuple(item for item in known.values() if not ids or item.id in ids)


def _run(
    name: str,
    items: Sequence[ChecklistItem],
    options: Mapping[str, str | int | None],
    html: Path | None,
    *,
    as_json: bool,
) -> int:
    from holdfast.cli.progress import ElapsedProgress
    from holdfast.core.atomic_files import write_atomic
    from holdfast.core.text import pluralize
    from holdfast.preflight.checklists import rendering
    from holdfast.preflight.checklists.facts import newest_checkpoint
    from holdfast.preflight.checklists.outcome import exit_status
    from holdfast.preflight.checklists.runner import ChecklistContext, run_items
    from holdfast.report.json import envelope, write_json

    values = {key.removeprefix("rdzv_"): str(each) for key, each in options.items() if each}
    if newest := newest_checkpoint(values.get("checkpoints", "")):
        values["newest_checkpoint"] = newest
    with ElapsedProgress(sys.stderr, f"running {pluralize(len(items), 'item')}"):
        outcomes = run_items(items, ChecklistContext(values))
    if html is not None:
        write_atomic(html, rendering.checklist_page(name, outcomes).encode(errors="replace"))
    if as_json:
        write_json(sys.stdout, envelope("checklist", (), None, checklist=name, items=outcomes))
    else:
        rendering.render_checklist(name, outcomes, sys.stdout)
    return exit_status(outcomes)
