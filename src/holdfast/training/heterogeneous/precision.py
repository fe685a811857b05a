"""The precision for all ranks: the best that each supports in hardware, and why.

Decided by hardware capability, never by device name. ``torch.cuda.is_bf16_supported()`` includes
emulation by default and returns True on a T4 and a V100 (pytorch issue 148322): NVIDIA tensor cores
support bfloat16 from compute capability 8.0 (CUDA programming guide, arithmetic instructions),
float16 at full rate from 7.0.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.heterogeneous.exchange import exchange_values, ranks_of
from holdfast.training.heterogeneous.speed_probe import device_name, device_of

PrecisionName = Literal["bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_BF16_CAPABILITY, _FP16_CAPABILITY = (8, 0), (7, 0)
#: AMD architectures with matrix instructions for both (CDNA from gfx908, RDNA from gfx1100); their
#: capability numbers differ.
_AMD_ARCHITECTURES = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")


class PrecisionSupport(msgspec.Struct, frozen=True):
    """What one rank's device supports at full speed: per format empty, or why not."""

    device: str
    lacks_bf16: str = ""
    lacks_fp16: str = ""


class _RankPrecision(msgspec.Struct, frozen=True):
    want: str
    ability: PrecisionSupport


class AgreedPrecision(msgspec.Struct, frozen=True):
    """What all ranks compute in, the same on each; ``scaler``: float16 needs loss scaling."""

    name: PrecisionName
    scaler: bool
    why: str

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype for ``torch.autocast`` or a mixed-precision policy."""
        return _DTYPES[self.name]

    def grad_scaler(self, device: str = "cuda") -> torch.amp.GradScaler:
        """Return a gradient scaler, disabled if none is needed."""
        return torch.amp.GradScaler(device, enabled=self.scaler)


@suggest_keywords
def agree_precision(
    want: PrecisionName = "bf16",
    *,
    device: torch.device | str | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> AgreedPrecision:
    """Return the precision for ``group``: ``want`` if all support it, else float16 or float32.

    float16 comes with a scaler. bfloat16 is used if every rank's GPU has compute capability 8.0 or
    more (or AMD's matrix instructions for it), or its CPU has AMX or AVX512_BF16; float16 on GPUs
    of 7.0 or more. All ranks call this; ``why`` names the ranks without support, and what they
    lack.

    Raises:
        InvalidValue: ``want`` is not bf16, fp16 or fp32, on some rank, or differs between ranks.
        CollectiveTimeout, CollectiveFailed, GroupBroken: the exchange failed.
    """
    answers = exchange_values(
        _RankPrecision(str(want), precision_support(device_of(device))),
        _RankPrecision,
        group,
        timeout=timeout,
    )
    requests = sorted({each.want for each in answers})
    if requests != [want] or want not in _DTYPES:
        raise InvalidValue(
            "the precision",
            why=f"ranks request {' and '.join(requests)}, but all must request the same",
            next_step="use bf16, fp16 or fp32",
        )
    return choose_precision(
        want, {rank: each.ability for rank, each in zip(ranks_of(group), answers, strict=True)}
    )


def choose_precision(want: PrecisionName, ranks: dict[int, PrecisionSupport]) -> AgreedPrecision:
    """Return what ranks with this support agree on."""
    no_bf16 = _describe_missing({rank: each.lacks_bf16 for rank, each in ranks.items()})
    no_fp16 = _describe_missing({rank: each.lacks_fp16 for rank, each in ranks.items()})
    if want == "bf16" and not no_bf16:
        return AgreedPrecision("bf16", scaler=False, why="bf16: every rank supports it in hardware")
    if want == "fp32":
        return AgreedPrecision("fp32", scaler=False, why="fp32: as requested")
    if not no_fp16:
        reason = "as requested" if want == "fp16" else f"bf16 is unavailable: {no_bf16}"
        return AgreedPrecision("fp16", scaler=True, why=f"fp16 with loss scaling: {reason}")
    if want == "fp16":
        return AgreedPrecision("fp32", scaler=False, why=f"fp32: fp16 is unavailable: {no_fp16}")
    return AgreedPrecision(
        "fp32",
        scaler=False,
        why=f"fp32: bf16 is unavailable: {no_bf16}; fp16 is unavailable: {no_fp16}",
    )


def _describe_missing(reasons: dict[int, str]) -> str:
    """Describe which ranks lack a format, grouped by reason; empty if none does."""
    by_reason: dict[str, list[int]] = {}
    for rank, reason in reasons.items():
        if reason:
            by_reason.setdefault(reason, []).append(rank)
    return ", and ".join(
        f"{describe_ranks(tuple(ranks))} lack{'s' * (len(ranks) == 1)} it ({reason})"
        for reason, ranks in by_reason.items()
    )


def precision_support(device: torch.device) -> PrecisionSupport:
    """Return what this device supports; unknown devices count as without support."""
    name = device_name(device)
    if device.type == "cuda" and torch.version.hip:
        architecture = str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        lacks = (
            ""
            if architecture.startswith(_AMD_ARCHITECTURES)
            else f"{architecture} has no matrix instructions for it"
        )
        return PrecisionSupport(name, lacks, lacks)
    if device.type == "cuda":
        return nvidia_support(name, torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        bf16 = (
            ""
            if _cpu_has_bf16()
            else "its CPU has neither AMX nor AVX512_BF16, and would emulate it slowly"
        )
        return PrecisionSupport(name, bf16, "CPUs compute float16 slowly, or not at all")
    unknown = f"support of device type {device.type!r} is unknown"
    return PrecisionSupport(name, unknown, unknown)


def nvidia_support(name: str, capability: tuple[int, int]) -> PrecisionSupport:
    """Return the support of an NVIDIA GPU of this compute capability."""
    version = "{}.{}".format(*capability)
    return PrecisionSupport(
        name,
        ""
        if capability >= _BF16_CAPABILITY
        else f"compute capability {version}; bf16 requires 8.0",
        ""
        if capability >= _FP16_CAPABILITY
        else f"compute capability {version}; fp16 at full speed requires 7.0",
    )


def _cpu_has_bf16() -> bool:
    """Return whether the CPU has bfloat16 instructions, according to torch."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    if get_capabilities is None:  # torch before 2.11
        return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001 - no public function then
    capabilities = get_capabilities()
    return any(
        bool(capabilities.get(name)) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
    )
