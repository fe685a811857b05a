"""``holdfast ckpt inspect``: what is in a checkpoint, from its descriptions alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, path: Path, as_json: bool) -> int:
    """Say what the checkpoint PATH is: its format, tensors, shards, step, optimizer, and what is missing of it.

    Exit status 1 where something is missing or cut short, 2 where it cannot be read at all.
    """
    from holdfast.facts.checkpoints import formats
    from holdfast.report.json import encode, envelope

    found = formats.read(path)
    if as_json:
        click.echo(encode(envelope("ckpt inspect", (), None, format=found.format)), nl=False)
    else:
        click.echo(found.format)
    return int(bool(found.gaps))
