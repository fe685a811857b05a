"""``holdfast chaos``: lists the faults that ``holdfast run --inject`` can cause, to prove that they are found."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, as_json: bool) -> None:
    """List the faults that `holdfast run --inject` can cause."""
    from holdfast.runtime.faults import KINDS

    if as_json:
        from holdfast.report.json import encode, envelope

        click.echo(encode(envelope("chaos", (), None, faults=KINDS)))
        return
    width = max(map(len, KINDS))
    for name, effect in KINDS.items():
        click.echo(f"{name:<{width}}  {effect}")
    click.echo(
        "\nholdfast run --inject 'hang@rank=2,step=30' …   (or collective=N; generation=all: after restarts too)"
    )
