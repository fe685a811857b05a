"""Judges variables that differ between the hosts of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.causes.environment.variable_differs_between_hosts import (
    VARIABLE_DIFFERS_BETWEEN_HOSTS,
)
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.variable_table import VARIABLE_FAMILIES, variable_entries
from holdfast.host.environment import redact_value

#: Variables that must or may differ: those of one rank, one host, one file.
_MAY_DIFFER = frozenset(
    """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK NODE_RANK PET_NODE_RANK LOCAL_WORLD_SIZE PET_LOCAL_ADDR
    PET_NPROC_PER_NODE PET_LOG_DIR CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MKL_NUM_THREADS
    CUDA_CACHE_PATH TORCHELASTIC_ERROR_FILE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_TIMER_FILE
    TORCHELASTIC_HEALTH_CHECK_PORT NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_TOPO_FILE
    NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE NCCL_HOSTID TORCH_FR_DUMP_TEMP_FILE
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_CPP_LOG_LEVEL TORCH_LOGS
    LOGLEVEL PYTHON_EXEC NCCL_CONF_FILE
    """.split()
)
#: Variables with legitimate differences, because hosts name or number their adapters differently.
_HARDWARE_NAMES = frozenset(
    {
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "UCX_NET_DEVICES",
        "FI_EFA_IFACE",
    }
)
#: Variables whose difference prevents the job from starting, or ends it.
_FATAL = frozenset({
    "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_RDZV_ID",
    "PET_RDZV_BACKEND", "PET_MASTER_ADDR", "PET_MASTER_PORT", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET",
    "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN", "GLOO_DEVICE_TRANSPORT", "TORCH_DISTRIBUTED_DEBUG",
})  # fmt: skip
_ABSENT = "(not set)"
_MAX_SHOWN = 8


def host_differences(by_host: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """Return findings about variables of torch and NCCL that differ between hosts.

    ``by_host``: environments. Ranks may take the place of hosts, under any name. The value of the
    majority counts as correct, and the finding names hosts with another one; without a majority it
    names all.
    """
    if len(by_host) < 2:
        return ()
    names = {name for environ in by_host.values() for name in environ if _is_compared(name)}
    findings = [finding for name in sorted(names) for finding in _judge_variable(name, by_host)]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (Level.ERROR, Level.WARNING, Level.NOTE).index(finding.level),
        )
    )


def _is_compared(name: str) -> bool:
    return name not in _MAY_DIFFER and (
        name in variable_entries()
        or name.startswith((*VARIABLE_FAMILIES, "CUDA_", "PYTORCH_", "UCX_", "FI_"))
    )


def _judge_variable(name: str, by_host: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    values = {host: environ.get(name) or _ABSENT for host, environ in by_host.items()}
    counts = Counter(values.values()).most_common()
    if len(counts) == 1:
        return
    usual, times = counts[0]
    majority = times * 2 > len(values)
    deviating = [host for host, value in values.items() if not majority or value != usual]
    level = (
        Level.ERROR if name in _FATAL else Level.NOTE if name in _HARDWARE_NAMES else Level.WARNING
    )
    text = ", ".join(
        f"{redact_value(name, values[host])} on {host}" for host in deviating[:_MAX_SHOWN]
    )
    if len(deviating) > _MAX_SHOWN:
        text += f" and {len(deviating) - _MAX_SHOWN} more"
    rest = f", but {redact_value(name, usual)} on the other {times}" if majority else ""
    evidence = tuple(
        Fact(text=f"{name}={redact_value(name, values[host])}", origin="environment", host=host)
        for host in (*deviating, *(host for host in values if host not in deviating))[
            : _MAX_SHOWN * 2
        ]
    )
    yield make_finding(
        VARIABLE_DIFFERS_BETWEEN_HOSTS,
        f"{name} differs between hosts: {text}{rest}",
        level=level,
        subject=Subject(host=deviating[0] if len(deviating) == 1 else None),
        evidence=evidence,
        confidence=0.5 if level is Level.NOTE else 0.8,
    )
