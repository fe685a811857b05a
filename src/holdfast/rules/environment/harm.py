"""Settings that are understood, and cost speed, hide errors, or were left on after a search for a fault."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment.scene import Scene, claim, shown

_ON = frozenset({"1", "y", "yes", "t", "true"})
_OFF = frozenset({"0", "n", "no", "f", "false"})


def _one(value: str) -> bool:
    return value == "1"


def _on(value: str) -> bool:
    return value.casefold() in _ON


def _off(value: str) -> bool:
    return value.casefold() in _OFF


def _any(_: str) -> bool:
    return True


def _forced(value: str) -> bool:
    """A list without ``^`` leaves NCCL no choice; one for a single function is a choice of its own."""
    return not value.startswith("^") and ":" not in value


def _is(*words: str) -> Callable[[str], bool]:
    return lambda value: value.casefold() in words


#: Variable, when it does harm, how much, and what it does.
_HARM: tuple[tuple[str, Callable[[str], bool], Level, str], ...] = (
    ("NCCL_P2P_DISABLE", _one, Level.WARNING,
     "GPUs of one host do not talk over NVLink or PCIe any more, but through host memory, at a fraction of the speed"),
    ("NCCL_SHM_DISABLE", _one, Level.WARNING,
     "GPUs of one host without a direct path talk through the network card"),
    ("NCCL_IB_DISABLE", _one, Level.WARNING,
     "NCCL takes plain sockets, also where there is InfiniBand or RoCE, at a fraction of the speed"),
    ("NCCL_ALGO", _forced, Level.WARNING,
     "NCCL takes this for all sizes and calls, or fails where a call does not have it; it would choose better itself"),
    ("NCCL_PROTO", _forced, Level.WARNING,
     "NCCL takes this for all sizes and would choose better itself; LL128 corrupts data where it is not supported"),
    ("NCCL_NVLS_ENABLE", _is("0"), Level.NOTE, "NVLink SHARP, the fastest way within a host since Hopper, is off"),
    ("NCCL_CUMEM_ENABLE", _is("0"), Level.NOTE, "cuMem is off, and with it NVLink SHARP and multi-node NVLink"),
    ("NCCL_CHECK_POINTERS", _one, Level.WARNING, "every collective checks its pointers, which takes time"),
    ("NCCL_MAX_NCHANNELS", _is("1", "2"), Level.WARNING, "so few channels do not fill a link"),
    ("NCCL_MAX_CTAS", _is("1", "2"), Level.WARNING, "so few channels do not fill a link"),
    ("NCCL_NET_GDR_LEVEL", _is("loc", "0"), Level.WARNING, "GPUDirect RDMA is off: traffic goes through host memory"),
    ("NCCL_DEBUG", _is("trace"), Level.WARNING,
     "TRACE says no more than INFO unless NCCL was built for it, and then floods the disk"),
    ("NCCL_DEBUG", _is("info"), Level.NOTE, "thousands of lines a rank; WARN is enough outside a search for a fault"),
    ("CUDA_LAUNCH_BLOCKING", _one, Level.WARNING,
     "every kernel is waited for, so that nothing overlaps, and several GPUs may wait for each other for ever"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", _any, Level.WARNING, "every tensor costs a cudaMalloc and a synchronisation"),
    ("TORCH_DISTRIBUTED_DEBUG", _is("detail"), Level.WARNING,
     "every collective is preceded by a check among all ranks, which makes it several times dearer"),
    ("TORCH_NCCL_BLOCKING_WAIT", _on, Level.WARNING,
     "wait() blocks the CPU, and there is no watchdog: no tear-down and no dump after a time-out"),
    ("NCCL_BLOCKING_WAIT", _on, Level.WARNING,
     "wait() blocks the CPU, and there is no watchdog: no tear-down and no dump after a time-out"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", _is("0"), Level.WARNING,
     "after an error or a time-out the ranks go on, with data that may be wrong, or hang for ever"),
    ("TORCH_NCCL_ENABLE_MONITORING", _off, Level.WARNING, "a rank whose watchdog itself is stuck is never ended"),
    ("TORCH_NCCL_DESYNC_DEBUG", _on, Level.WARNING, "left on, it times every call, and has crashed jobs in the field"),
    ("TORCH_NCCL_NAN_CHECK", _on, Level.NOTE, "every tensor is searched for NaN before it is sent"),
    ("TORCH_FR_BUFFER_SIZE", _is("0"), Level.NOTE, "the flight recorder is off, and a hang leaves no history"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", _is("0"), Level.NOTE,
     "the flight recorder is off, so that a hang leaves no history of calls"),
)  # fmt: skip


def judge(given: Given, others: Mapping[str, Given], scene: Scene) -> Iterator[Finding]:
    """A finding where the value does harm by itself; ``others`` may make it harmless."""
    value = (given.value or "").strip()
    for name, harms, level, what in _HARM:
        if name == given.name and value and harms(value):
            weight = Level.NOTE if name == "NCCL_IB_DISABLE" and scene.infiniband is False else level
            yield claim(
                "variable-harmful", f"{shown(given)}: {what}", given, level=weight, command=f"unset {given.name}"
            )
    yield from _log_file(given, others)
    yield from _loopback(given)


def _log_file(given: Given, others: Mapping[str, Given]) -> Iterator[Finding]:
    value = given.value or ""
    if given.name == "NCCL_DEBUG_FILE" and value and not value.startswith("/dev/") and "%p" not in value:
        level = (others["NCCL_DEBUG"].value if "NCCL_DEBUG" in others else "") or ""
        if level.upper() not in ("", "VERSION"):
            yield claim(
                "variable-harmful",
                f"{shown(given)} has no %p (and %h), so that all ranks write over each other's file",
                given,
                command=f"export NCCL_DEBUG_FILE={shlex.quote(value)}.%h.%p",
            )


def _loopback(given: Given) -> Iterator[Finding]:
    value = given.value or ""
    names = [] if value.startswith("^") else value.lstrip("=").split(",")
    if given.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and set(names) & {"lo", "docker0", "virbr0"}:
        yield claim(
            "network-interface-wrong",
            f"{shown(given)} is an interface that no other host can reach; it serves a job on one host alone",
            given,
            level=Level.WARNING,
            confidence=0.8,
        )
