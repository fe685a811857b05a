"""``holdfast ckpt diff``: compare two checkpoints of any formats."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.ckpt.contents import CheckpointContents
    from holdfast.ckpt.verify.differences import ComparisonRequest, ComparisonResult


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--only",
    metavar="PATTERN",
    multiple=True,
    help="Compare only tensors whose names match PATTERN (e.g. blocks.*.weight). Repeatable.",
)
@click.option(
    "--map",
    "maps",
    metavar="OLD=NEW",
    multiple=True,
    help="Rename tensors of A first, as in `ckpt convert`.",
)
@click.option("--no-optimizer", is_flag=True, help="Compare only the weights.")
@click.option(
    "--no-values", is_flag=True, help="Compare only names, shapes and dtypes; read no tensor."
)
@click.option(
    "--any-dtype",
    is_flag=True,
    help="Treat weights as equal if they differ only by rounding to another dtype.",
)
@click.option(
    "--atol",
    metavar="X",
    type=click.FloatRange(0),
    default=0.0,
    help="Absolute tolerance per value (default: 0).",
)
@click.option(
    "--rtol",
    metavar="X",
    type=click.FloatRange(0),
    default=0.0,
    help="Relative tolerance: norm of the difference / norm of A's tensor (default: 0).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(
    *, first: Path, second: Path, maps: tuple[str, ...], as_json: bool, **options: Any
) -> int:
    """Compare checkpoints A and B: missing and extra tensors, shapes, dtypes, values.

    They may have different formats and numbers of ranks. Wrapper prefixes are ignored; layers of
    one kind are printed as one line. Tied weights appear under both names. Optimizer state is
    compared if both have it.

    Exit status: 0 equal, 1 different, 2 one is not a checkpoint, 3 one is incomplete and nothing
    else differs.
    """
    from holdfast.ckpt.convert import names
    from holdfast.ckpt.formats import registry
    from holdfast.ckpt.verify.differences import ComparisonRequest

    request = ComparisonRequest(
        optimizer=not options.pop("no_optimizer"), numbers=not options.pop("no_values"), **options
    )
    name_maps = tuple(name_map for text in maps for name_map in names.parse_name_maps(text))
    a = names.rename_contents(registry.read_checkpoint(first), name_maps)
    b = names.rename_contents(registry.read_checkpoint(second))
    return _compare(a, b, request, as_json=as_json)


def _compare(
    a: CheckpointContents, b: CheckpointContents, request: ComparisonRequest, *, as_json: bool
) -> int:
    from holdfast.ckpt.rules import differences as rules_differences
    from holdfast.ckpt.verify.differences import compare_checkpoints
    from holdfast.cli.ckpt.verify import ReadProgress
    from holdfast.cli.progress import Progress

    started = time.monotonic()
    with Progress(sys.stderr) as progress:
        result = compare_checkpoints(a, b, request, ReadProgress(progress))
    elapsed_s = round(time.monotonic() - started, 3)
    findings = rules_differences.judge_differences(result)
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(
            sys.stdout,
            envelope(
                "ckpt diff",
                findings,
                rules_differences.build_verdict(result, findings),
                elapsed_s=elapsed_s,
                alike=not findings,
                formats=(a.format, b.format),
                differences=rules_differences.difference_lines(result),
                values=result.values,
                apart=result.apart,
                tensors=len(result.pairs),
            ),
        )
    else:
        _print_text(a, b, result, elapsed_s)
    return 0 if not findings else 1 if any(claim.level == "error" for claim in findings) else 3


def _print_text(
    a: CheckpointContents, b: CheckpointContents, result: ComparisonResult, elapsed_s: float
) -> None:
    from holdfast.ckpt.render.differences import render_differences
    from holdfast.ckpt.rules import differences as rules_differences

    render_differences(
        first=(a.root, a.format),
        second=(b.root, b.format),
        lines=[
            (line.kind, line.pattern, len(line.names), line.text)
            for line in rules_differences.difference_lines(result)
        ],
        values=[f"{path}: {first} vs {second}" for path, (first, second) in result.values.items()],
        not_compared=(*result.apart, *result.problems),
        unknown=result.alike and bool(rules_differences.judge_differences(result)),
        tensors=len(result.pairs),
        elapsed_s=elapsed_s,
        file=sys.stdout,
    )
