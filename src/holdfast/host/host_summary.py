"""Summary of this host: CPUs, memory, limits, shared memory, container, GPUs.

Read from /proc and /sys. It takes a few ms, cheap enough for every start of a run. Unreadable
values are reported as unknown, with the reason.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.core.findings import Fact, Unknown
from holdfast.core.rank_sets import compress_ranks
from holdfast.host import cgroups
from holdfast.host.cgroups import CGROUPS
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the mount point, not a file in it
MAX_GPUS = 64
_GIB = 1 << 30
#: Files that container runtimes create in the root folder, and words in the cgroup path of the
#: first process.
_CONTAINER_MARKS = {
    ".dockerenv": "Docker",
    "run/.containerenv": "Podman",
    ".singularity.d": "Singularity or Apptainer",
}
_CONTAINER_WORDS = ("kubepods", "docker", "containerd", "libpod", "lxc", "enroot")


def local_fact(name: str, value: str | Unknown, origin: str) -> Fact:
    """Return a fact about this host, now: ``name: value``, or ``name: unknown (why)``."""
    text = f"unknown ({value.why})" if isinstance(value, Unknown) else value
    return Fact(text=f"{name}: {text}", origin=origin, host=os.uname().nodename, time=time.time())


def host_facts(
    proc_root: Path = PROC, cgroups_root: Path = CGROUPS, root: Path = Path("/")
) -> tuple[Fact, ...]:
    """Return the facts about this host that this process can read."""
    return (
        local_fact("host name", os.uname().nodename, "uname"),
        _from_file("boot id", proc_root / "sys/kernel/random/boot_id"),
        _processors(),
        _processor_limit(proc_root, cgroups_root),
        _memory(proc_root),
        _memory_limit(proc_root, cgroups_root),
        _shared_memory(root / SHARED_MEMORY.relative_to("/")),
        local_fact(
            "lockable memory", _limit(resource.RLIMIT_MEMLOCK, 1 << 20, " MiB"), "getrlimit"
        ),
        local_fact("open files", _limit(resource.RLIMIT_NOFILE, 1, ""), "getrlimit"),
        _load(proc_root),
        _container(proc_root, root),
        *_gpus(proc_root),
    )


def _from_file(name: str, path: Path) -> Fact:
    content = proc.read_text(path)
    return local_fact(name, content if isinstance(content, Unknown) else content.strip(), str(path))


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"


def _processors() -> Fact:
    usable = os.sched_getaffinity(0)
    usable_text = compress_ranks(usable, limit=16)
    text = f"{os.cpu_count()} online, {len(usable)} usable by this process ({usable_text})"
    return local_fact("CPUs", text, "sched_getaffinity")


def _processor_limit(proc_root: Path, cgroups_root: Path) -> Fact:
    group = cgroups.cgroup_of("self", "cpu", proc_root, cgroups_root)
    if isinstance(group, Unknown):
        return local_fact("CPU quota", group, "/proc/self/cgroup")
    limit = cgroups.cpu_limit(group)
    return local_fact(
        "CPU quota", "none" if isinstance(limit, Unknown) else f"{limit:g} cores", str(group.folder)
    )


def _memory(proc_root: Path) -> Fact:
    origin = proc_root / "meminfo"
    fields = proc.read_fields(origin)
    if isinstance(fields, Unknown):
        return local_fact("memory", fields, str(origin))
    try:
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return local_fact("memory", Unknown("unexpected format"), str(origin))
    return local_fact("memory", f"{_gib(total)}, {_gib(free)} available", str(origin))


def _memory_limit(proc_root: Path, cgroups_root: Path) -> Fact:
    group = cgroups.cgroup_of("self", "memory", proc_root, cgroups_root)
    if isinstance(group, Unknown):
        return local_fact("memory limit", group, "/proc/self/cgroup")
    limit = cgroups.memory_limit(group)
    if isinstance(limit, Unknown):
        return local_fact("memory limit", "none", str(group.folder))
    use = "" if isinstance(limit.used_bytes, Unknown) else f", {_gib(limit.used_bytes)} in use"
    return local_fact("memory limit", _gib(limit.limit_bytes) + use, str(limit.folder))


def _shared_memory(folder: Path) -> Fact:
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return local_fact("shared memory", Unknown(f"{folder}: {error.strerror}"), str(folder))
    text = (
        f"{_gib(status.f_blocks * status.f_frsize)}, {_gib(status.f_bavail * status.f_frsize)} free"
    )
    return local_fact("shared memory", text, str(folder))


def _limit(which: int, unit: int, suffix: str) -> str:
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / unit:.10g}{suffix}"


def _load(proc_root: Path) -> Fact:
    content = proc.read_text(proc_root / "loadavg")
    value = content if isinstance(content, Unknown) else " ".join(content.split()[:3])
    return local_fact("load average (1, 5, 15 minutes)", value, str(proc_root / "loadavg"))


def container_of(proc_root: Path = PROC, root: Path = Path("/")) -> tuple[str, str]:
    """Return the kind of container (empty if none is detected), and the evidence."""
    for mark, name in _CONTAINER_MARKS.items():
        if (root / mark).exists():
            return name, str(root / mark)
    groups = proc.read_text(proc_root / "1/cgroup")
    word = next(
        (word for word in _CONTAINER_WORDS if isinstance(groups, str) and word in groups), None
    )
    return (word, "/proc/1/cgroup") if word is not None else ("", "/, /proc/1/cgroup")


def _container(proc_root: Path, root: Path) -> Fact:
    name, origin = container_of(proc_root, root)
    return local_fact("container", name or "none detected", origin)


def _gpus(proc_root: Path) -> Iterator[Fact]:
    """Read the GPUs listed by NVIDIA's kernel driver; needs neither NVML nor a CUDA context."""
    folder = proc_root / "driver/nvidia/gpus"
    try:
        entries = sorted(folder.iterdir())[:MAX_GPUS]
    except OSError:
        entries = []
    if not entries:
        yield local_fact("GPUs", "none by the NVIDIA driver", str(folder))
    for entry in entries:
        origin = entry / "information"
        lines = proc.read_text(origin)
        pairs = (
            line.partition(":") for line in (lines if isinstance(lines, str) else "").splitlines()
        )
        known = {name.strip(): value.strip() for name, _, value in pairs}
        words = (
            known.get("Model", "unknown model"),
            known.get("GPU UUID", ""),
            f"bus {entry.name}",
        )
        value = lines if isinstance(lines, Unknown) else ", ".join(word for word in words if word)
        yield local_fact(f"GPU {known.get('Device Minor', '?')}", value, str(origin))


_GPU_FACT = re.compile(r"GPU \d+: (?!unknown)([^,]+)")


def gpu_models(facts: Iterable[str]) -> str:
    """Return the models of GPUs in the texts of :func:`host_facts`, each once; empty without."""
    models = {match[1] for fact in facts if (match := _GPU_FACT.match(fact))}
    return " and ".join(sorted(models))
