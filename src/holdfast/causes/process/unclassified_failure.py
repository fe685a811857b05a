"""PROC014 unclassified-failure."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

UNCLASSIFIED_FAILURE = Cause(
    code="PROC014",
    name="unclassified-failure",
    summary="The job failed, and no line of the logs belongs to a cause that holdfast knows.",
    what_happens="A rank or a launcher reports a failure, or the log ends with an error that no "
    "rule knows. The finding cites what is evidence nevertheless: the rank that failed first, and "
    "the lines that are new before its end, compared with what the same job printed before.",
    shows_before="Nothing.",
    shows_during="Nothing.",
    shows_after="Lines of a kind that the log did not contain before, on one rank or before the "
    "first report of the failure.",
    known_misses="The first and last kilobytes of up to 512 logs are compared; a reason in the "
    "middle of a long log is not found. A harmless line that is printed once, before the end, is "
    "cited too.",
    signals=(
        LogSignal(
            name="command-refused",
            tier=Tier.OUTSIDE,
            confidence=0.55,
            sentence="a shell, container runtime or scheduler could not start the program",
            patterns=(
                (
                    r"(?:python[\d.]*|torchrun|accelerate|deepspeed|mpi(?:run|exec)|srun|ray|holdfast"
                    r"|horovodrun|singularity|apptainer|enroot|docker|uv|poetry): "
                    r"(?:command )?not found\b"
                ),
                (
                    r"exec(?:ve\(\))?: \S{1,300}: (?:[Nn]o such file|[Pp]ermission denied"
                    r"|executable file not found|not found)|[Ee]xec format error|bad interpreter: "
                ),
                r"exec: \S{1,200}: executable file not found in \$PATH",
                r"env: '?[^\s':]{1,100}'?: No such file or directory",
                r"cannot execute binary file|OCI runtime (?:create|exec) failed",
                r"srun: error: Unable to (?:create step|allocate resources|confirm allocation)",
                r"sbatch: error: (?:Batch job submission failed|Unable to)",
                r"(?:mpirun|prterun|orterun) was unable to (?:find|launch|start) the specified",
                r"OMPI was not built with SLURM's PMI support|PMI[x2]?_Init(?:ialized)? failed",
                r"CreateContainer(?:Config)?Error|RunContainerError|Cannot load the MPI plugin",
            ),
            examples=(
                "run.sh: line 7: torchrun: command not found",
                "slurmstepd: error: execve(): fit.sh: Permission denied",
                "/usr/bin/env: 'python': No such file or directory",
                (
                    "srun: error: Unable to create step for job 811: More processors requested "
                    "than permitted"
                ),
            ),
            counter_examples=(
                "run.sh: line 3: module: command not found",
                "srun: job 811 has been allocated resources",
            ),
        ),
    ),
    log_examples=("step 40: loss 2.1\n[rank2]: flux regulator: fatal error: no reply",),
    alternatives=("exit-nonzero", "python-exception-on-one-rank"),
    may_be_consequence=True,
    evidence_sources=(EvidenceSource.LOG,),
    remedies=(
        by_hand("Read the cited lines, and the end of the log of the rank that failed first."),
        by_hand("Search for the cited line in the issues of the library that printed it."),
        WATCH,
        RESTART,
    ),
    sources=("He et al. 2017: Drain, an online log parsing approach with fixed depth tree",),
)
