"""``holdfast ckpt inspect``: what is in a checkpoint, from its descriptions alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--tensors", "every", is_flag=True, help="List every tensor, instead of layers of one kind as one.")
@click.option(
    "--frozen", metavar="PATTERN", multiple=True, help="Parameters that the optimizer does not have (vision.*), where "
    "it knows them by number; may be repeated.",
)  # fmt: skip
@click.option(
    "--order", metavar="FILE", type=click.Path(path_type=Path),
    help="Names of the parameters, one a line, as model.named_parameters() gives them.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, path: Path, every: bool, frozen: tuple[str, ...], order: Path | None, as_json: bool) -> int:
    """Say what the checkpoint PATH is: its format, tensors, shards, step, optimizer, and what is missing of it.

    PATH is a file, a folder of one checkpoint, or one of several checkpoints of a run, of which the newest counts. No
    tensor is loaded, and nothing in a pickle runs; `ckpt verify` reads every byte.

    Exit status 1 where something is missing or cut short, 2 where it cannot be read at all.
    """
    from holdfast.actions import inspection
    from holdfast.actions.conversion import names
    from holdfast.facts.checkpoints import formats
    from holdfast.facts.checkpoints.examining.survey import Examined
    from holdfast.findings import Level
    from holdfast.report import json
    from holdfast.report.inspected import render_inspected
    from holdfast.rules.checkpoints import whole

    found = formats.read(path, frozen, names.ordered(order) if order else ())
    findings = tuple(whole.judge(Examined(contents=found, tensors=len(found.tensors))))
    if as_json:
        json.write(sys.stdout, json.envelope("ckpt inspect", findings, None, **inspection.document(found)))
    else:
        render_inspected(inspection.shown(found), file=sys.stdout, every=every)
    return int(any(claim.level is Level.ERROR for claim in findings))
