"""``holdfast env``: are the variables of a job read, of the right form, and do they go together?"""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--scan",
    metavar="PATH",
    type=Path,
    multiple=True,
    help="Read scripts, Dockerfiles, Slurm, YAML and Python files there instead; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, scan: tuple[Path, ...], as_json: bool) -> int:
    """Audit the environment variables of a job: read by nobody, renamed, misspelt, harmful, contradictory, too late.

    `holdfast explain NAME` says what one variable does.
    """
    from holdfast.actions.audit import audit_environment, audit_files

    audited = audit_files(scan) if scan else audit_environment()
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("env", audited.findings, None, variables=audited.given, unseen=audited.unseen))
        return audited.exit_status
    from holdfast.report.variables import render_audit

    where = f" in {audited.files} files" if scan else ""
    headline = f"{len(audited.given)} variables{where}"
    render_audit(audited.findings, audited.unseen, headline=headline, file=sys.stdout)
    return audited.exit_status
