"""``holdfast env``: are the variables of a job read, of the right form, and do they go together? Which would fit?"""

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
    help="Read scripts, Dockerfiles, Slurm, YAML and Python files there instead; may be repeated.",
)
@click.option("--recommend", is_flag=True, help="Print the variables that fit this host, with the reason for each.")
@click.option("--profile", type=click.Choice(PROFILES), help="Recommend for this, whatever the host looks like.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="shell",
    show_default=True,
    help="How recommendations are written.",
)
@click.option(
    "--rdzv-endpoint",
    "endpoint",
    metavar="HOST[:PORT]",
    help="The rendezvous: the interface is chosen by the route to it. Else by the launcher's variables.",
)
@click.option("--nnodes", "nodes", metavar="N", type=click.IntRange(1), help="Hosts of the job.")
@click.option("--nproc-per-node", "workers", metavar="N", type=click.IntRange(1), help="Workers that will run here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(  # noqa: PLR0913 - click hands each option over by name
    *, scan: tuple[Path, ...], recommend: bool, profile: str | None, form: str, endpoint: str | None, nodes: int | None,
    workers: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Audit the environment variables of a job: read by nobody, renamed, misspelt, harmful, contradictory, too late.

    `holdfast explain NAME` says what one variable does.
    """
    if recommend or profile:
        if scan:
            raise click.UsageError("--recommend looks at this host and --scan at files: give one of them")
        return _recommend(profile, "json" if as_json else form, endpoint, nodes, workers)
    return _audit(scan, as_json=as_json)


def _audit(scan: tuple[Path, ...], *, as_json: bool) -> int:
    from holdfast.actions.audit import audit_environment, audit_files

    audited = audit_files(scan) if scan else audit_environment()
    if as_json:
        from holdfast.report.json import envelope, write

        given = [{"name": each.name, "value": each.value, "origin": each.place} for each in audited.shown()]
        write(sys.stdout, envelope("env", audited.findings, None, variables=given, unseen=audited.unseen))
        return audited.exit_status
    from holdfast.report.text import plural
    from holdfast.report.variables import render_audit

    where = f" in {plural(audited.files, 'file')}" if scan else ""
    headline = plural(len(audited.given), "variable") + where
    render_audit(audited.findings, audited.unseen, headline=headline, file=sys.stdout)
    return audited.exit_status


def _recommend(profile: str | None, form: str, endpoint: str | None, nodes: int | None, workers: int | None) -> int:
    from holdfast import settings
    from holdfast.actions.recommend import parse_endpoint, recommend_here
    from holdfast.facts.checks import Place
    from holdfast.rules.environment.recommended import Profile

    place = Place(
        environ=settings.environment(), workers=workers, endpoint=parse_endpoint(endpoint) if endpoint else None
    )
    found = recommend_here(place, Profile(profile) if profile else None, nodes)
    if form == "json":
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("env", (), None, profile=found.profile, chosen_because=found.chosen_because,
                                   recommended=found.variables, left_out=found.left_out))  # fmt: skip
        return 0
    from holdfast.report.variable_formats import FORMATS as WRITERS

    remarks = (f"holdfast env --recommend: profile {found.profile}, as {found.chosen_because}",
               *(f"left out: {text}" for text in found.left_out))  # fmt: skip
    lines = [(advice.name, advice.value, advice.why) for advice in found.variables]
    click.echo("\n".join(WRITERS[form](lines, remarks)))
    return 0
