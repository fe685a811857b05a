"""The precision that all ranks support in hardware, independent of GPU names."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.precision import (
    PrecisionSupport,
    agree_precision,
    choose_precision,
    nvidia_support,
    precision_support,
)
from tests.unit.training.collectives.ranks import run

A100, H100, T4, V100, P100 = (
    nvidia_support(name, capability)
    for name, capability in [
        ("A100", (8, 0)),
        ("H100", (9, 0)),
        ("T4", (7, 5)),
        ("V100", (7, 0)),
        ("P100", (6, 0)),
    ]
)
#: Expected reasons.
T4_BF16, V100_BF16, P100_BF16 = (
    f"lacks it (compute capability {has}; bf16 requires 8.0)" for has in (7.5, 7.0, 6.0)
)
P100_FP16 = "lacks it (compute capability 6.0; fp16 at full speed requires 7.0)"
CPU = PrecisionSupport("cpu", "none", "none")


@pytest.mark.parametrize(
    ("want", "ranks", "name", "why"),
    [
        ("bf16", [A100, H100], "bf16", "bf16: every rank supports it in hardware"),
        (
            "bf16",
            [A100, A100, V100, V100],
            "fp16",
            f"fp16 with loss scaling: bf16 is unavailable: ranks 2-3 {V100_BF16.replace('lacks', 'lack')}",
        ),
        (
            "bf16",
            [T4, A100],
            "fp16",
            f"fp16 with loss scaling: bf16 is unavailable: rank 0 {T4_BF16}",
        ),
        (
            "bf16",
            [A100, P100],
            "fp32",
            f"fp32: bf16 is unavailable: rank 1 {P100_BF16}; fp16 is unavailable: rank 1 {P100_FP16}",
        ),
        (
            "bf16",
            [A100, V100, CPU],
            "fp32",
            f"fp32: bf16 is unavailable: rank 1 {V100_BF16}, and rank 2 lacks it (none); fp16 is unavailable: rank 2 lacks it (none)",
        ),
        ("fp16", [A100, V100], "fp16", "fp16 with loss scaling: as requested"),
        ("fp16", [CPU], "fp32", "fp32: fp16 is unavailable: rank 0 lacks it (none)"),
        ("fp32", [A100], "fp32", "fp32: as requested"),
    ],
)
def test_the_best_precision_supported_by_all_ranks(want, ranks, name, why):
    result = choose_precision(want, dict(enumerate(ranks)))
    assert (result.name, result.why) == (name, why)
    assert result.scaler == (name == "fp16")
    assert (
        result.dtype is {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
    )


def test_a_gpu_that_emulates_bf16_does_not_support_it():
    """torch reports is_bf16_supported() as True on a T4, which only emulates bf16."""
    with (
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(7, 5)),
        mock.patch("torch.cuda.get_device_name", return_value="NVIDIA A100 (so they say)"),
    ):
        result = precision_support(torch.device("cuda", 0))
    assert result.lacks_bf16 == "compute capability 7.5; bf16 requires 8.0"
    assert not result.lacks_fp16


@pytest.mark.parametrize(
    ("architecture", "has"), [("gfx90a:sramecc+:xnack-", True), ("gfx942", True), ("gfx906", False)]
)
def test_amd_capability_numbers_differ_from_nvidias(architecture, has):
    with (
        mock.patch.object(torch.version, "hip", "7.0"),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        mock.patch("torch.cuda.get_device_name", return_value="AMD"),
        mock.patch(
            "torch.cuda.get_device_properties", return_value=mock.Mock(gcnArchName=architecture)
        ),
    ):
        assert (not precision_support(torch.device("cuda", 0)).lacks_bf16) == has


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
        ({"avx512_f": True, "amx_bf16": False}, False),
    ],
)
def test_cpu_bf16_support_depends_on_its_instructions(flags, has):
    with mock.patch("torch.cpu.get_capabilities", return_value=flags, create=True):
        assert (not precision_support(torch.device("cpu")).lacks_bf16) == has


def test_unknown_device_has_no_support():
    assert "is unknown" in precision_support(torch.device("meta")).lacks_bf16


def agrees(rank, wants):
    with mock.patch(
        "torch.cpu.get_capabilities", return_value={"avx512_bf16": rank == 0}, create=True
    ):
        try:
            return holdfast.agree_precision(wants[rank], device="cpu")
        except InvalidValue as error:
            return str(error)


@pytest.mark.slow
def test_every_rank_gets_the_same_precision(tmp_path: Path):
    first, second = run(2, agrees, tmp_path, ["bf16", "bf16"])
    assert first == second
    assert first.name == "fp32"
    assert (
        "bf16 is unavailable: rank 1 lacks it (its CPU has neither AMX nor AVX512_BF16" in first.why
    )


@pytest.mark.slow
def test_different_requests_are_rejected_on_all_ranks(tmp_path: Path):
    first, second = run(2, agrees, tmp_path, ["bf16", "fp61"])
    assert first == second
    assert "ranks request bf16 and fp61" in first


def test_an_unknown_precision_is_rejected_and_fp32_has_no_scaler():
    with pytest.raises(InvalidValue, match="use bf16, fp16 or fp32"):
        agree_precision("float16")
    assert not agree_precision("fp32").grad_scaler("cpu").is_enabled()


def overflows(rank: int) -> tuple[bool, float]:
    """Run an FSDP2 step with infinite gradients on rank 1; return whether weights are unchanged, and the new scale."""
    model = fully_shard(torch.nn.Linear(8, 8), mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = model.weight.to_local().detach().clone()
    scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
    if rank == 1:
        model.weight.grad.to_local().fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    return torch.equal(before, model.weight.to_local()), scaler.get_scale()


@pytest.mark.slow
def test_scaler_skips_a_step_on_all_ranks_of_fsdp2(tmp_path: Path):
    """See docs/heterogeneous.md; DDP ranks have equal gradients anyway."""
    assert run(2, overflows, tmp_path) == [(True, 2.0), (True, 2.0)]
