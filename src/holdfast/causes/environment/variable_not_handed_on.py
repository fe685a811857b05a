"""ENV013 variable-not-handed-on."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_NOT_HANDED_ON = Cause(
    code="ENV013",
    name="variable-not-handed-on",
    summary="A script sets a variable without exporting it, so the programs it starts do not "
    "receive it.",
    what_happens="In a shell, `NCCL_DEBUG=INFO` on a line by itself sets a shell variable. Child "
    "processes receive it only after export, or if it precedes the command on the same line. In a "
    "Dockerfile, an export in RUN ends with that instruction; ENV keeps it.",
    shows_before="In the script: an assignment alone on its line, and no export of that name.",
    shows_during="Nothing: the job behaves as if the variable were not set.",
    shows_after="Nothing. /proc/<pid>/environ of a rank does not contain the name.",
    known_misses="A name that was exported earlier, in a file that sources this one, is passed on "
    "without another export.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(disruptive("Export it.", "export NCCL_DEBUG"),),
    sources=("POSIX.1-2024: Shell Command Language, 2.5.3 Shell Variables, export",),
)
