"""ENV012 variable-differs-between-hosts."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_DIFFERS_BETWEEN_HOSTS = Cause(
    code="ENV012",
    name="variable-differs-between-hosts",
    summary="A variable has a different value on some hosts, or is set on some of them only.",
    what_happens="Launchers pass on different variables: ssh none, DeepSpeed's launcher those "
    "that begin with NCCL, PYTHON, MV2, UCX or MLFLOW and the content of .deepspeed_env, srun all "
    "of them. Ranks that disagree on the address, the number of ranks, the network or the "
    "algorithm wait for each other; with less critical variables the slowest host sets the pace.",
    shows_before="`holdfast check` over several hosts compares their environments.",
    shows_during="All ranks are in the first collective, or one host is slower than the others.",
    shows_after="`nccl internal error`, a closed connection or a timeout; nothing names the "
    "variable.",
    known_misses="Values that must differ (ranks, visible devices, file names) are excluded by a "
    "list of names. Variables that the program sets itself are not visible.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(
        disruptive(
            "Set it in one place that all hosts read: the job script with srun, or .deepspeed_env."
        ),
        automatic(
            "Compare the hosts.",
            "srun --ntasks-per-node=1 sh -c 'env | grep -E \"NCCL|GLOO|TORCH\"'",
        ),
    ),
    sources=(
        "deepspeedai/DeepSpeed: deepspeed/launcher/runner.py, EXPORT_ENVS",
        "pytorch/pytorch#108212",
    ),
)
