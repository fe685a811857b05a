"""``holdfast attach``: looks into a job that hangs now and was started without holdfast."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.option("--pid", "pids", metavar="PID", type=int, multiple=True, help="A process of the job; may be repeated.")
@click.option("--name", metavar="TEXT", default="", help="Text in the command line of the job's processes.")
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), help="The port of the job's rendezvous.")
@click.option("--hosts", metavar="A,B", default="", help="Look on these hosts over ssh, where holdfast is on PATH.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--html", metavar="FILE", type=Path, help="Write the report as a page there.")
def command(*, pids: tuple[int, ...], name: str, port: int | None, hosts: str, as_json: bool, html: Path | None) -> int:
    """Look into a job that hangs now: who waits, who does not, and at which line.

    Finds the training processes of this host, or those that are named; takes the stacks of all their threads twice, a
    second apart, from outside, and changes nothing in the job.
    """
    from holdfast.actions.attach import attach, document, tree, write_page
    from holdfast.facts.jobs import Search

    if not as_json and sys.stderr.isatty():
        click.echo("holdfast: looking twice, a second apart …", err=True)
    found = attach(Search(pids, name, port), tuple(host.strip() for host in hosts.split(",") if host.strip()))
    if found is None:  # another copy, on another node, judges and prints
        return 0
    if html is not None:
        write_page(found, html)
    verdict = found.verdict
    if as_json:
        from holdfast.report.json import envelope, write

        findings = (*([verdict.root] if verdict.root else []), *verdict.suspects)
        write(sys.stdout, envelope("attach", findings, verdict, **document(found)))
    else:
        from holdfast.report.terminal import render_stacks, render_verdict

        page = str(html) if html else None
        render_verdict(verdict, file=sys.stdout, html=page, elapsed_s=found.elapsed_s)
        render_stacks(tree(found, everything=False), file=sys.stdout)
    return found.exit_status
