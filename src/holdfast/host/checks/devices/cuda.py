"""Versions of driver, CUDA, torch and NCCL, read from files; nothing is imported or run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.core.findings import Fact, Unknown
from holdfast.host import pci
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc
from holdfast.host.versions import installed_versions

#: Folders of the driver's libraries, whose names end in the driver's version.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
)
COMPAT_FOLDER = "/usr/local/cuda/compat"
_LIBRARY = re.compile(r"libcuda\.so\.(\d{3}\.[\d.]+)")
_REQUIRED_NCCL = re.compile(
    r"^Requires-Dist: nvidia-nccl-cu(\d+) *[(=]=? *=?([\d.]+)", re.MULTILINE
)
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


class CudaResult(CheckResult, frozen=True, kw_only=True):
    """Versions as text, None where a component is missing.

    ``nvidia`` and ``amd`` count GPUs on the PCI bus. ``cuda`` and ``rocm``: what torch was built
    for. ``module``: the kernel driver; ``library``: versions of its user-space library;
    ``has_compat``: CUDA's forward-compatibility package is installed. ``nccl``: the installed
    package; ``nccl_required``: the one that torch requires; both as (CUDA major version, NCCL
    version).
    """

    nvidia: int = 0
    amd: int = 0
    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    module: str | Unknown | None = None
    library: tuple[str, ...] = ()
    has_compat: bool = False
    nccl: tuple[str, str] | None = None
    nccl_required: tuple[str, str] | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        built = (
            f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "CPU only"
        )
        nccl = "{1} for CUDA {0}".format(*self.nccl) if self.nccl else "no package"
        return (
            check_fact(
                "torch",
                f"{self.torch}, built for {built}" if self.torch else "not installed",
                "torch/version.py",
            ),
            check_fact("GPUs on the PCI bus", f"{self.nvidia} NVIDIA, {self.amd} AMD", pci.DEVICES),
            check_fact("NVIDIA driver", self.module or "not loaded", "/proc/driver/nvidia/version"),
            check_fact("driver library", ", ".join(self.library) or "none found", "libcuda.so"),
            check_fact("NCCL", nccl, "dist-info"),
        )


def inspect(context: CheckContext) -> CudaResult:
    """Read the host's driver, and torch as this Python would import it."""
    devices = pci.pci_devices(context.root)
    gpus = (
        () if isinstance(devices, Unknown) else tuple(device for device in devices if device.is_gpu)
    )
    module = _fact_value(installed_versions([], context.path("/proc")), "NVIDIA driver")
    loaded = None if module == "not loaded" else module
    nvidia = sum(device.vendor == pci.NVIDIA for device in gpus)
    if not gpus and loaded is None:
        return CudaResult(absent="no GPU on this host", **_torch_versions(context))
    return CudaResult(
        nvidia=nvidia,
        amd=len(gpus) - nvidia,
        module=Unknown(f"{module}") if "unknown" in f"{module}" else loaded,
        library=_driver_libraries(context),
        has_compat=any(context.path(COMPAT_FOLDER).glob("libcuda.so*")),
        **_torch_versions(context),
    )


def _fact_value(facts: Sequence[Fact], name: str) -> str:
    prefix = f"{name}: "
    texts = (fact.text for fact in facts if fact.text.startswith(prefix))
    return next(texts, "").removeprefix(prefix)


def _torch_versions(context: CheckContext) -> dict[str, Any]:
    """Return torch's versions as fields, read by host/versions.py.

    A recorded tree is searched for site-packages.
    """
    path = (
        sys.path
        if context.root == "/"
        else [str(folder) for folder in context.path("/").glob("**/site-packages")]
    )
    facts = installed_versions(path, context.path("/proc"))
    torch, built, nccl = (
        _fact_value(facts, name) for name in ("torch", "torch is built for", "NCCL")
    )
    number = _NUMBERS.search(built)
    package = re.fullmatch(r"([\d.]+).*nvidia-nccl-cu(\d+)\)", nccl)
    return {
        "torch": None if torch in ("", "not installed") else torch,
        "cuda": number[0] if number and "CUDA" in built else None,
        "rocm": number[0] if number and "ROCm" in built else None,
        "nccl": (package[2], package[1]) if package else None,
        "nccl_required": _required_nccl(path),
    }


def _required_nccl(path: Sequence[str]) -> tuple[str, str] | None:
    """Return the NCCL that torch's package metadata requires."""
    for folder in path:
        for metadata in sorted(Path(folder or ".").glob("torch-*.dist-info/METADATA")):
            content = proc.read_text(metadata)
            match = _REQUIRED_NCCL.search(content) if isinstance(content, str) else None
            return (match[1], match[2]) if match else None
    return None


def _driver_libraries(context: CheckContext) -> tuple[str, ...]:
    versions = set()
    for folder in LIBRARY_FOLDERS:
        for entry in context.path(folder).glob("libcuda.so.*"):
            match = _LIBRARY.fullmatch(entry.name)
            if match:
                versions.add(match[1])
    return tuple(sorted(versions))
