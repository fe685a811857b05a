"""ENV020 variable-not-sent."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_NOT_SENT = Cause(
    code="ENV020",
    name="variable-not-sent",
    summary="A script sets a variable, but the launcher does not send it to the ranks.",
    what_happens="DeepSpeed's launcher starts the ranks of several hosts with pdsh, which logs in "
    "to each host, the local one included. It sends the variables that begin with NCCL, PYTHON, "
    "MV2, UCX or MLFLOW, and each line of the file .deepspeed_env. GLOO_SOCKET_IFNAME, "
    "TORCH_NCCL_* and OMP_NUM_THREADS are not among them, even if the script exports them or sets "
    "them on the command line.",
    shows_before="In the script: a variable that is set before a line with `deepspeed "
    "--hostfile`, and is not in .deepspeed_env. `holdfast env --scan` reads both.",
    shows_during="The ranks behave as if the variable were not set: gloo uses another interface "
    "and cannot connect, each rank uses all CPU cores of its host.",
    shows_after="Nothing that names the variable. /proc/<pid>/environ of a rank does not contain "
    "it.",
    known_misses="A .deepspeed_env in the home folder, and one that DS_ENV_FILE names, are not "
    "read. Without --hostfile on the line the launcher uses /job/hostfile, and nothing is "
    "reported. With one host, with --no_ssh, or with --launcher slurm, mpich or impi the ranks "
    "have the whole environment, and nothing is reported.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(
        disruptive(
            "Write it into .deepspeed_env, in the folder where the launcher is started or in "
            "the home folder.",
            "echo GLOO_SOCKET_IFNAME=INTERFACE >> .deepspeed_env",
        ),
        automatic(
            "Compare the hosts.",
            "holdfast check --nnodes 2 --rdzv-endpoint MASTER_HOST:MASTER_PORT",
        ),
    ),
    sources=(
        "deepspeedai/DeepSpeed 0.19.8: deepspeed/launcher/runner.py, EXPORT_ENVS",
        "deepspeedai/DeepSpeed 0.19.8: accelerator/cuda_accelerator.py, export_envs",
    ),
)
