"""``holdfast ckpt diff``: what differs between two checkpoints, of whatever formats."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.facts.checkpoints.contents import Contents
    from holdfast.facts.checkpoints.examining.differing import Asked, Compared


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--only", metavar="PATTERN", multiple=True, help="Compare tensors whose names fit it alone "
              "(blocks.*.weight); may be repeated.")  # fmt: skip
@click.option("--map", "maps", metavar="OLD=NEW", multiple=True, help="Rename tensors of A first, as `ckpt convert` "
              "does.")  # fmt: skip
@click.option("--no-optimizer", is_flag=True, help="Compare the weights alone.")
@click.option("--no-values", is_flag=True, help="Compare names, shapes and dtypes alone: no tensor is read.")
@click.option(
    "--any-dtype", is_flag=True, help="Weights that are the same but for rounding to another dtype are alike."
)
@click.option("--atol", metavar="X", type=click.FloatRange(0), default=0.0, help="Numbers that differ by X at most are "
              "alike [0].")  # fmt: skip
@click.option("--rtol", metavar="X", type=click.FloatRange(0), default=0.0, help="So are tensors whose difference has "
              "X times the norm of A's at most [0].")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, first: Path, second: Path, maps: tuple[str, ...], as_json: bool, **more: Any) -> int:
    """Say what differs between the checkpoints A and B: tensors missing or extra, shapes, dtypes, numbers.

    They may be of different formats and numbers of ranks. Names are compared without what wrappers put in front; layers
    of one kind are one line. Tied weights are there under both names. The optimizer's state is compared where both have
    one.

    Exit status 0 where they are alike, 1 where they are not, 2 where one of them is no checkpoint, 3 where one is not
    whole and nothing else differs.
    """
    from holdfast.actions.conversion import names
    from holdfast.facts.checkpoints import formats
    from holdfast.facts.checkpoints.examining.differing import Asked

    asked = Asked(optimizer=not more.pop("no_optimizer"), numbers=not more.pop("no_values"), **more)
    own = tuple(each for text in maps for each in names.parsed(text))
    a = names.renamed(formats.read(first), own)
    b = names.renamed(formats.read(second))
    return _compare(a, b, asked, as_json=as_json)


def _compare(a: Contents, b: Contents, asked: Asked, *, as_json: bool) -> int:
    from holdfast.cli.ckpt.verify import Told
    from holdfast.cli.progress import Progress
    from holdfast.facts.checkpoints.examining.differing import differences
    from holdfast.rules.checkpoints import compared

    begun = time.monotonic()
    with Progress(sys.stderr) as progress:
        found = differences(a, b, asked, Told(progress))
    elapsed_s = round(time.monotonic() - begun, 3)
    findings = compared.judge(found)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope(
            "ckpt diff", findings, compared.verdict(found, findings), elapsed_s=elapsed_s, alike=not findings,
            formats=(a.format, b.format), differences=compared.lines(found), values=found.values, apart=found.apart,
            tensors=len(found.pairs),
        ))  # fmt: skip
    else:
        _print(a, b, found, elapsed_s)
    return 0 if not findings else 1 if any(claim.level == "error" for claim in findings) else 3


def _print(a: Contents, b: Contents, found: Compared, elapsed_s: float) -> None:
    from holdfast.report.compared import render_compared
    from holdfast.rules.checkpoints import compared

    render_compared(
        first=(a.root, a.format), second=(b.root, b.format),
        lines=[(line.kind, line.pattern, len(line.names), line.text) for line in compared.lines(found)],
        values=[f"{path}: {one} and {other}" for path, (one, other) in found.values.items()],
        apart=(*found.apart, *found.gaps), unknown=found.alike and bool(compared.judge(found)),
        tensors=len(found.pairs), elapsed_s=elapsed_s, file=sys.stdout,
    )  # fmt: skip
