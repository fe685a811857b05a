"""ENV006 variable-never-read."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_NEVER_READ = Cause(
    code="ENV006",
    name="variable-never-read",
    summary="No library in this job reads a variable that is set, usually a misspelling or an "
    "invented name.",
    what_happens="Names copied from forums and vendor pages have no effect: NCCL_IB_ENABLE, "
    "NCCL_P2P_ENABLE and NCCL_NVLS_DISABLE are inverted, NCCL_BUFFER_SIZE and NCCL_DEBUG_LEVEL "
    "are misspelled, NCCL_SOCKET_TIMEOUT never existed. torchrun's own NNODES and NPROC_PER_NODE "
    "need the prefix PET_.",
    shows_before="The name is in the environment and in no library's list. Values can be as "
    "ineffective as names: NCCL reads a number up to the first other character, so "
    "NCCL_IB_DISABLE=true means 0 and InfiniBand stays enabled.",
    shows_during="Nothing: the job behaves as if the variable were not set.",
    shows_after="Nothing. With NCCL_DEBUG=INFO, NCCL prints the variables that it took from the "
    "environment; it did not read one that is missing there.",
    known_misses="The program itself, or a plugin, may read any name. Such a variable is reported "
    "as a note, never as an error.",
    evidence_sources=(
        EvidenceSource.ENVIRONMENT,
        EvidenceSource.SOURCE,
    ),
    remedies=(
        disruptive(
            "Remove it, or set the intended variable: NCCL_IB_DISABLE=1, NCCL_BUFFSIZE, "
            "NCCL_DEBUG.",
            "unset NCCL_IB_ENABLE NCCL_P2P_ENABLE NCCL_BUFFER_SIZE",
        ),
    ),
    sources=("NVIDIA/nccl: all release tags, scanned", "torch: torch/distributed/argparse_util.py"),
)
