"""``holdfast submit slurm``: write and submit a batch script."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.general_options import GroupedCommand
from holdfast.cli.submit import job_options

_OPTION_GROUPS = {
    "Slurm": "time partition account gpus-per-node cpus-per-node mem exclude "
    "spare-nodes requeue-failures output sbatch srun",
}


@click.command(
    cls=GroupedCommand,
    groups=_OPTION_GROUPS,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--time", "time_limit", metavar="TIME", default="", help="Time limit, as for sbatch.")
@click.option("--partition", metavar="NAME", default="", help="Partition.")
@click.option("--account", metavar="NAME", default="", help="Account.")
@click.option("--gpus-per-node", metavar="N", default="", help="GPUs of each node.")
@click.option("--cpus-per-node", metavar="N", type=click.IntRange(1), help="CPUs of each node.")
@click.option("--mem", "memory", metavar="SIZE", default="", help="Memory of each node, e.g. 900G.")
@click.option("--exclude", metavar="NODES", default="", help="Nodes that must not be used.")
@click.option(
    "--spare-nodes",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Allocate N more nodes, in case some fail the health gate.",
)
@click.option(
    "--requeue-failures",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Requeue the job up to N times after it failed. "
    "Time limit, preemption and node failure always requeue it.",
)
@click.option(
    "--checkpoints", metavar="DIR", help="Folder of the checkpoints, for the health gate."
)
@click.option(
    "--run-dir",
    "runs",
    metavar="DIR",
    default="holdfast-runs",
    show_default=True,
    help="Parent of the run folders, on a disk that all nodes share.",
)
@click.option(
    "--python", default=sys.executable, help="Python of the nodes [default: the one in use]."
)
@click.option(
    "--setup",
    metavar="LINE",
    multiple=True,
    help="Line of shell before the job, e.g. 'module load cuda'. Repeatable.",
)
@click.option(
    "--output", metavar="FILE", default="slurm-%j.out", show_default=True, help="Output of the job."
)
@click.option("--sbatch", metavar="OPTION", multiple=True, help="Further option of sbatch.")
@click.option("--srun", metavar="OPTION", multiple=True, help="Further option of srun.")
@job_options.options
def command(*, checkpoints: str | None, runs: str, python: str, **chosen: Any) -> int:
    """Submit a Slurm job that runs SCRIPT with `holdfast run` on every node.

    Before each start the nodes are checked. Slurm's warning before the time limit makes the workers
    save; the job then requeues itself and resumes. --dry-run prints the script.
    """
    from holdfast.launcher.submission.request import JobRequest
    from holdfast.launcher.submission.slurm import SlurmRequest, slurm_script, submit_to_slurm

    script = job_options.script_of(chosen["words"], on_this_host=True)
    fields = job_options.job_fields(chosen, script)
    job = JobRequest(checkpoints=checkpoints, runs=runs, python=python, **fields)
    more = {name: chosen[name] for name in SlurmRequest.__struct_fields__ if name != "job"}
    file = slurm_script(SlurmRequest(job=job, **more))
    return job_options.finish("Slurm", file, chosen, submit_to_slurm)
