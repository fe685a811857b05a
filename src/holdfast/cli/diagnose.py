"""``holdfast diagnose``: find the root cause in logs, dumps, trace files, or archives of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.general_options import OutputFile, remark
from holdfast.cli.language import language_option

if TYPE_CHECKING:
    from holdfast.diagnose.pipeline import DiagnosisResult


@click.command()
@click.argument("paths", metavar="PATH…", nargs=-1, type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write an HTML report.")
@click.option(
    "--follow", is_flag=True, help="Watch growing logs, and report when the verdict changes."
)
@click.option(
    "--reduce",
    metavar="FILE",
    type=OutputFile(),
    help="Only write a reduced form of the flight-recorder dumps, to be combined later.",
)
@click.option(
    "--guided", is_flag=True, help="Ask what you see, and run the commands that find the cause."
)
@language_option
def command(
    *,
    paths: tuple[str, ...],
    as_json: bool,
    html: Path | None,
    follow: bool,
    reduce: Path | None,
    guided: bool,
) -> int:
    """Find the root cause in what a finished or hung job left behind.

    Reads logs, flight-recorder dumps, trace files, folders and archives of them, and standard input
    (-); file types are detected from content. Exit status: 0 nothing wrong, 1 root cause found, 2
    no readable input, 3 inconclusive.
    """
    from holdfast.cli.progress import Progress
    from holdfast.diagnose.pipeline import diagnose

    if guided:
        return _guide(
            paths, as_json=as_json, other=follow or html is not None or reduce is not None
        )
    if not paths:
        raise click.UsageError("Missing argument 'PATH…': pass logs or folders, or --guided")
    if reduce is not None and (follow or html is not None):
        raise click.UsageError(
            "--reduce does not diagnose; it cannot be combined with --html or --follow"
        )
    if reduce is not None:
        return _reduce(paths, reduce, as_json=as_json)
    if follow and "-" in paths:
        raise click.UsageError(
            "--follow requires files or folders; standard input is read to its end without it"
        )
    if follow:
        result = _follow(paths, quiet=as_json)
    else:
        with Progress(sys.stderr) as progress:
            result = diagnose(paths, on_progress=progress.tell)
    return _show(result, as_json=as_json, html=html, follow=follow)


def _guide(paths: tuple[str, ...], *, as_json: bool, other: bool) -> int:
    """Walk through the decision tree."""
    from holdfast.cli import guided

    if other:
        raise click.UsageError("--guided cannot be combined with --html, --follow or --reduce")
    return guided.run(paths, as_json=as_json)


def _follow(paths: tuple[str, ...], *, quiet: bool) -> DiagnosisResult:
    """Print every changed verdict until Ctrl-C; return the last result."""
    from holdfast.cli.progress import Progress
    from holdfast.diagnose.follow import EvidenceFollower
    from holdfast.report.terminal import render_verdict

    follower = EvidenceFollower(paths)
    with Progress(sys.stderr) as progress:
        result = follower.diagnose(progress.tell)
    try:
        if not quiet:
            render_verdict(result.verdict, file=sys.stdout, inconclusive=result.is_inconclusive)
            remark("holdfast: following; press Ctrl-C to stop")
        for update in follower.updates(result):
            result = update.result
            if update.is_new_verdict and not quiet:
                render_verdict(result.verdict, file=sys.stdout, inconclusive=result.is_inconclusive)
    except KeyboardInterrupt:
        pass
    return result


def _reduce(paths: tuple[str, ...], file: Path, *, as_json: bool) -> int:
    """Write the reduced dumps, and print a summary."""
    import msgspec

    from holdfast.cli.progress import Progress
    from holdfast.core.rank_sets import describe_ranks
    from holdfast.core.text import pluralize
    from holdfast.diagnose.reduce_dumps import reduce_dumps
    from holdfast.report.evidence_summary import size_text
    from holdfast.report.json import envelope, write_json

    with Progress(sys.stderr) as progress:
        reduced = reduce_dumps(paths, file, watch=progress.tell)
    if as_json:
        write_json(sys.stdout, envelope("diagnose", (), None, **msgspec.structs.asdict(reduced)))
        return 0
    ignored = f"; {pluralize(len(reduced.ignored), 'file')} ignored" if reduced.ignored else ""
    click.echo(
        f"{describe_ranks(reduced.ranks)}: {pluralize(len(reduced.read), 'file')} "
        f"reduced to {size_text(reduced.bytes)}{ignored}"
    )
    click.echo(f"Diagnose it, together with those of other nodes: holdfast diagnose {file} …")
    return 0


def _show(result: DiagnosisResult, *, as_json: bool, html: Path | None, follow: bool) -> int:
    """Print the verdict and its evidence; return the exit status."""
    if html is not None:
        from holdfast.core.atomic_files import write_atomic
        from holdfast.diagnose.diagnosis_page import write_diagnosis_page

        write_atomic(html, write_diagnosis_page(result).encode(errors="replace"))
    verdict = result.verdict
    if as_json:
        from holdfast.report.json import envelope, write_json

        findings = (*([verdict.root] if verdict.root else []), *verdict.suspects)
        write_json(
            sys.stdout,
            envelope(
                "diagnose",
                findings,
                verdict,
                read=result.read,
                ignored=result.ignored,
                collectives=result.collectives,
            ),
        )
        return result.exit_status
    from holdfast.report.evidence_summary import render_collectives, render_evidence
    from holdfast.report.terminal import render_verdict

    if result.read and not follow:
        render_verdict(
            verdict,
            file=sys.stdout,
            html=str(html) if html else None,
            inconclusive=result.is_inconclusive,
        )
        render_collectives(result.collectives, file=sys.stdout)
    read = [(str(item.kind), item.name, item.bytes) for item in result.read]
    ignored = [(item.name, item.why) for item in result.ignored]
    render_evidence(read, ignored, file=sys.stdout, elapsed_s=result.elapsed_s)
    if not result.read:
        click.echo(
            "holdfast: no readable input; pass logs, dumps, or a directory or archive of them",
            err=True,
        )
    return result.exit_status
