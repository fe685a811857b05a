"""Environment variables that affect a distributed job, with secrets redacted.

The caller passes the variables (from :mod:`holdfast.core.settings`, or the trace file of a finished
job).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.findings import Fact
from holdfast.host.host_summary import local_fact

_PREFIXES = tuple(
    """
    NCCL_ RCCL_ TORCH_ TORCHELASTIC_ TORCHINDUCTOR_ TORCHDYNAMO_ PYTORCH_ GLOO_ UCC_ UCX_ FI_
    CUDA_ CUBLAS_ NVIDIA_ HIP_ HSA_ ROCR_ OMP_ KMP_ GOMP_ MKL_ OPENBLAS_ TRITON_ MASTER_ SLURM_
    PMI_ PMIX_ OMPI_ MPI_ HOLDFAST_ PYTHON ACCELERATE_ FSDP_ DEEPSPEED_
    """.split()
)
_NAMES = frozenset(
    """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME
    ROLE_WORLD_SIZE NODE_RANK NNODES LD_PRELOAD LD_LIBRARY_PATH MALLOC_ARENA_MAX TP_SOCKET_IFNAME
    TOKENIZERS_PARALLELISM GPU_DEVICE_ORDINAL GPU_MAX_HW_QUEUES CC CXX
    """.split()
)
REDACTED = "<left out>"
_MAX_CHARACTERS = 2000

_SECRET_NAME = re.compile(
    r"_ALERTS$|KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|COOKIE|JWT|_PWD$|PASSPHRASE|PRIVATE"
)
_AUTH_NAME = re.compile(r"AUTH|SIGNATURE|SESSION|BEARER")
_LONG = re.compile(r"[A-Za-z0-9+/_=.-]{24,}")
_IN_URL = re.compile(r"(://)[^/@\s]+@")
#: Tokens of known services, recognizable by their prefix.
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|nvapi-)[A-Za-z0-9_-]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|\b(?i:bearer|basic)\s+[A-Za-z0-9+/_=.-]{12,}",
    re.DOTALL,
)


def environment_facts(environ: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return one fact ``NAME=value`` for each relevant variable of ``environ``, in name order."""
    return tuple(
        _fact(name, environ[name]) for name in sorted(environ) if is_relevant_variable(name)
    )


def is_relevant_variable(name: str) -> bool:
    """Return whether torch, its libraries, the scheduler or holdfast reads the variable."""
    return name in _NAMES or name.startswith(_PREFIXES)


def redact_value(name: str, value: str) -> str:
    """Return ``value`` without passwords in URLs, keys and tokens."""
    if value and _SECRET_NAME.search(name.upper()):
        return REDACTED
    if _AUTH_NAME.search(name.upper()):
        value = _LONG.sub(REDACTED, value)
    value = _SECRET_VALUE.sub(REDACTED, _IN_URL.sub(rf"\1{REDACTED}@", value))
    return (
        value
        if len(value) <= _MAX_CHARACTERS
        else f"{value[:_MAX_CHARACTERS]}… ({len(value)} characters)"
    )


def _fact(name: str, value: str) -> Fact:
    fact = local_fact(name, "", f"environment variable {name}")
    return replace(fact, text=f"{name}={redact_value(name, value)}")
