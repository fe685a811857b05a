"""``holdfast diagnose --guided``: the decision tree from symptom to command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def run(paths: Sequence[str], *, as_json: bool) -> int:
    """Walk through the tree; ``paths`` are the logs, if named. Return the exit status."""
    from holdfast.diagnose.guided.tree import read_tree
    from holdfast.diagnose.guided.walk import run_command, walk_tree
    from holdfast.report.json import envelope, write_json

    walk = walk_tree(
        read_tree(),
        {"logs": paths[0]} if paths else {},
        _choose,
        lambda question: str(click.prompt(question, err=True)),
        lambda words: run_command(words, quiet=as_json),
        lambda line: click.echo(line, err=as_json),
    )
    if as_json:
        more = {"guided": walk.steps}
        write_json(sys.stdout, envelope("diagnose", (), None, **more))
    return walk.exit_status


def _choose(question: str, answers: tuple[str, ...]) -> int:
    click.echo(f"\n{question}", err=True)
    for number, answer in enumerate(answers, 1):
        click.echo(f"  {number}  {answer}", err=True)
    number = click.prompt("Number", type=click.IntRange(1, len(answers)), err=True)
    return int(number) - 1
