"""``holdfast diagnose``: from any heap of evidence (logs, dumps, boxes, archives of them) to the root cause."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.actions.diagnose import Diagnosis


@click.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--html", metavar="FILE", type=Path, help="Write the report as a page there.")
@click.option("--follow", is_flag=True, help="Go on while logs grow, and say when the verdict changes.")
@click.option(
    "--reduce", metavar="FILE", type=Path,
    help="Judge nothing; write what a judgement needs of the flight-recorder dumps there, to be put together later.",
)  # fmt: skip
def command(*, paths: tuple[str, ...], as_json: bool, html: Path | None, follow: bool, reduce: Path | None) -> int:
    """Find the root cause in whatever is left of a job.

    Takes logs, dumps of torch's flight recorder, boxes, folders and archives of them, and standard input (-); what a
    file is, its content tells. Ends with 0 where nothing is wrong, 1 where something is, 2 where nothing could be read,
    and 3 where it could not be judged.
    """
    from holdfast.actions.diagnose import diagnose
    from holdfast.cli.progress import Progress

    if reduce is not None and (follow or html is not None):
        raise click.UsageError("--reduce judges nothing, so that --html and --follow have nothing to show")
    if reduce is not None:
        return _reduce(paths, reduce, as_json=as_json)
    if follow and "-" in paths:
        raise click.UsageError("--follow takes files and folders; standard input is read to its end without it")
    if follow:
        found = _follow(paths, quiet=as_json)
    else:
        with Progress(sys.stderr) as progress:
            found = diagnose(paths, watch=progress.tell)
    return _show(found, as_json=as_json, html=html, again=follow)


def _follow(paths: tuple[str, ...], *, quiet: bool) -> Diagnosis:
    """Print every verdict that is another than the one before, until Ctrl-C; the last one."""
    from holdfast.actions.follow import Follower
    from holdfast.cli.progress import Progress
    from holdfast.report.terminal import render_verdict

    follower = Follower(paths)
    with Progress(sys.stderr) as progress:
        found = follower.look(progress.tell)
    try:
        if not quiet:
            render_verdict(found.verdict, file=sys.stdout, undecided=found.is_undecided)
            click.echo("holdfast: following; Ctrl-C ends it", err=True)
        for later in follower.changes(found):
            if later.is_news and not quiet:
                now = later.diagnosis
                render_verdict(now.verdict, file=sys.stdout, undecided=now.is_undecided)
            found = later.diagnosis
    except KeyboardInterrupt:
        pass
    return found


def _reduce(paths: tuple[str, ...], file: Path, *, as_json: bool) -> int:
    """Write the reduced dumps and say what is in the file."""
    import msgspec

    from holdfast.actions.reduce import reduce
    from holdfast.cli.progress import Progress
    from holdfast.report.evidence import size_text
    from holdfast.report.json import envelope, write
    from holdfast.report.ranksets import say_ranks
    from holdfast.report.text import plural

    with Progress(sys.stderr) as progress:
        made = reduce(paths, file, watch=progress.tell)
    if as_json:
        write(sys.stdout, envelope("diagnose", (), None, **msgspec.structs.asdict(made)))
        return 0
    ignored = f"; {plural(len(made.ignored), 'file')} ignored" if made.ignored else ""
    click.echo(f"{say_ranks(made.ranks)}: {plural(len(made.read), 'file')} reduced to {size_text(made.bytes)}{ignored}")
    click.echo(f"holdfast diagnose {file} …    judges it, together with those of the other nodes")
    return 0


def _show(found: Diagnosis, *, as_json: bool, html: Path | None, again: bool) -> int:
    """Print the verdict and what it rests on; the exit status."""
    if html is not None:
        from holdfast.actions.diagnose import page
        from holdfast.report.files import write_whole

        write_whole(html, page(found).encode(errors="replace"))
    verdict = found.verdict
    if as_json:
        from holdfast.report.json import envelope, write

        findings = (*([verdict.root] if verdict.root else []), *verdict.suspects)
        write(sys.stdout, envelope("diagnose", findings, verdict, read=found.read, ignored=found.ignored,
                                   collectives=found.collectives))  # fmt: skip
        return found.exit_status
    from holdfast.report.evidence import render_collectives, render_evidence
    from holdfast.report.terminal import render_verdict

    if found.read and not again:
        render_verdict(verdict, file=sys.stdout, html=str(html) if html else None, undecided=found.is_undecided)
        render_collectives(found.collectives, file=sys.stdout)
    read = [(str(item.kind), item.name, item.bytes) for item in found.read]
    ignored = [(item.name, item.why) for item in found.ignored]
    render_evidence(read, ignored, file=sys.stdout, elapsed_s=found.elapsed_s)
    if not found.read:
        click.echo("holdfast: nothing could be read; name logs, dumps, boxes, or a folder or archive of them", err=True)
    return found.exit_status
