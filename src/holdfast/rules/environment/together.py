"""Variables of one place that do not go with each other: one makes the other useless, or they say opposite things."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment.scene import Scene, claim, shown

_CAUSE = "variables-contradict"
_ON = frozenset({"1", "y", "yes", "t", "true"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: Beginnings of what is for InfiniBand and RoCE alone.
_FOR_INFINIBAND = (
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_PKEY", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
)  # fmt: skip
#: Two names of one thing, the one that wins first.
_SAME = (
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    *((f"TORCH_NCCL_{end}", f"NCCL_{end}")
      for end in ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING")),
)  # fmt: skip
#: Lower and upper bound of one thing.
_BOUNDS = (
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)


def judge(given: Sequence[Given], _scene: Scene) -> Iterator[Finding]:
    """``given`` are the variables of one environment or one file; the last of a name counts."""
    here = {each.name: each for each in given if each.value}
    yield from _infiniband(here)
    yield from _same(here)
    yield from _bounds(here)
    yield from _useless(here)
    yield from _sockets(here)
    yield from _ranks(here)


def _value(here: Mapping[str, Given], name: str) -> str:
    return ((here[name].value if name in here else "") or "").strip()


def _number(here: Mapping[str, Given], name: str) -> int | None:
    text = _value(here, name)
    return int(text) if text.lstrip("-").isdigit() else None


def _infiniband(here: Mapping[str, Given]) -> Iterator[Finding]:
    off, net = _value(here, "NCCL_IB_DISABLE") == "1", _value(here, "NCCL_NET").casefold()
    if off and net == "ib":
        yield claim(
            _CAUSE,
            "NCCL_IB_DISABLE=1 takes away the network that NCCL_NET=IB asks for, so that NCCL cannot start",
            here["NCCL_NET"],
            here["NCCL_IB_DISABLE"],
            level=Level.ERROR,
            command="unset NCCL_IB_DISABLE",
        )
    switch = "NCCL_IB_DISABLE" if off else "NCCL_NET" if net == "socket" else ""
    idle = [here[name] for name in _FOR_INFINIBAND if name in here]
    if switch and idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        yield claim(
            _CAUSE,
            f"{shown(here[switch])} turns InfiniBand and RoCE off, so that {shown(idle[0])}{more} has no effect",
            idle[0],
            here[switch],
            *idle[1:],
            command=f"unset {switch}",
        )


def _same(here: Mapping[str, Given]) -> Iterator[Finding]:
    for wins, loses in _SAME:
        if wins in here and loses in here and _value(here, wins) != _value(here, loses):
            yield claim(
                _CAUSE,
                f"{shown(here[loses])} and {shown(here[wins])} are two names of one setting, and {wins} wins",
                here[loses],
                here[wins],
                command=f"unset {loses}",
            )


def _bounds(here: Mapping[str, Given]) -> Iterator[Finding]:
    for low, high in _BOUNDS:
        least, most = _number(here, low), _number(here, high)
        if least is not None and most is not None and least > most > 0:
            yield claim(_CAUSE, f"{shown(here[low])} is more than {shown(here[high])}", here[low], here[high])


def _useless(here: Mapping[str, Given]) -> Iterator[Finding]:
    if _value(here, "NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in here:
        yield claim(
            _CAUSE,
            f"NCCL_P2P_DISABLE=1 wins over {shown(here['NCCL_P2P_LEVEL'])}",
            here["NCCL_P2P_LEVEL"],
            here["NCCL_P2P_DISABLE"],
            command="unset NCCL_P2P_DISABLE",
        )
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        if name in here and _value(here, "NCCL_DEBUG").upper() in ("", "VERSION"):
            yield claim(
                _CAUSE,
                f"{shown(here[name])} has no effect without NCCL_DEBUG=INFO or WARN",
                here[name],
                level=Level.NOTE,
            )
    if _value(here, "NCCL_CUMEM_ENABLE") == "0" and _value(here, "NCCL_NVLS_ENABLE") == "1":
        yield claim(
            _CAUSE,
            "NCCL_NVLS_ENABLE=1 asks for NVLink SHARP, which needs the cuMem that NCCL_CUMEM_ENABLE=0 turns off",
            here["NCCL_NVLS_ENABLE"],
            here["NCCL_CUMEM_ENABLE"],
            confidence=0.8,
        )
    if _value(here, "NCCL_NVLS_ENABLE") == "0" and _value(here, "NCCL_ALGO").casefold() in ("nvls", "nvlstree"):
        yield claim(
            _CAUSE,
            f"{shown(here['NCCL_ALGO'])} asks for what NCCL_NVLS_ENABLE=0 turns off, so that NCCL finds no algorithm",
            here["NCCL_ALGO"],
            here["NCCL_NVLS_ENABLE"],
            level=Level.ERROR,
        )
    dumps = _value(here, "TORCH_NCCL_DUMP_ON_TIMEOUT").casefold() in _ON
    for size in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if dumps and _value(here, size) == "0":
            yield claim(
                _CAUSE,
                f"TORCH_NCCL_DUMP_ON_TIMEOUT asks for dumps of a flight recorder that {size}=0 turns off",
                here["TORCH_NCCL_DUMP_ON_TIMEOUT"],
                here[size],
                command=f"export {size}=2000",
            )
    if dumps and _value(here, "TORCH_NCCL_BLOCKING_WAIT").casefold() in _ON:
        yield claim(
            _CAUSE,
            "TORCH_NCCL_DUMP_ON_TIMEOUT asks for dumps by a watchdog that TORCH_NCCL_BLOCKING_WAIT=1 does not start",
            here["TORCH_NCCL_DUMP_ON_TIMEOUT"],
            here["TORCH_NCCL_BLOCKING_WAIT"],
        )


def _sockets(here: Mapping[str, Given]) -> Iterator[Finding]:
    threads, sockets = _number(here, "NCCL_SOCKET_NTHREADS"), _number(here, "NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and threads * sockets > 64:
        yield claim(
            _CAUSE,
            f"{shown(here['NCCL_SOCKET_NTHREADS'])} times {shown(here['NCCL_NSOCKS_PERTHREAD'])} is more "
            "than 64 sockets, and NCCL takes fewer",
            here["NCCL_NSOCKS_PERTHREAD"],
            here["NCCL_SOCKET_NTHREADS"],
        )
    nccl, gloo = _value(here, "NCCL_SOCKET_IFNAME"), _value(here, "GLOO_SOCKET_IFNAME")
    names = nccl.lstrip("=").split(",")
    if (
        nccl
        and gloo
        and nccl[:1] != "^"
        and gloo[:1] not in "^="
        and not any(gloo == name or (gloo.startswith(name) and nccl[:1] != "=") for name in names)
    ):
        yield claim(
            _CAUSE,
            f"{shown(here['NCCL_SOCKET_IFNAME'])} and {shown(here['GLOO_SOCKET_IFNAME'])} send NCCL and gloo "
            "over different interfaces",
            here["GLOO_SOCKET_IFNAME"],
            here["NCCL_SOCKET_IFNAME"],
            level=Level.NOTE,
        )


def _ranks(here: Mapping[str, Given]) -> Iterator[Finding]:
    rank, world, local = (_number(here, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if rank is not None and world is not None and rank >= world:
        yield claim(
            _CAUSE,
            f"RANK={rank} is not below WORLD_SIZE={world}: ranks begin at 0",
            here["RANK"],
            here["WORLD_SIZE"],
            level=Level.ERROR,
        )
    address = _value(here, "MASTER_ADDR")
    if address in _LOCAL and world is not None and local is not None and world > local:
        yield claim(
            _CAUSE,
            f"MASTER_ADDR={address} is each host itself, and the job has {world} ranks, {local} of them "
            "here: the hosts never meet",
            here["MASTER_ADDR"],
            here["WORLD_SIZE"],
            level=Level.ERROR,
        )
