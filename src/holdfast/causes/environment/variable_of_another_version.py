"""ENV008 variable-of-another-version."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_OF_ANOTHER_VERSION = Cause(
    code="ENV008",
    name="variable-of-another-version",
    summary="The installed release does not read a variable that is set: it was removed, or was "
    "added later.",
    what_happens="Launch scripts outlive libraries. NCCL dropped about 30 names over the years "
    "(NCCL_TREE_THRESHOLD in 2.5.6), declares others without using them, and adds new ones with "
    "each release; torch 2.13 pins NCCL 2.29.7, which does not read what 2.30 added. A few are "
    "harmful: current libfabric aborts if FI_EFA_MTU_SIZE is set.",
    shows_before="The name in the environment, with the releases that read it, compared with the "
    "installed version.",
    shows_during="Nothing: the job behaves as if the variable were not set.",
    shows_after="Nothing, except for those that abort: the process ends when it first uses the "
    "fabric.",
    known_misses="The version is that of the package installed with torch; an NCCL that "
    "LD_LIBRARY_PATH or LD_PRELOAD puts before it is another one (nccl-version-mismatch). "
    "Versions of libfabric, UCX and plugins are not checked.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(
        disruptive(
            "Remove it from the script, or use a release that reads it.",
            "unset NCCL_TREE_THRESHOLD",
        ),
    ),
    sources=(
        "NVIDIA/nccl: release tags v1.2.1 to v2.30.7, scanned",
        "libfabric: prov/efa/src/efa_env.c",
    ),
)
