"""ENV007 variable-value-unusable."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

VARIABLE_VALUE_UNUSABLE = Cause(
    code="ENV007",
    name="variable-value-unusable",
    summary="The program that reads a variable misinterprets, ignores or rejects its value.",
    what_happens="Every library parses text in its own way. NCCL takes the leading digits and "
    "ignores the rest: NCCL_IB_DISABLE=true is 0, NCCL_BUFFSIZE=8M is 8 bytes, 010 is eight. "
    "Names of distances (NCCL_P2P_LEVEL) must be upper case. Since NCCL 2.24 an unknown algorithm "
    "makes setup fail. torch's C++ code raises on unknown words, gloo accepts no ^ and no = in "
    "interface names, and an unknown value of TORCH_DISTRIBUTED_DEBUG makes the import of "
    "torch.distributed fail.",
    shows_before="The value in the environment or in a launch script does not have the form that "
    "its reader expects: `holdfast env` compares them, `holdfast explain NAME` prints the form.",
    shows_during="Mostly nothing: the job runs with another setting than intended, for example "
    "with InfiniBand still enabled or with tiny buffers.",
    shows_after="If the value was rejected: an error at import or in the first collective, the "
    "same on all ranks. With NCCL_DEBUG=INFO, NCCL prints `NAME set by environment to N`, where N "
    "is the parsed value.",
    known_misses="Values that a script builds at run time are not checked. Ranges are those of "
    "the newest releases.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    treatment=Treatment.CODE,
    remedies=(
        automatic("Show the form that the reader expects.", "holdfast explain NCCL_IB_DISABLE"),
        disruptive(
            "Write numbers without units, and 1 or 0 for yes or no.", "export NCCL_IB_DISABLE=1"
        ),
    ),
    sources=(
        "NVIDIA/nccl: src/misc/param.cc, src/graph/paths.cc",
        "torch: torch/csrc/distributed/c10d/Utils.hpp",
    ),
)
