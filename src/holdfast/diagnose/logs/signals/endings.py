"""Signals of an end that a process or a launcher causes, and of the kernel's log.

What follows such an end is mostly an echo. A log with lines of the kernel would contain its faults.
"""

from __future__ import annotations

from holdfast.diagnose.logs.signals.row import rows

ENDINGS = rows(
    ("rank-aborts", r"taking the entire process down|terminate called (?:after|without)"),
    ("workers-restarted", r"will restart worker group|Stopping worker group"),
    ("rank-aborts", r"watchdog thread terminated with exception"),
    ("launcher-ends-ranks", r"Sending process \d+ closing signal|^Killing subprocess \d+"),
    (
        "launcher-ends-ranks",
        r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6})",
        r"mpi(?:run|exec).{0,40} (?:has )?(?:abort|kill)ed? ",
        r"srun: Job step aborted|srun: (?:Terminating|Force Terminated) (?:Step|job)",
    ),
    ("launcher-ends-ranks", r"MPI_ERRORS_ARE_FATAL|Fatal error in (?:internal_|P?MPI_)\w+: "),
    ("launcher-ends-ranks", r"Primary job +terminated normally, but \d+ process"),
)

KERNEL = rows(
    (
        "kernel-line",
        r"^(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,32}) \S{1,100} kernel: ",
        r"^\[(?: {0,6}\d{1,9}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4})\] ",
    ),
)
