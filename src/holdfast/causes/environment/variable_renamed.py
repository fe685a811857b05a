"""ENV005 variable-renamed."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_RENAMED = Cause(
    code="ENV005",
    name="variable-renamed",
    summary="A variable is set under its old name, which is deprecated, overridden or incomplete.",
    what_happens="torch 2.2 added the prefix TORCH_ to its NCCL_* variables: "
    "NCCL_ASYNC_ERROR_HANDLING, NCCL_BLOCKING_WAIT, NCCL_DESYNC_DEBUG, NCCL_ENABLE_TIMING. The "
    "old names still work in 2.13 with a warning, but the new name takes precedence. The elastic "
    "agent exports TORCH_NCCL_ASYNC_ERROR_HANDLING=1 to its workers, so the old spelling of this "
    "one has no effect under torchrun.",
    shows_before="Old names in the launcher's environment or in job scripts. "
    "TORCH_NCCL_TRACE_BUFFER_SIZE is a special case: deprecated in favor of TORCH_FR_BUFFER_SIZE, "
    "yet the only name that enables dumps of the NCCL group.",
    shows_during="A deprecation warning at startup; error handling, waiting or tracing behaves as "
    "if the setting were absent.",
    shows_after="No dump, or no teardown, where the setting should have caused one. No log line "
    "says that the variable was overridden.",
    known_misses="A deprecated name that still works is reported as a note only. Old torch "
    "releases read only the old name, so the advice depends on the version that the job really "
    "runs.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(
        disruptive(
            "Set the new name; set both to the same value while torch older than 2.2 is in use.",
            "export TORCH_NCCL_ASYNC_ERROR_HANDLING=$NCCL_ASYNC_ERROR_HANDLING",
        ),
        disruptive(
            "Set the flight recorder's size under both of its names, as the presets do.",
            "export TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
        ),
    ),
    sources=(
        "torch 2.13.0: ProcessGroupNCCL.hpp, FlightRecorder.hpp",
        "torch: local_elastic_agent.py",
    ),
)
