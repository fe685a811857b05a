"""The precision in which all ranks compute: the best that each of them has in hardware, and why.

Asked is what the hardware can do, never its name. ``torch.cuda.is_bf16_supported()`` counts emulation by default and
says yes on a T4 and a V100 (pytorch issue 148322): bfloat16 is in NVIDIA's tensor cores from compute capability 8.0 on
(CUDA programming guide, arithmetic instructions), float16 at full rate from 7.0 on.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
import torch.distributed as dist

from holdfast.errors import BadValue
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.hetero.speeds import device_of, name_of
from holdfast.runtime.hetero.telling import everyone, ranks_of

Name = Literal["bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_BF16_FROM, _FP16_FROM = (8, 0), (7, 0)
#: AMD's with matrix instructions for both (CDNA from gfx908, RDNA from gfx1100 on); capability numbers differ there.
_AMD = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")


class Ability(msgspec.Struct, frozen=True):
    """What one rank's device computes in at speed: for each of bf16 and fp16 empty, or why it does not."""

    device: str
    lacks_bf16: str = ""
    lacks_fp16: str = ""


class _Told(msgspec.Struct, frozen=True):
    want: str
    ability: Ability


class Agreed(msgspec.Struct, frozen=True):
    """What all ranks compute in, in the same words on each of them. ``scaler``: float16 needs its losses scaled."""

    name: Name
    scaler: bool
    why: str

    @property
    def dtype(self) -> torch.dtype:
        """For ``torch.autocast`` or a policy of mixed precision."""
        return _DTYPES[self.name]

    def grad_scaler(self, device: str = "cuda") -> torch.amp.GradScaler:
        """A scaler that does nothing where none is needed."""
        return torch.amp.GradScaler(device, enabled=self.scaler)


def agree_precision(
    want: Name = "bf16",
    *,
    device: torch.device | str | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> Agreed:
    """The precision for all ranks of ``group``: ``want`` where all have it, else float16 with a scaler, or float32.

    bfloat16 is taken where every rank's GPU has compute capability 8.0 or more (or AMD's matrix instructions for it),
    or its processor AMX or AVX512_BF16; float16 on GPUs of 7.0 or more. All ranks call it; ``why`` names the ranks that
    lack it, and what they lack.

    Raises:
        BadValue: ``want`` is none of bf16, fp16, fp32, on some rank.
        CollectiveTimeout, CollectiveFailed, GroupBroken: the ranks did not come together.
    """
    told = everyone(_Told(str(want), ability(device_of(device))), _Told, group, timeout=timeout)
    wanted = sorted({each.want for each in told})
    if wanted != [want] or want not in _DTYPES:
        raise BadValue("the precision", why=f"ranks want {' and '.join(wanted)}, and all have to want the same",
                       next_step="take bf16, fp16 or fp32")  # fmt: skip
    return decide(want, {rank: each.ability for rank, each in zip(ranks_of(group), told, strict=True)})


def decide(want: Name, ranks: dict[int, Ability]) -> Agreed:
    """What ranks of such abilities agree on."""
    no_bf16 = _lacking({rank: each.lacks_bf16 for rank, each in ranks.items()})
    no_fp16 = _lacking({rank: each.lacks_fp16 for rank, each in ranks.items()})
    if want == "bf16" and not no_bf16:
        return Agreed("bf16", scaler=False, why="bf16: every rank has it in hardware")
    if want == "fp32":
        return Agreed("fp32", scaler=False, why="fp32: it was asked for")
    if not no_fp16:
        instead = "it was asked for" if want == "fp16" else f"not bf16, as {no_bf16}"
        return Agreed("fp16", scaler=True, why=f"fp16 with scaled losses: {instead}")
    if want == "fp16":
        return Agreed("fp32", scaler=False, why=f"fp32: not fp16, as {no_fp16}")
    return Agreed("fp32", scaler=False, why=f"fp32: not bf16, as {no_bf16}; nor fp16, as {no_fp16}")


def _lacking(reasons: dict[int, str]) -> str:
    """``ranks 2-3 have capability 7.0, and bf16 begins at 8.0``, for each reason; empty where no rank has one."""
    by_reason: dict[str, list[int]] = {}
    for rank, reason in reasons.items():
        if reason:
            by_reason.setdefault(reason, []).append(rank)
    return ", and ".join(f"{say_ranks(tuple(ranks))} lack{'s' * (len(ranks) == 1)} it ({reason})"
                         for reason, ranks in by_reason.items())  # fmt: skip


def ability(device: torch.device) -> Ability:
    """What this device has in hardware; what is not known is not taken for granted."""
    name = name_of(device)
    if device.type == "cuda" and torch.version.hip:
        architecture = str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
        lacks = "" if architecture.startswith(_AMD) else f"{architecture} has no matrix instructions for it"
        return Ability(name, lacks, lacks)
    if device.type == "cuda":
        return of_capability(name, torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        bf16 = "" if _cpu_has_bf16() else "its processor has neither AMX nor AVX512_BF16, and would emulate it slowly"
        return Ability(name, bf16, "a processor computes float16 slowly, or not at all")
    unknown = f"what a device of type {device.type!r} has is not known"
    return Ability(name, unknown, unknown)


def of_capability(name: str, capability: tuple[int, int]) -> Ability:
    """An NVIDIA GPU of this compute capability."""
    has = "{}.{}".format(*capability)
    return Ability(
        name,
        "" if capability >= _BF16_FROM else f"compute capability {has}, and bf16 begins at 8.0",
        "" if capability >= _FP16_FROM else f"compute capability {has}, and fp16 at full speed begins at 7.0",
    )


def _cpu_has_bf16() -> bool:
    """Instructions for bfloat16, as torch's own look at the processor found them."""
    asked = getattr(torch.cpu, "get_capabilities", None)
    if asked is None:  # torch before 2.11
        return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001 - there was no public way
    found = asked()
    return any(bool(found.get(name)) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))
