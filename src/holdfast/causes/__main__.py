"""``python -m holdfast.causes new NAME --family FAMILY``: write the file of a new cause."""

from __future__ import annotations

import click

from holdfast.causes.new_cause import FOLDERS, write_new_cause
from holdfast.core.errors import HoldfastError


@click.group()
def main() -> None:
    """Work on the catalogue of causes, in a source checkout."""


@main.command()
@click.argument("name")
@click.option(
    "--family", required=True, type=click.Choice(list(FOLDERS)), help="Folder of the new file."
)
@click.option(
    "--gpu-only",
    is_flag=True,
    help="The fault needs a GPU: explain how to test with recorded output instead of a program.",
)
def new(*, name: str, family: str, gpu_only: bool) -> None:
    """Write the file of a new cause with the next free code, and print the next steps."""
    try:
        click.echo(write_new_cause(name, family, gpu_only=gpu_only), nl=False)
    except HoldfastError as error:
        raise click.UsageError(str(error)) from None


if __name__ == "__main__":
    main(prog_name="python -m holdfast.causes")
