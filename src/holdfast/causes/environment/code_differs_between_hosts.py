"""ENV019 code-differs-between-hosts."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CODE_DIFFERS_BETWEEN_HOSTS = Cause(
    code="ENV019",
    name="code-differs-between-hosts",
    summary="The training program is not the same on all hosts: another commit, or modified files.",
    what_happens="Hosts without a shared file system have copies of the code, and one of them is "
    "old or was edited in place. The ranks then run different programs: other collectives in "
    "another order, other shapes, another number of steps.",
    shows_before="`holdfast check` in the program's folder compares a fingerprint of its Python "
    "files, and the commit. `git status` on one host says nothing about the others.",
    shows_during="Any effect of different programs: mostly a hang, with ranks at lines that do "
    "not belong together.",
    shows_after="Calls that differ between the ranks of two hosts (collective-mismatch), or "
    "stacks whose line numbers do not match your code.",
    known_misses="Only the Python files of the folder in which check was started are compared, "
    "and its commit; data, configuration files and packages installed elsewhere are not.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        by_hand("Bring all hosts to one commit, or start from one shared folder."),
        automatic(
            "Compare the commits.",
            "srun --ntasks-per-node=1 sh -c 'hostname; git rev-parse HEAD; git status --short'",
        ),
    ),
    sources=("pytorch/pytorch#72768", "holdfast: host/source_fingerprint.py"),
)
