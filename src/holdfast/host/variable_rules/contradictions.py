"""Judges variables of one process that contradict each other, or make each other ineffective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from holdfast.causes.environment.variables_contradict import VARIABLES_CONTRADICT
from holdfast.core.findings import Finding, Level
from holdfast.host.variable_rules.context import AuditContext, variable_finding
from holdfast.host.variable_sources import VariableSetting

_finding = partial(variable_finding, VARIABLES_CONTRADICT)
_ON = frozenset({"1", "y", "yes", "t", "true"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: Variables that only affect InfiniBand and RoCE.
_FOR_INFINIBAND = tuple(
    """
    NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TC NCCL_IB_SL NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_PKEY NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_AR_THRESHOLD
    NCCL_IB_SPLIT_DATA_ON_QPS
    """.split()
)
#: Two names of one setting, the one that takes precedence first.
_SYNONYMS = (
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    *(
        (f"TORCH_NCCL_{end}", f"NCCL_{end}")
        for end in ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING")
    ),
)
#: Lower and upper bound of one setting.
_BOUNDS = (
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)


def judge(settings: Sequence[VariableSetting], _context: AuditContext) -> Iterator[Finding]:
    """Judge the variables of one environment or one file; the last setting of a name counts."""
    by_name = {setting.name: setting for setting in settings if setting.value}
    yield from _judge_infiniband(by_name)
    yield from _judge_synonyms(by_name)
    yield from _judge_bounds(by_name)
    yield from _judge_ineffective(by_name)
    yield from _judge_sockets(by_name)
    yield from _judge_ranks(by_name)


def _value(by_name: Mapping[str, VariableSetting], name: str) -> str:
    return ((by_name[name].value if name in by_name else "") or "").strip()


def _number(by_name: Mapping[str, VariableSetting], name: str) -> int | None:
    text = _value(by_name, name)
    return int(text) if text.lstrip("-").isdigit() else None


def _judge_infiniband(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    off, net = _value(by_name, "NCCL_IB_DISABLE") == "1", _value(by_name, "NCCL_NET").casefold()
    if off and net == "ib":
        yield _finding(
            "NCCL_IB_DISABLE=1 disables the network that NCCL_NET=IB requires, so that NCCL cannot "
            "start",
            by_name["NCCL_NET"],
            by_name["NCCL_IB_DISABLE"],
            level=Level.ERROR,
            command="unset NCCL_IB_DISABLE",
        )
    switch = "NCCL_IB_DISABLE" if off else "NCCL_NET" if net == "socket" else ""
    idle = [by_name[name] for name in _FOR_INFINIBAND if name in by_name]
    if switch and idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        yield _finding(
            f"{by_name[switch]} disables InfiniBand and RoCE, so that "
            f"{idle[0]}{more} has no effect",
            idle[0],
            by_name[switch],
            *idle[1:],
            command=f"unset {switch}",
        )


def _judge_synonyms(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    for wins, loses in _SYNONYMS:
        if wins in by_name and loses in by_name and _value(by_name, wins) != _value(by_name, loses):
            yield _finding(
                f"{by_name[loses]} and {by_name[wins]} are two "
                f"names of one setting; {wins} takes precedence",
                by_name[loses],
                by_name[wins],
                command=f"unset {loses}",
            )


def _judge_bounds(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    for low, high in _BOUNDS:
        least, most = _number(by_name, low), _number(by_name, high)
        if least is not None and most is not None and least > most > 0:
            yield _finding(
                f"{by_name[low]} is greater than {by_name[high]}", by_name[low], by_name[high]
            )


def _judge_ineffective(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    if _value(by_name, "NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in by_name:
        yield _finding(
            f"NCCL_P2P_DISABLE=1 overrides {by_name['NCCL_P2P_LEVEL']}",
            by_name["NCCL_P2P_LEVEL"],
            by_name["NCCL_P2P_DISABLE"],
            command="unset NCCL_P2P_DISABLE",
        )
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        if name in by_name and _value(by_name, "NCCL_DEBUG").upper() in ("", "VERSION"):
            yield _finding(
                f"{by_name[name]} has no effect without NCCL_DEBUG=INFO or WARN",
                by_name[name],
                level=Level.NOTE,
            )
    if _value(by_name, "NCCL_CUMEM_ENABLE") == "0" and _value(by_name, "NCCL_NVLS_ENABLE") == "1":
        yield _finding(
            "NCCL_NVLS_ENABLE=1 enables NVLink SHARP, which needs cuMem, but NCCL_CUMEM_ENABLE=0 "
            "disables cuMem",
            by_name["NCCL_NVLS_ENABLE"],
            by_name["NCCL_CUMEM_ENABLE"],
            confidence=0.8,
        )
    if _value(by_name, "NCCL_NVLS_ENABLE") == "0" and _value(by_name, "NCCL_ALGO").casefold() in (
        "nvls",
        "nvlstree",
    ):
        yield _finding(
            f"{by_name['NCCL_ALGO']} selects what NCCL_NVLS_ENABLE=0 disables, so "
            f"that NCCL finds no algorithm",
            by_name["NCCL_ALGO"],
            by_name["NCCL_NVLS_ENABLE"],
            level=Level.ERROR,
        )
    dumps = _value(by_name, "TORCH_NCCL_DUMP_ON_TIMEOUT").casefold() in _ON
    for size in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if dumps and _value(by_name, size) == "0":
            yield _finding(
                f"TORCH_NCCL_DUMP_ON_TIMEOUT dumps the flight recorder, which {size}=0 disables",
                by_name["TORCH_NCCL_DUMP_ON_TIMEOUT"],
                by_name[size],
                command=f"export {size}=2000",
            )
    if dumps and _value(by_name, "TORCH_NCCL_BLOCKING_WAIT").casefold() in _ON:
        yield _finding(
            "TORCH_NCCL_DUMP_ON_TIMEOUT needs the watchdog, which TORCH_NCCL_BLOCKING_WAIT=1 does "
            "not start",
            by_name["TORCH_NCCL_DUMP_ON_TIMEOUT"],
            by_name["TORCH_NCCL_BLOCKING_WAIT"],
        )


def _judge_sockets(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    threads, sockets = (
        _number(by_name, "NCCL_SOCKET_NTHREADS"),
        _number(by_name, "NCCL_NSOCKS_PERTHREAD"),
    )
    if threads and sockets and threads * sockets > 64:
        yield _finding(
            f"{by_name['NCCL_SOCKET_NTHREADS']} times {by_name['NCCL_NSOCKS_PERTHREAD']} is more "
            "than 64 sockets, NCCL's maximum; NCCL uses fewer",
            by_name["NCCL_NSOCKS_PERTHREAD"],
            by_name["NCCL_SOCKET_NTHREADS"],
        )
    nccl, gloo = _value(by_name, "NCCL_SOCKET_IFNAME"), _value(by_name, "GLOO_SOCKET_IFNAME")
    names = nccl.lstrip("=").split(",")
    if (
        nccl
        and gloo
        and nccl[:1] != "^"
        and gloo[:1] not in "^="
        and not any(gloo == name or (gloo.startswith(name) and nccl[:1] != "=") for name in names)
    ):
        yield _finding(
            f"{by_name['NCCL_SOCKET_IFNAME']} and {by_name['GLOO_SOCKET_IFNAME']} make NCCL and "
            "gloo use different interfaces",
            by_name["GLOO_SOCKET_IFNAME"],
            by_name["NCCL_SOCKET_IFNAME"],
            level=Level.NOTE,
        )


def _judge_ranks(by_name: Mapping[str, VariableSetting]) -> Iterator[Finding]:
    rank, world, local = (
        _number(by_name, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    if rank is not None and world is not None and rank >= world:
        yield _finding(
            f"RANK={rank} is not below WORLD_SIZE={world}: ranks start at 0",
            by_name["RANK"],
            by_name["WORLD_SIZE"],
            level=Level.ERROR,
        )
    address = _value(by_name, "MASTER_ADDR")
    if address in _LOCAL and world is not None and local is not None and world > local:
        yield _finding(
            f"MASTER_ADDR={address} is a loopback address, but only {local} of {world} ranks are "
            "on this host: the hosts cannot connect to each other",
            by_name["MASTER_ADDR"],
            by_name["WORLD_SIZE"],
            level=Level.ERROR,
        )
