"""Judges valid settings that cost speed, hide errors, or were left on after debugging."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from holdfast.causes.environment.variable_harmful import VARIABLE_HARMFUL
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Finding, Level
from holdfast.host.variable_rules.context import AuditContext, format_setting, variable_finding
from holdfast.host.variable_sources import VariableSetting

_ON = frozenset({"1", "y", "yes", "t", "true"})
_OFF = frozenset({"0", "n", "no", "f", "false"})


def _is_one(value: str) -> bool:
    return value == "1"


def _is_on(value: str) -> bool:
    return value.casefold() in _ON


def _is_off(value: str) -> bool:
    return value.casefold() in _OFF


def _is_forced(value: str) -> bool:
    """Return whether a list forces NCCL's choice: without ``^``, and for all functions."""
    return not value.startswith("^") and ":" not in value


def _is(*words: str) -> Callable[[str], bool]:
    return lambda value: value.casefold() in words


#: Variable, test for a harmful value, level, and effect.
_HARMFUL: tuple[tuple[str, Callable[[str], bool], Level, str], ...] = (
    (
        "NCCL_P2P_DISABLE",
        _is_one,
        Level.WARNING,
        (
            "GPUs of one host communicate through host memory instead of NVLink or PCIe, at a "
            "fraction of the speed"
        ),
    ),
    (
        "NCCL_SHM_DISABLE",
        _is_one,
        Level.WARNING,
        "GPUs of one host without a direct path communicate through the NIC",
    ),
    (
        "NCCL_IB_DISABLE",
        _is_one,
        Level.WARNING,
        "NCCL uses plain sockets even if there is InfiniBand or RoCE, at a fraction of the speed",
    ),
    (
        "NCCL_ALGO",
        _is_forced,
        Level.WARNING,
        (
            "NCCL uses this for all sizes and calls, or fails where a call does not support it; "
            "its own choice is better"
        ),
    ),
    (
        "NCCL_PROTO",
        _is_forced,
        Level.WARNING,
        (
            "NCCL uses this for all sizes; its own choice is better, and LL128 corrupts data where "
            "it is not supported"
        ),
    ),
    (
        "NCCL_NVLS_ENABLE",
        _is("0"),
        Level.NOTE,
        "NVLink SHARP, the fastest algorithm within a host since Hopper, is off",
    ),
    (
        "NCCL_CUMEM_ENABLE",
        _is("0"),
        Level.NOTE,
        "cuMem is off, and with it NVLink SHARP and multi-node NVLink",
    ),
    (
        "NCCL_CHECK_POINTERS",
        _is_one,
        Level.WARNING,
        "every collective checks its pointers, which costs time",
    ),
    ("NCCL_MAX_NCHANNELS", _is("1", "2"), Level.WARNING, "too few channels to saturate a link"),
    ("NCCL_MAX_CTAS", _is("1", "2"), Level.WARNING, "too few channels to saturate a link"),
    (
        "NCCL_NET_GDR_LEVEL",
        _is("loc", "0"),
        Level.WARNING,
        "GPUDirect RDMA is off: traffic passes through host memory",
    ),
    (
        "NCCL_DEBUG",
        _is("trace"),
        Level.WARNING,
        "TRACE logs no more than INFO unless NCCL was built with it, and then it floods the disk",
    ),
    (
        "NCCL_DEBUG",
        _is("info"),
        Level.NOTE,
        "logs thousands of lines per rank; use WARN except for debugging",
    ),
    (
        "CUDA_LAUNCH_BLOCKING",
        _is_one,
        Level.WARNING,
        "the CPU waits for every kernel, so that nothing overlaps, and several GPUs may deadlock",
    ),
    (
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        lambda _: True,
        Level.WARNING,
        "every tensor costs a cudaMalloc and a synchronization",
    ),
    (
        "TORCH_DISTRIBUTED_DEBUG",
        _is("detail"),
        Level.WARNING,
        "all ranks run a check before every collective, which makes it several times slower",
    ),
    (
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        Level.WARNING,
        "wait() blocks the CPU, and there is no watchdog: no abort and no dump after a timeout",
    ),
    (
        "NCCL_BLOCKING_WAIT",
        _is_on,
        Level.WARNING,
        "wait() blocks the CPU, and there is no watchdog: no abort and no dump after a timeout",
    ),
    (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _is("0"),
        Level.WARNING,
        "after an error or a timeout ranks continue with possibly wrong data, or hang forever",
    ),
    (
        "TORCH_NCCL_ENABLE_MONITORING",
        _is_off,
        Level.WARNING,
        "a rank whose watchdog is stuck is never terminated",
    ),
    (
        "TORCH_NCCL_DESYNC_DEBUG",
        _is_on,
        Level.WARNING,
        "it times every call, and has crashed production jobs",
    ),
    (
        "TORCH_NCCL_NAN_CHECK",
        _is_on,
        Level.NOTE,
        "every tensor is checked for NaN before it is sent",
    ),
    (
        "TORCH_FR_BUFFER_SIZE",
        _is("0"),
        Level.NOTE,
        "the flight recorder is off, so that a hang leaves no history of calls",
    ),
    (
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        _is("0"),
        Level.NOTE,
        "the flight recorder is off, so that a hang leaves no history of calls",
    ),
)


def judge(
    setting: VariableSetting, others: Mapping[str, VariableSetting], context: AuditContext
) -> Iterator[Finding]:
    """Report a harmful value.

    ``others``, the variables of the same process, may make it harmless.
    """
    value = (setting.value or "").strip()
    for name, is_harmful, usual_level, effect in _HARMFUL:
        if name == setting.name and value and is_harmful(value):
            level = (
                Level.NOTE
                if name == "NCCL_IB_DISABLE" and context.infiniband is False
                else usual_level
            )
            yield variable_finding(
                VARIABLE_HARMFUL.name,
                f"{format_setting(setting)}: {effect}",
                setting,
                level=level,
                command=f"unset {setting.name}",
            )
    yield from _judge_log_file(setting, others)
    yield from _judge_interface(setting)


def _judge_log_file(
    setting: VariableSetting, others: Mapping[str, VariableSetting]
) -> Iterator[Finding]:
    value = setting.value or ""
    if (
        setting.name == "NCCL_DEBUG_FILE"
        and value
        and not value.startswith("/dev/")
        and "%p" not in value
    ):
        level = (others["NCCL_DEBUG"].value if "NCCL_DEBUG" in others else "") or ""
        if level.upper() not in ("", "VERSION"):
            yield variable_finding(
                VARIABLE_HARMFUL.name,
                f"{format_setting(setting)} has no %p (and %h), so that all ranks overwrite the "
                f"same file",
                setting,
                command=f"export NCCL_DEBUG_FILE={shlex.quote(value)}.%h.%p",
            )


def _judge_interface(setting: VariableSetting) -> Iterator[Finding]:
    value = setting.value or ""
    names = [] if value.startswith("^") else value.lstrip("=").split(",")
    if setting.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and set(names) & {
        "lo",
        "docker0",
        "virbr0",
    }:
        yield variable_finding(
            NETWORK_INTERFACE_WRONG.name,
            f"{format_setting(setting)} is an interface that no other host can reach; it only "
            f"suits single-host jobs",
            setting,
            level=Level.WARNING,
            confidence=0.8,
        )
