"""What this host is: processors, memory and their limits, shared memory, container, GPUs. Read from /proc and /sys.

It costs a few ms, cheap enough for every start of a run. What cannot be seen is said to be unknown, with the reason.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.facts import cgroups, proc
from holdfast.facts.cgroups import CGROUPS
from holdfast.facts.proc import PROC
from holdfast.findings import Fact, Unknown
from holdfast.report.ranksets import compress_ranks

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place itself, not a file in it
MOST_GPUS = 64
_GIB = 1 << 30
#: What a container leaves in the root folder, and what words it leaves in the control group of its first process.
_CONTAINER_MARKS = {".dockerenv": "Docker", "run/.containerenv": "Podman", ".singularity.d": "Singularity or Apptainer"}
_CONTAINER_WORDS = ("kubepods", "docker", "containerd", "libpod", "lxc", "enroot")


def seen_here(name: str, value: str | Unknown, origin: str) -> Fact:
    """A fact of this host, now: ``name: value``, or ``name: unknown (why)``."""
    said = f"unknown ({value.why})" if isinstance(value, Unknown) else value
    return Fact(text=f"{name}: {said}", origin=origin, host=os.uname().nodename, time=time.time())


def host_facts(proc_root: Path = PROC, cgroups_root: Path = CGROUPS, root: Path = Path("/")) -> tuple[Fact, ...]:
    """What this host is, as far as this process may see it."""
    return (
        seen_here("host name", os.uname().nodename, "uname"),
        _from_file("boot id", proc_root / "sys/kernel/random/boot_id"),
        _processors(),
        _processor_limit(proc_root, cgroups_root),
        _memory(proc_root),
        _memory_limit(proc_root, cgroups_root),
        _shared_memory(root / SHARED_MEMORY.relative_to("/")),
        seen_here("lockable memory", _limit(resource.RLIMIT_MEMLOCK, 1 << 20, " MiB"), "getrlimit"),
        seen_here("open files", _limit(resource.RLIMIT_NOFILE, 1, ""), "getrlimit"),
        _load(proc_root),
        _container(proc_root, root),
        *_gpus(proc_root),
    )


def _from_file(name: str, path: Path) -> Fact:
    content = proc.text(path)
    return seen_here(name, content if isinstance(content, Unknown) else content.strip(), str(path))


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"


def _processors() -> Fact:
    usable = os.sched_getaffinity(0)
    text = f"{os.cpu_count()} in the host, {len(usable)} for this process ({compress_ranks(usable, limit=16)})"
    return seen_here("processors", text, "sched_getaffinity")


def _processor_limit(proc_root: Path, cgroups_root: Path) -> Fact:
    group = cgroups.of("self", "cpu", proc_root, cgroups_root)
    if isinstance(group, Unknown):
        return seen_here("processor quota", group, "/proc/self/cgroup")
    limit = cgroups.cpu_limit(group)
    return seen_here("processor quota", "none" if isinstance(limit, Unknown) else f"{limit:g} cores", str(group.folder))


def _memory(proc_root: Path) -> Fact:
    origin = proc_root / "meminfo"
    found = proc.fields(origin)
    if isinstance(found, Unknown):
        return seen_here("memory", found, str(origin))
    try:
        total, free = (int(found[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return seen_here("memory", Unknown("it is not what Linux writes"), str(origin))
    return seen_here("memory", f"{_gib(total)}, {_gib(free)} available", str(origin))


def _memory_limit(proc_root: Path, cgroups_root: Path) -> Fact:
    group = cgroups.of("self", "memory", proc_root, cgroups_root)
    if isinstance(group, Unknown):
        return seen_here("memory limit", group, "/proc/self/cgroup")
    limit = cgroups.memory_limit(group)
    if isinstance(limit, Unknown):
        return seen_here("memory limit", "none", str(group.folder))
    use = "" if isinstance(limit.used_bytes, Unknown) else f", {_gib(limit.used_bytes)} in use"
    return seen_here("memory limit", _gib(limit.limit_bytes) + use, str(limit.folder))


def _shared_memory(folder: Path) -> Fact:
    try:
        seen = os.statvfs(folder)
    except OSError as error:
        return seen_here("shared memory", Unknown(f"{folder}: {error.strerror}"), str(folder))
    text = f"{_gib(seen.f_blocks * seen.f_frsize)}, {_gib(seen.f_bavail * seen.f_frsize)} free"
    return seen_here("shared memory", text, str(folder))


def _limit(which: int, unit: int, word: str) -> str:
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / unit:.10g}{word}"


def _load(proc_root: Path) -> Fact:
    content = proc.text(proc_root / "loadavg")
    value = content if isinstance(content, Unknown) else " ".join(content.split()[:3])
    return seen_here("load over 1, 5, 15 minutes", value, str(proc_root / "loadavg"))


def container_of(proc_root: Path = PROC, root: Path = Path("/")) -> tuple[str, str]:
    """What kind of container this is, by the marks that they leave (empty where none shows), and where it shows."""
    for mark, name in _CONTAINER_MARKS.items():
        if (root / mark).exists():
            return name, str(root / mark)
    groups = proc.text(proc_root / "1/cgroup")
    word = next((word for word in _CONTAINER_WORDS if isinstance(groups, str) and word in groups), None)
    return (word, "/proc/1/cgroup") if word is not None else ("", "/, /proc/1/cgroup")


def _container(proc_root: Path, root: Path) -> Fact:
    name, origin = container_of(proc_root, root)
    return seen_here("container", name or "none that shows", origin)


def _gpus(proc_root: Path) -> Iterator[Fact]:
    """NVIDIA's driver names its GPUs here; neither NVML nor a context is needed."""
    folder = proc_root / "driver/nvidia/gpus"
    try:
        entries = sorted(folder.iterdir())[:MOST_GPUS]
    except OSError:
        entries = []
    if not entries:
        yield seen_here("GPUs", "none by the NVIDIA driver", str(folder))
    for entry in entries:
        origin = entry / "information"
        lines = proc.text(origin)
        pairs = (line.partition(":") for line in (lines if isinstance(lines, str) else "").splitlines())
        known = {name.strip(): value.strip() for name, _, value in pairs}
        words = (known.get("Model", "unknown model"), known.get("GPU UUID", ""), f"bus {entry.name}")
        value = lines if isinstance(lines, Unknown) else ", ".join(word for word in words if word)
        yield seen_here(f"GPU {known.get('Device Minor', '?')}", value, str(origin))
