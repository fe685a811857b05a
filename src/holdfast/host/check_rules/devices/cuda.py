"""Judges whether driver, CUDA, torch and NCCL are compatible."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.nccl_version_mismatch import NCCL_VERSION_MISMATCH
from holdfast.causes.gpu.cuda_driver_mismatch import CUDA_DRIVER_MISMATCH
from holdfast.causes.remedies import automatic
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices.cuda import CudaResult

#: CUDA's major version -> the first driver that runs it (docs.nvidia.com/deploy/cuda-compatibility,
#: table 1).
FIRST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
_OTHER_TORCH = (
    automatic(
        "Install torch for the CUDA version of this driver (see pytorch.org/get-started).",
        "python -c 'import torch; print(torch.version.cuda)'",
    ),
)


def judge(result: CudaResult, _context: CheckContext) -> Iterator[Finding]:
    """Judge first whether torch supports these GPUs at all, then versions."""
    if result.torch is not None:
        if result.nvidia and result.cuda is None:
            built = f"ROCm {result.rocm}" if result.rocm else "CPU only"
            yield make_finding(
                CUDA_DRIVER_MISMATCH,
                f"torch {result.torch} is built for {built}: it will not use the {result.nvidia} "
                "NVIDIA GPUs of this host",
                evidence=result.facts(),
                remedies=_OTHER_TORCH,
            )
        elif result.amd and not result.nvidia and result.rocm is None:
            yield make_finding(
                CUDA_DRIVER_MISMATCH,
                f"torch {result.torch} is not built for ROCm: it will not use the {result.amd} AMD "
                "GPUs of this host",
                level=Level.WARNING,
                evidence=result.facts(),
                confidence=0.8,
            )
    yield from _judge_driver(result)
    yield from _judge_nccl(result)


def _judge_driver(result: CudaResult) -> Iterator[Finding]:
    if not isinstance(result.module, str):
        return
    first = FIRST_DRIVER.get(version_numbers(result.cuda)[0]) if result.cuda else None
    if first is not None and version_numbers(result.module) < first:
        compat = ": only the CUDA compat package can help" if result.has_compat else ""
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"torch is built for CUDA {result.cuda}, which needs driver "
            f"{'.'.join(map(str, first))} or newer; driver {result.module} is loaded{compat}",
            level=Level.WARNING if result.has_compat else Level.ERROR,
            evidence=result.facts(),
        )
    if result.library and result.module not in result.library:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"kernel driver {result.module} and driver library {', '.join(result.library)} differ: "
            "every CUDA call fails until a reboot",
            evidence=result.facts(),
            confidence=0.9,
        )


def _judge_nccl(result: CudaResult) -> Iterator[Finding]:
    current, required = result.nccl, result.nccl_required
    if current is None or required is None or current == required:
        return
    older = version_numbers(current[1]) < version_numbers(required[1]) or current[0] != required[0]
    installed, wanted = ("{1} (CUDA {0})".format(*pair) for pair in (current, required))
    yield make_finding(
        NCCL_VERSION_MISMATCH,
        f"torch requires NCCL {wanted}, but {installed} is installed",
        level=Level.WARNING if older else Level.NOTE,
        evidence=result.facts(),
        confidence=0.7,
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse ``580.65.06`` into comparable numbers; (0,) if there are none."""
    return tuple(int(part) for part in version.split(".") if part.isascii() and part.isdigit()) or (
        0,
    )
