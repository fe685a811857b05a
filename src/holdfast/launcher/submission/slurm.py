"""Slurm: the batch script of a job, and its submission with ``sbatch``.

The script (its fixed part is ``slurm_job.sh``) checks the nodes, starts ``holdfast run`` on each
healthy one with the c10d rendezvous, and requeues the job after Slurm's warning before the time
limit. The warning is SIGUSR1 to the script only: SIGTERM also follows ``scancel`` and preemption,
after which a job must not requeue itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.launcher.submission.programs import run_program
from holdfast.launcher.submission.request import JobRequest

_BODY = Path(__file__).with_name("slurm_job.sh")


class SlurmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job for Slurm; empty options keep the cluster's defaults.

    ``spare_nodes``: nodes that are allocated in addition, in case some fail the gate.
    ``requeue_failures``: how often the job is requeued after failures. ``sbatch`` and ``srun``:
    further options of these programs.
    """

    job: JobRequest
    time_limit: str = ""
    partition: str = ""
    account: str = ""
    gpus_per_node: str = ""
    cpus_per_node: int | None = None
    memory: str = ""
    exclude: str = ""
    output: str = "slurm-%j.out"
    spare_nodes: int = 0
    requeue_failures: int = 0
    setup: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject what would change the script's meaning."""
        for option, texts in (("--sbatch", self.sbatch), ("--srun", self.srun)):
            for text in texts:
                if not text.startswith("-") or "\n" in text:
                    raise InvalidValue(
                        option,
                        why=f"{text!r} is not an option",
                        next_step=f"use {option}=--qos=high",
                    )


def slurm_script(request: SlurmRequest) -> str:
    """Return the batch script."""
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {directive}" for directive in _directives(request)),
            "",
            *request.setup,
            *_variables(request),
            _BODY.read_text(),
        ]
    )


def _directives(request: SlurmRequest) -> Iterator[str]:
    """Yield sbatch's options; those of the user last, so that they take precedence."""
    job = request.job
    values = {
        "job-name": job.name,
        "nodes": job.nodes + request.spare_nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": request.cpus_per_node,
        "gpus-per-node": request.gpus_per_node,
        "mem": request.memory,
        "time": request.time_limit,
        "partition": request.partition,
        "account": request.account,
        "exclude": request.exclude,
        "output": request.output,
        "open-mode": "append",
        "signal": f"B:USR1@{job.warning_s}",
    }
    yield from (f"--{name}={value}" for name, value in values.items() if value not in ("", None))
    yield "--requeue"
    yield from request.sbatch


def _variables(request: SlurmRequest) -> Iterator[str]:
    job = request.job
    for name, value in job.variables.items():
        yield f"export {name}={shlex.quote(value)}"
    yield f"nodes={job.nodes}"
    yield f"use_gate={'yes' if job.gate else 'no'}"
    yield f"requeue_failures={request.requeue_failures}"
    run = ("--nproc-per-node", str(job.workers), *job.run_words)
    for name, words in (
        ("holdfast", (job.python, "-m", "holdfast")),
        ("check", (*job.check_words, "--no-job", "--wait", "60s")),
        ("run", run),
        ("srun_options", request.srun),
    ):
        yield f"{name}=({shlex.join(words)})"


def submit_to_slurm(script: str) -> str:
    """Submit the script; return the job's number.

    Raises:
        MissingFile: there is no ``sbatch``.
        SubmissionRefused: Slurm refused the job, or does not answer.
    """
    return run_program(("sbatch", "--parsable"), script, "Slurm").partition(";")[0]
