"""``holdfast ckpt``: what is in checkpoints of any framework, one file a command, found as in ``holdfast.cli``."""

from __future__ import annotations

import click

from holdfast.cli.table import Table, TableGroup

#: Command -> the module that holds it, and its line in ``holdfast ckpt --help``.
COMMANDS: Table = {
    "inspect": ("holdfast.cli.ckpt.inspect", "Say what a checkpoint is, and what is in it and what is missing."),
    "verify": ("holdfast.cli.ckpt.verify", "Say whether a checkpoint is whole, as it was written, and of one save."),
    "convert": ("holdfast.cli.ckpt.convert", "Write a checkpoint in the format of another framework, and prove it."),
    "diff": ("holdfast.cli.ckpt.diff", "Say what differs between two checkpoints, of whatever formats."),
}


@click.group(cls=TableGroup, table=COMMANDS)
def command() -> None:
    """Look into checkpoints of FSDP, DeepSpeed, Accelerate, Lightning, Hugging Face, Megatron and torch itself.

    No tensor is loaded where its place in the files is enough, and nothing in a pickle runs. Neither torch nor the
    framework that wrote a checkpoint is needed.
    """
