"""``holdfast ckpt inspect``: show the contents of a checkpoint from its metadata."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli.ckpt.parameter_order import order_options, read_order


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--tensors",
    "every",
    is_flag=True,
    help="List every tensor instead of folding equal layers.",
)
@click.option(
    "--frozen",
    metavar="PATTERN",
    multiple=True,
    help="Parameters missing from the optimizer (e.g. vision.*), if it numbers them. Repeatable.",
)
@order_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(
    *,
    path: Path,
    every: bool,
    frozen: tuple[str, ...],
    order: Path | None,
    model: str,
    as_json: bool,
) -> int:
    """Show the format, tensors, shards, step and optimizer of checkpoint PATH, and what is missing.

    PATH is a file, a checkpoint folder, or a folder with several checkpoints of one run (the newest
    is used). No tensor is loaded and pickles are never executed; `ckpt verify` reads every byte.

    Exit status: 0 complete, 1 something is missing or truncated, 2 PATH cannot be read.
    """
    from holdfast.ckpt import inspection
    from holdfast.ckpt.formats import registry
    from holdfast.ckpt.render.inspection import render_inspection
    from holdfast.ckpt.rules import completeness
    from holdfast.ckpt.verify.survey import CheckpointSurvey
    from holdfast.cli.progress import ElapsedProgress
    from holdfast.core.findings import Level
    from holdfast.report import json

    with ElapsedProgress(sys.stderr, f"reading {path.name}"):
        contents = registry.read_checkpoint(path, frozen, read_order(order, model))
    findings = tuple(
        completeness.judge_completeness(
            CheckpointSurvey(contents=contents, tensors=len(contents.tensors))
        )
    )
    if as_json:
        json.write_json(
            sys.stdout,
            json.envelope("ckpt inspect", findings, None, **inspection.build_document(contents)),
        )
    else:
        render_inspection(inspection.build_view(contents), file=sys.stdout, every=every)
    return int(any(claim.level is Level.ERROR for claim in findings))
