"""``holdfast env``: audit the environment variables of a job, or recommend some."""

from __future__ import annotations

import sys
from pathlib import Path

import click

PROFILES = ("infiniband", "roce", "ethernet", "single-node", "debug")
FORMATS = ("shell", "json", "slurm", "kubernetes")


@click.command()
@click.option(
    "--scan",
    metavar="PATH",
    type=Path,
    multiple=True,
    help="Audit scripts, Dockerfiles, YAML, Python, Markdown or any text instead. Repeatable.",
)
@click.option(
    "--recommend",
    is_flag=True,
    help="Recommend variables for this host, with reasons.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="Use this profile instead of auto-detection.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="shell",
    show_default=True,
    help="Output format of recommendations.",
)
@click.option(
    "--rdzv-endpoint",
    "endpoint",
    metavar="HOST[:PORT]",
    help="Rendezvous of the job; its route selects the interface "
    "[default: the launcher's variables].",
)
@click.option(
    "--nnodes", "nodes", metavar="N", type=click.IntRange(1), help="Number of hosts of the job."
)
@click.option(
    "--nproc-per-node",
    "workers",
    metavar="N",
    type=click.IntRange(1),
    help="Workers of the job on this host.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(  # noqa: PLR0913 - click passes each option by name
    *,
    scan: tuple[Path, ...],
    recommend: bool,
    profile: str | None,
    form: str,
    endpoint: str | None,
    nodes: int | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Audit environment variables of a job: unused, misspelled, harmful, contradictory, too late.

    `holdfast explain NAME` describes one variable. Exit status: 0 no errors, 1 errors, 2 a PATH
    sets no variable and starts no job.
    """
    if recommend or profile:
        if scan:
            raise click.UsageError(
                "--recommend uses this host and --scan uses files: choose one of them"
            )
        return _recommend(profile, "json" if as_json else form, endpoint, nodes, workers)
    return _run_audit(scan, as_json=as_json)


def _run_audit(scan: tuple[Path, ...], *, as_json: bool) -> int:
    from holdfast.cli.progress import ElapsedProgress
    from holdfast.host.variable_audit import audit_environment, audit_files

    with ElapsedProgress(sys.stderr, "reading"):
        audit = audit_files(scan) if scan else audit_environment()
    if as_json:
        from holdfast.report.json import envelope, write_json

        variables = [
            {"name": each.name, "value": each.value, "origin": each.location}
            for each in audit.shown()
        ]
        write_json(
            sys.stdout,
            envelope(
                "env",
                audit.findings,
                None,
                variables=variables,
                unseen=audit.unseen,
                without_launch=audit.without_launch,
            ),
        )
        return audit.exit_status
    from holdfast.core.text import pluralize
    from holdfast.preflight.env.rendering import render_audit

    scope = f" in {pluralize(audit.files, 'file')}" if scan else ""
    headline = pluralize(len(audit.settings), "variable") + scope
    unseen = (
        *audit.unseen,
        *(
            f"{path}: sets no variable and starts no job"
            for path in audit.without_launch
            if not any(why.startswith(f"{path}: ") for why in audit.unseen)
        ),
    )
    render_audit(
        audit.findings,
        unseen,
        headline=headline,
        file=sys.stdout,
        was_checked=not scan or audit.files > 0,
    )
    return audit.exit_status


def _recommend(
    profile: str | None, form: str, endpoint: str | None, nodes: int | None, workers: int | None
) -> int:
    from holdfast.core import settings
    from holdfast.host.checks import CheckContext
    from holdfast.host.variable_recommendation import parse_endpoint, recommend_here
    from holdfast.host.variable_rules.recommended import JobProfile

    place = CheckContext(
        environ=settings.current_environment(),
        workers=workers,
        endpoint=parse_endpoint(endpoint) if endpoint else None,
    )
    recommendation = recommend_here(place, JobProfile(profile) if profile else None, nodes)
    if form == "json":
        from holdfast.report.json import envelope, write_json

        write_json(
            sys.stdout,
            envelope(
                "env",
                (),
                None,
                profile=recommendation.profile,
                chosen_because=recommendation.chosen_because,
                recommended=recommendation.variables,
                left_out=recommendation.left_out,
            ),
        )
        return 0
    from holdfast.preflight.env.variable_formats import FORMATS as WRITERS

    remarks = (
        (
            f"holdfast env --recommend: profile {recommendation.profile} "
            f"({recommendation.chosen_because})"
        ),
        *(f"not set: {text}" for text in recommendation.left_out),
    )
    lines = [(advice.name, advice.value, advice.why) for advice in recommendation.variables]
    click.echo("\n".join(WRITERS[form](lines, remarks)))
    return 0
