"""Variables that are not the same on all hosts of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.facts.environment import without_secret
from holdfast.findings import Fact, Finding, Level, Subject, finding
from holdfast.rules.causes import by_name
from holdfast.variables import FAMILIES, table

#: Those that have to differ, or may: of one rank, one host, one file.
_OWN = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "PET_NODE_RANK", "LOCAL_WORLD_SIZE",
    "PET_LOCAL_ADDR", "PET_NPROC_PER_NODE", "PET_LOG_DIR", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "CUDA_CACHE_PATH", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_TIMER_FILE", "TORCHELASTIC_HEALTH_CHECK_PORT", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_HOSTID",
    "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_CPP_LOG_LEVEL", "TORCH_LOGS", "LOGLEVEL", "PYTHON_EXEC", "NCCL_CONF_FILE",
})  # fmt: skip
#: Those for which hosts may have good reasons, as their cards are named or numbered differently.
_BY_HOST = frozenset({
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
    "UCX_NET_DEVICES", "FI_EFA_IFACE",
})  # fmt: skip
#: Those with which the job cannot start, or ends, where they differ.
_FATAL = frozenset({
    "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_RDZV_ID",
    "PET_RDZV_BACKEND", "PET_MASTER_ADDR", "PET_MASTER_PORT", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET",
    "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN", "GLOO_DEVICE_TRANSPORT", "TORCH_DISTRIBUTED_DEBUG",
})  # fmt: skip
_ABSENT = "(not set)"
_MOST_SHOWN = 8


def differences(by_host: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """Variables of the families of torch and NCCL that differ over hosts, which are given with their environments.

    Ranks that are not hosts can be given as well, under any name. A value that most hosts have is taken for the right
    one, and the finding names those that have another; without a majority it names all.
    """
    if len(by_host) < 2:
        return ()
    names = {name for environ in by_host.values() for name in environ if _compared(name)}
    found = [claim for name in sorted(names) for claim in _differs(name, by_host)]
    return tuple(sorted(found, key=lambda claim: (Level.ERROR, Level.WARNING, Level.NOTE).index(claim.level)))


def _compared(name: str) -> bool:
    return name not in _OWN and (name in table() or name.startswith((*FAMILIES, "CUDA_", "PYTORCH_", "UCX_", "FI_")))


def _differs(name: str, by_host: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    values = {host: environ.get(name) or _ABSENT for host, environ in by_host.items()}
    counted = Counter(values.values()).most_common()
    if len(counted) == 1:
        return
    usual, times = counted[0]
    majority = times * 2 > len(values)
    odd = [host for host, value in values.items() if not majority or value != usual]
    level = Level.ERROR if name in _FATAL else Level.NOTE if name in _BY_HOST else Level.WARNING
    told = ", ".join(f"{without_secret(name, values[host])} on {host}" for host in odd[:_MOST_SHOWN])
    if len(odd) > _MOST_SHOWN:
        told += f" and {len(odd) - _MOST_SHOWN} more"
    rest = f", and {without_secret(name, usual)} on the other {times}" if majority else ""
    evidence = tuple(Fact(text=f"{name}={without_secret(name, values[host])}", origin="environment", host=host)
                     for host in (*odd, *(host for host in values if host not in odd))[: _MOST_SHOWN * 2])  # fmt: skip
    yield finding(
        by_name("variable-differs-between-hosts"),
        f"{name} is not the same on all hosts: {told}{rest}",
        level=level,
        subject=Subject(host=odd[0] if len(odd) == 1 else None),
        evidence=evidence,
        confidence=0.5 if level is Level.NOTE else 0.8,
    )
