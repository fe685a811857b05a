"""``holdfast attach``: inspect a hung job that was started without holdfast."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli.general_options import OutputFile, remark
from holdfast.cli.language import language_option


@click.command()
@click.argument("processes", metavar="[PID]...", type=int, nargs=-1)
@click.option(
    "--pid",
    "pids",
    metavar="PID",
    type=int,
    multiple=True,
    help="A process of the job, the same as PID. Repeatable.",
)
@click.option(
    "--name", metavar="TEXT", default="", help="Text in the command line of the job's processes."
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Port of the job's rendezvous.",
)
@click.option(
    "--hosts",
    metavar="A,B",
    default="",
    help="Inspect these hosts over ssh; holdfast must be on their PATH.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write an HTML report.")
@language_option
def command(
    *,
    processes: tuple[int, ...],
    pids: tuple[int, ...],
    name: str,
    port: int | None,
    hosts: str,
    as_json: bool,
    html: Path | None,
) -> int:
    """Inspect a running, hung job: which rank and line the others are waiting for.

    Finds the training processes of this host, or those of the job to which process PID belongs, and
    samples the stacks of all their threads twice, one second apart, from outside. The job is not
    modified.
    """
    from holdfast.diagnose.attach.jobs import JobSearch
    from holdfast.diagnose.attach.session import (
        attach_json,
        attach_to_job,
        render_stack_tree,
        write_attach_page,
    )

    if not as_json and sys.stderr.isatty():
        remark("holdfast: sampling stacks twice, one second apart …")
    result = attach_to_job(
        JobSearch((*processes, *pids), name, port),
        tuple(host.strip() for host in hosts.split(",") if host.strip()),
    )
    if result is None:  # another process, on another node, prints the result
        return 0
    if html is not None:
        write_attach_page(result, html)
    verdict = result.verdict
    if as_json:
        from holdfast.report.json import envelope, write_json

        findings = (*([verdict.root] if verdict.root else []), *verdict.suspects)
        write_json(sys.stdout, envelope("attach", findings, verdict, **attach_json(result)))
    else:
        from holdfast.report.terminal import render_stacks, render_verdict

        remark(f"holdfast: inspected {result.job}")
        page = str(html) if html else None
        render_verdict(
            verdict,
            file=sys.stdout,
            html=page,
            inconclusive=result.is_inconclusive,
        )
        render_stacks(render_stack_tree(result, all_threads=False), file=sys.stdout)
    return result.exit_status
