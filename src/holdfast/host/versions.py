"""Versions of the software of a training job, read from files; nothing is imported or run.

The folders on ``sys.path`` are listed once; importlib.metadata would take longer than all of this
together.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import holdfast
from holdfast.core.findings import Fact, Unknown
from holdfast.host.host_summary import local_fact
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

#: Packages whose versions matter to a distributed job, by the names of their folders.
_PACKAGES = tuple(
    """
    numpy triton deepspeed accelerate lightning pytorch_lightning transformers megatron_core
    """.split()
)
_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>[^-]+?)(-[^/]*)?\.(dist|egg)-info")
_DRIVER = re.compile(r"\s(\d{3,4}\.\d+(?:\.\d+)?)\s")
_VARIABLE = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)


def installed_versions(
    path: Sequence[str] | None = None, proc_root: Path = PROC
) -> tuple[Fact, ...]:
    """Return versions of Python, holdfast, torch, NCCL, the driver, the kernel and libraries.

    ``path``: folders of packages, ``sys.path`` by default.
    """
    folders = [Path(folder) for folder in (sys.path if path is None else path) if folder]
    packages = _installed(folders)
    system = os.uname()
    return (
        local_fact(
            "Python",
            f"{platform.python_version()} ({platform.python_implementation()})",
            sys.executable,
        ),
        local_fact("holdfast", holdfast.__version__, str(Path(holdfast.__file__).parent)),
        *_torch(folders, packages),
        _nccl(packages),
        _driver(proc_root),
        local_fact("kernel", f"{system.sysname} {system.release} {system.machine}", "uname"),
        local_fact("C library", _c_library(), "confstr"),
        *_others(packages),
    )


def nccl_and_torch(path: Sequence[str] | None = None) -> tuple[str, str]:
    """Return the versions of the installed packages of NCCL and torch, "" if not installed.

    Nothing is imported.
    """
    packages = _installed(Path(folder) for folder in (sys.path if path is None else path) if folder)
    nccl = max((name for name in packages if name.startswith("nvidia_nccl_cu")), default="")
    return packages[nccl][0] if nccl else "", packages["torch"][0] if "torch" in packages else ""


def installed(folders: Iterable[Path]) -> dict[str, list[tuple[str, str]]]:
    """Map packages to versions and metadata folders, in path order."""
    packages: dict[str, list[tuple[str, str]]] = {}
    for folder in folders:
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except OSError:
            continue
        for name in names:
            match = _INSTALLED.fullmatch(name)
            if match:
                key = match["name"].lower().replace(".", "_")
                packages.setdefault(key, []).append((match["version"], f"{folder}/{name}"))
    return packages


def _installed(folders: Iterable[Path]) -> dict[str, tuple[str, str]]:
    return {name: versions[0] for name, versions in installed(folders).items()}


def _torch(folders: Iterable[Path], packages: dict[str, tuple[str, str]]) -> Iterator[Fact]:
    """Read torch/version.py, which also has the CUDA version of the build and the commit."""
    file = next(
        (file for folder in folders if (file := folder / "torch/version.py").is_file()), None
    )
    content = proc.read_text(file) if file is not None else Unknown("")
    if isinstance(content, Unknown):
        version, origin = packages.get("torch", ("not installed", "sys.path"))
        yield local_fact("torch", version, origin)
        return
    values = dict(_VARIABLE.findall(content))
    version = values.get("__version__") or packages.get("torch", ("unknown version", ""))[0]
    yield local_fact("torch", version, str(file))
    built = [
        f"{name} {values[key]}"
        for key, name in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU"))
        if key in values
    ]
    yield local_fact("torch is built for", ", ".join(built) or "CPU only", str(file))
    if "git_version" in values:
        yield local_fact("torch commit", values["git_version"], str(file))


def _nccl(packages: dict[str, tuple[str, str]]) -> Fact:
    name = max((name for name in packages if name.startswith("nvidia_nccl_cu")), default="")
    if not name:
        text = "not installed as a package (torch may bundle it)"
        return local_fact("NCCL", text, "sys.path")
    version, origin = packages[name]
    return local_fact("NCCL", f"{version} ({name.replace('_', '-')})", origin)


def _driver(proc_root: Path) -> Fact:
    file = proc_root / "driver/nvidia/version"
    content = proc.read_text(file)
    if isinstance(content, proc.ProcessGone):
        return local_fact("NVIDIA driver", "not loaded", str(file))
    if isinstance(content, Unknown):
        return local_fact("NVIDIA driver", content, str(file))
    match = _DRIVER.search(content.partition("\n")[0] + " ")
    return local_fact(
        "NVIDIA driver", match[1] if match else Unknown(f"{content[:80]!r}"), str(file)
    )


def _c_library() -> str | Unknown:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or Unknown("no version reported")
    except (ValueError, OSError):
        return Unknown("not glibc")


def _others(packages: dict[str, tuple[str, str]]) -> Iterator[Fact]:
    for name in _PACKAGES:
        if name in packages:
            version, origin = packages[name]
            yield local_fact(name.replace("_", "-"), version, origin)
