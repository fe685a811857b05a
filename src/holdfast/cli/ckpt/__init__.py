"""``holdfast ckpt``: one module per command, loaded lazily as in ``holdfast.cli``."""

from __future__ import annotations

import click

from holdfast.cli.command_table import Table, TableGroup

#: Command -> its module, and its line in ``holdfast ckpt --help``.
COMMANDS: Table = {
    "inspect": (
        "holdfast.cli.ckpt.inspect",
        "Show a checkpoint's format, tensors, optimizer state and missing files.",
    ),
    "verify": (
        "holdfast.cli.ckpt.verify",
        "Check that a checkpoint is complete, intact and from a single save.",
    ),
    "convert": (
        "holdfast.cli.ckpt.convert",
        "Convert a checkpoint to another framework's format and verify the result.",
    ),
    "seal": (
        "holdfast.cli.ckpt.seal",
        "Record the hash of every file, so that verify finds each later change.",
    ),
    "diff": (
        "holdfast.cli.ckpt.diff",
        "Compare two checkpoints of any formats.",
    ),
}


@click.group(cls=TableGroup, table=COMMANDS)
def command() -> None:
    """Inspect, verify, seal, convert and compare checkpoints of any framework.

    Supports FSDP, DeepSpeed, Accelerate, Lightning, Hugging Face, Megatron and plain torch. Tensors
    are loaded only where their values are needed, and pickles are never executed. Neither torch nor
    the framework that wrote a checkpoint is required.
    """
