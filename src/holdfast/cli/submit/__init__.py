"""``holdfast submit``: one module per scheduler, loaded lazily as in ``holdfast.cli``."""

from __future__ import annotations

import click

from holdfast.cli.command_table import Table, TableGroup

#: Command -> its module, and its line in ``holdfast submit --help``.
COMMANDS: Table = {
    "slurm": (
        "holdfast.cli.submit.slurm",
        "Submit a batch job that checks its nodes, saves before its time limit and resumes.",
    ),
    "kubernetes": (
        "holdfast.cli.submit.kubernetes",
        "Submit a JobSet, or a TrainJob of Kubeflow, with probes and time to save.",
    ),
}


@click.group(cls=TableGroup, table=COMMANDS)
def command() -> None:
    """Submit a job to a scheduler, or write its file.

    The script follows the options, with options of `holdfast run` before it if needed:

    holdfast submit slurm --nodes 4 --nproc-per-node 8 -- --max-restarts 3 train.py --lr 1e-4
    """
