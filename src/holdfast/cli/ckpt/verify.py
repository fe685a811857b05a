"""``holdfast ckpt verify``: is a checkpoint whole, as it was written, and of one save?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.actions.verification import Report
    from holdfast.cli.progress import Progress


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Look at names, sizes, shapes and times alone: no tensor is read, and no "
              "checksum compared.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, path: Path, quick: bool, as_json: bool) -> int:
    """Say whether the checkpoint PATH can be resumed from: every shard there and as it was written, all of one save.

    Reads every byte once: checksums (those of torch's files, of DCP and DeepSpeed, and holdfast's own), NaN,
    infinities, weights that are nothing but zeros, copies and tied weights that are not the same, shards that do not
    add up, shards of two saves under one name. Nothing in a pickle runs, and nothing is changed.

    Exit status 1 where something is wrong, 2 where PATH is no checkpoint, 3 where it could not be judged.
    """
    from holdfast.actions.verification import verify
    from holdfast.cli.progress import Progress

    with Progress(sys.stderr) as progress:
        report = verify(path, quick=quick, tell=Told(progress))
    if as_json:
        _write(path, report)
    else:
        _print(path, report)
    return report.exit_status


class Told:
    """Adds up what was read, for the line of progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.size = progress, 0
        self.files: set[str] = set()

    def __call__(self, size: int, file: str) -> None:
        """So many more bytes were read of this file."""
        self.size += size
        self.files.add(file)
        self.progress.tell(len(self.files), self.size, file)


def _write(path: Path, report: Report) -> None:
    from holdfast.report.json import envelope, write

    seen = report.seen
    looked = {
        "format": seen.contents.format if seen else None,
        "step": seen.contents.step if seen and isinstance(seen.contents.step, int) else None,
        "files": len(seen.contents.files) if seen else 0,
        "size_bytes": seen.size if seen else 0,
        "tensors": seen.tensors if seen else 0,
        "checksums": seen.sums if seen else 0,
        "without_checksum": seen.bare if seen else (),
    }
    more = {"path": str(path), "elapsed_s": report.elapsed_s, **looked}
    write(sys.stdout, envelope("ckpt verify", report.findings, report.verdict, **more))


def _print(path: Path, report: Report) -> None:
    from holdfast.report.terminal import render_verdict
    from holdfast.report.text import plural
    from holdfast.report.verified import render_looked

    if report.seen is not None:
        seen = report.seen
        render_looked(
            str(path), called=seen.contents.format, files=len(seen.contents.files), size=seen.size,
            tensors=seen.tensors, sums=seen.sums, elapsed_s=report.elapsed_s, file=sys.stdout,
        )  # fmt: skip
    warned = f"whole, as far as could be seen; {plural(len(report.verdict.suspects), 'warning')}"
    render_verdict(report.verdict, file=sys.stdout, merely=warned)
