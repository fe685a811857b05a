"""Is a variable that is set read by anybody, in the releases that are installed?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment.scene import Scene, claim, cut, shown
from holdfast.variables import Status, Variable, family, meant, release, table

_GROUP = "init_process_group(timeout=...)"
#: Names that container images and clusters set for their own use.
_HARMLESS = frozenset({"NCCL_ROOT", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR", "NCCL_LIBRARY", "NCCL_INCLUDE_DIRS"})
#: Prefixes of plugins that read names of their own.
_PLUGINS = (
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_TCPX_",
    "NCCL_DMABUF_",
    "NCCL_TUNER_CONFIG_",
    "NCCL_UCX_",
    "NCCL_SHIMNET_",
    "NCCL_TOPO_",
    "NCCL_OFI_",
    "NCCL_PROFILER_",
    "NCCL_INSPECTOR_",
)


def judge(given: Given, others: Mapping[str, Given], scene: Scene) -> Iterator[Finding]:
    """``others`` are the variables that are set in the same place, by name."""
    row = table().get(given.name)
    if row is None:
        yield from _stranger(given)
    elif row.status is Status.NEVER_READ:
        yield _never_read(given, row)
    elif row.status is Status.FRAMEWORK:
        yield claim(
            "variable-never-read",
            f"{shown(given)} is not read by torchrun, which reads {row.replaced_by} or "
            "--node-rank; Lightning and Accelerate do read it",
            given,
            level=Level.NOTE,
        )
    elif row.status is Status.REMOVED:
        yield from _removed(given, row, scene)
    elif row.status is Status.UNUSED:
        yield claim(
            "variable-of-another-version",
            f"{shown(given)} has no effect: NCCL still declares it and consults it "
            "nowhere" + (f" since {row.removed_in}" if row.removed_in else ""),
            given,
            command=f"unset {given.name}",
        )
    elif row.status is Status.ALIAS:
        yield from _alias(given, row, others, scene)
    elif row.status is Status.DEPRECATED:
        yield _deprecated(given, row)
    if row is not None and row.status is not Status.REMOVED:
        yield from _not_yet(given, row, scene)
    if not given.handed_on and (row.read_at if row else family(given.name)):
        yield claim(
            "variable-not-handed-on",
            f"{shown(given)} is set in the shell alone, without export, so that the programs "
            f"that {given.origin} starts do not get it",
            given,
            command=f'export {given.name}="${given.name}"',
        )


def _never_read(given: Given, row: Variable) -> Finding:
    value = cut(given.value or "…")
    if row.replaced_by == _GROUP:
        limit = value if value.isdigit() else "…"
        return claim(
            "nccl-timeout-ignored",
            f"{shown(given)} has no effect: nothing in NCCL or torch reads it; the limit is the "
            f"process group's own (10 minutes for NCCL, 30 for gloo), so say init_process_group(timeout=timedelta("
            f"seconds={limit})), or holdfast run --group-timeout {limit}",
            given,
        )
    reason = f"; {row.effect.partition('; ')[2]}" if "; " in row.effect else ""
    if not row.replaced_by:
        return claim(
            "variable-never-read",
            f"{given.name} has no effect: nothing reads it{reason}",
            given,
            command=f"unset {given.name}",
        )
    new = row.replaced_by
    if new == "NCCL_SOCKET_RETRY_CNT":
        new, reason = "NCCL_SOCKET_RETRY_CNT (with NCCL_SOCKET_RETRY_SLEEP_MSEC)", ""
    return claim(
        "variable-never-read",
        f"{given.name} has no effect: nothing reads it; {new} is what is read",
        given,
        advice=f"Take {given.name} out of {given.place}{reason or f'; {row.effect}'}.",
        command=f"unset {given.name}",
    )


def _removed(given: Given, row: Variable, scene: Scene) -> Iterator[Finding]:
    effect = row.effect.removeprefix("Removed. ")
    cause = "variable-of-another-version"
    if effect.startswith("Harmful"):
        yield claim(
            cause,
            f"{shown(given)} ends the process: libfabric of today aborts where it is set",
            given,
            level=Level.ERROR,
            command=f"unset {given.name}",
        )
        return
    installed = _installed(row, scene)
    if installed and row.gone and release(installed) < row.gone:
        yield claim(
            cause,
            f"{shown(given)} works in {row.library} {installed}, which is installed, and is gone from "
            f"{row.removed_in} on",
            given,
            level=Level.NOTE,
        )
        return
    instead = f"; {row.replaced_by} is the nearest that is read" if row.replaced_by else ""
    whose = {"nccl": "NCCL", "torch": "torch"}.get(row.library, row.owner)
    was = effect[:1].lower() + effect[1:]
    yield claim(
        cause,
        f"{given.name} has no effect: {whose} dropped it in {row.removed_in}{instead} ({was})",
        given,
        command=f"unset {given.name}",
    )


def _alias(given: Given, row: Variable, others: Mapping[str, Given], scene: Scene) -> Iterator[Finding]:
    new = row.replaced_by
    if new in others or (given.name, new) == ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        return  # with both set, `together` compares them; the allocator's old name works, and wins
    value = "…" if given.value is None else shlex.quote(cut(given.value))
    if given.name == "NCCL_ASYNC_ERROR_HANDLING" and scene.elastic:
        yield claim(
            "variable-renamed",
            f"{given.name} has no effect here: the elastic agent sets {new}=1 where it is unset; say {new}={value}",
            given,
            command=f"export {new}={value}",
        )
    elif given.name == "TORCH_NCCL_TRACE_BUFFER_SIZE":
        yield claim(
            "variable-renamed",
            f"{given.name} is an old name that torch still reads, with a warning, and the only "
            f"one that the NCCL group asks before it dumps; set {new} to the same",
            given,
            level=Level.NOTE,
            command=f"export {new}={value}",
        )
    else:
        reader = "NCCL" if row.owner == "nccl" else "torch"
        warned = ", with a warning" if reader == "torch" else ""
        yield claim(
            "variable-renamed",
            f"{given.name} is an old name that {reader} still reads{warned}; say {new}={value}",
            given,
            level=Level.NOTE,
            command=f"export {new}={value}",
        )


def _deprecated(given: Given, row: Variable) -> Finding:
    instead = f"; {row.replaced_by} is its successor" if row.replaced_by else ""
    return claim("variable-renamed", f"{shown(given)} is deprecated{instead} ({row.effect})", given, level=Level.NOTE)


def _not_yet(given: Given, row: Variable, scene: Scene) -> Iterator[Finding]:
    installed = _installed(row, scene)
    if installed and row.first and release(installed) < row.first:
        yield claim(
            "variable-of-another-version",
            f"{shown(given)} has no effect here: {row.library} {installed} is "
            f"installed, and reads it from {row.since} on",
            given,
            command=f"unset {given.name}",
        )


def _stranger(given: Given) -> Iterator[Finding]:
    if intended := meant(given.name):
        value = given.value if given.value is not None and given.value.isalnum() else "…"
        yield claim("variable-never-read", f"{given.name} has no effect: nothing reads it; did you mean {intended}?",
                    given, command=f"export {intended}={value}" if value != "…" else "",
                    confidence=0.85)  # fmt: skip
    elif family(given.name) and given.name not in _HARMLESS and not given.name.startswith(_PLUGINS):
        yield claim(
            "variable-never-read",
            f"{given.name} is in no list of what NCCL or torch read; a plugin or the program itself may read it",
            given,
            level=Level.NOTE,
            confidence=0.5,
        )


def _installed(row: Variable, scene: Scene) -> str:
    return {"nccl": scene.nccl, "torch": scene.torch}.get(row.library, "")
