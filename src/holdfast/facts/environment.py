"""The environment variables that decide how a distributed job runs, with secrets left out.

The variables are given by whoever may read them (:mod:`holdfast.settings`, or the box of a job that is over).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.facts.host import seen_here
from holdfast.findings import Fact

_PREFIXES = (
    "NCCL_", "RCCL_", "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "GLOO_", "UCC_", "UCX_",
    "FI_", "CUDA_", "CUBLAS_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_",
    "TRITON_", "MASTER_", "SLURM_", "PMI_", "PMIX_", "OMPI_", "MPI_", "HOLDFAST_", "PYTHON", "ACCELERATE_", "FSDP_",
    "DEEPSPEED_",
)  # fmt: skip
_NAMES = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "NODE_RANK", "NNODES", "LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "TP_SOCKET_IFNAME",
    "TOKENIZERS_PARALLELISM", "GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "CC", "CXX",
})  # fmt: skip
LEFT_OUT = "<left out>"
_MOST_CHARACTERS = 2000

_SECRET_NAME = re.compile(r"_ALERTS$|KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|COOKIE|JWT|_PWD$|PASSPHRASE|PRIVATE")
_AUTH_NAME = re.compile(r"AUTH|SIGNATURE|SESSION|BEARER")
_LONG = re.compile(r"[A-Za-z0-9+/_=.-]{24,}")
_IN_URL = re.compile(r"(://)[^/@\s]+@")
#: What known services give out: tokens that say by their beginning what they are.
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|nvapi-)[A-Za-z0-9_-]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\b(?i:bearer|basic)\s+[A-Za-z0-9+/_=.-]{12,}",
    re.DOTALL,
)


def environment_facts(environ: Mapping[str, str]) -> tuple[Fact, ...]:
    """One fact ``NAME=value`` for each variable in ``environ`` that matters, in the order of names."""
    return tuple(_fact(name, environ[name]) for name in sorted(environ) if matters(name))


def matters(name: str) -> bool:
    """True for a variable that torch, its libraries, the scheduler or holdfast reads."""
    return name in _NAMES or name.startswith(_PREFIXES)


def without_secret(name: str, value: str) -> str:
    """``value``, or what may be shown of it: passwords in addresses, keys and tokens are left out."""
    if value and _SECRET_NAME.search(name.upper()):
        return LEFT_OUT
    if _AUTH_NAME.search(name.upper()):
        value = _LONG.sub(LEFT_OUT, value)
    value = _SECRET_VALUE.sub(LEFT_OUT, _IN_URL.sub(rf"\1{LEFT_OUT}@", value))
    return value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}… ({len(value)} characters)"


def _fact(name: str, value: str) -> Fact:
    seen = seen_here(name, "", f"environment variable {name}")
    return Fact(text=f"{name}={without_secret(name, value)}", origin=seen.origin, host=seen.host, time=seen.time)
