"""``holdfast ckpt verify``: check that a checkpoint is complete, intact and from one save."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.ckpt.verification import VerificationReport
    from holdfast.cli.progress import Progress


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--quick",
    is_flag=True,
    help="Check only names, sizes, shapes and times; read no tensor and compare no checksum.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(*, path: Path, quick: bool, as_json: bool) -> int:
    """Check whether checkpoint PATH can be resumed from: complete, intact and from a single save.

    Reads every byte once: checksums (of torch files, DCP, DeepSpeed and holdfast), NaN, infinities,
    all-zero weights, replicas and tied weights that differ, shards that do not cover their tensor,
    files of two saves under one name. Pickles are never executed, and nothing is modified.

    Exit status: 0 no problem found, 1 damaged, 2 PATH is not a checkpoint, 3 inconclusive.
    """
    from holdfast.ckpt.verification import verify_checkpoint
    from holdfast.cli.progress import Progress

    with Progress(sys.stderr) as progress:
        report = verify_checkpoint(path, quick=quick, on_progress=ReadProgress(progress))
    if as_json:
        _print_json(path, report)
    else:
        _print_text(path, report)
    return report.exit_status


class ReadProgress:
    """Accumulates the bytes read for the progress line."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.size = progress, 0
        self.files: set[str] = set()

    def __call__(self, size: int, file: str) -> None:
        """Count ``size`` more bytes read from ``file``."""
        self.size += size
        self.files.add(file)
        self.progress.tell(len(self.files), self.size, file)


def _print_json(path: Path, report: VerificationReport) -> None:
    from holdfast.report.json import envelope, write_json

    survey = report.survey
    amounts = {
        "format": survey.contents.format if survey else None,
        "step": survey.contents.step if survey and isinstance(survey.contents.step, int) else None,
        "files": len(survey.contents.files) if survey else 0,
        "size_bytes": survey.size if survey else 0,
        "tensors": survey.tensors if survey else 0,
        "checksums": survey.sums if survey else 0,
        "without_checksum": survey.bare if survey else (),
    }
    more = {"path": str(path), "elapsed_s": report.elapsed_s, **amounts}
    write_json(sys.stdout, envelope("ckpt verify", report.findings, report.verdict, **more))


def _print_text(path: Path, report: VerificationReport) -> None:
    from holdfast.ckpt.render.verification import render_verification
    from holdfast.core.findings import Level
    from holdfast.core.text import pluralize
    from holdfast.report.terminal import render_verdict

    if report.survey is not None:
        survey = report.survey
        render_verification(
            str(path),
            format_name=survey.contents.format,
            files=len(survey.contents.files),
            size=survey.size,
            tensors=survey.tensors,
            sums=survey.sums,
            elapsed_s=report.elapsed_s,
            file=sys.stdout,
        )
    notes = sum(suspect.level is Level.NOTE for suspect in report.verdict.suspects)
    warnings = len(report.verdict.suspects) - notes
    counts = [
        pluralize(number, noun)
        for number, noun in ((warnings, "warning"), (notes, "note"))
        if number
    ]
    headline = f"no errors found; {', '.join(counts)}"
    render_verdict(report.verdict, file=sys.stdout, warning_headline=headline)
