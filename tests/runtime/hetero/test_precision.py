"""The precision that all ranks have in hardware, whatever their GPUs are called."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.errors import BadValue
from holdfast.runtime.hetero.precision import Ability, ability, agree_precision, decide, of_capability
from tests.runtime.comm.ranks import run

A100, H100, T4, V100, P100 = (
    of_capability(name, capability)
    for name, capability in
    [("A100", (8, 0)), ("H100", (9, 0)), ("T4", (7, 5)), ("V100", (7, 0)), ("P100", (6, 0))]
)  # fmt: skip
#: What is said of them.
T4_BF16, V100_BF16, P100_BF16 = (
    f"lacks it (compute capability {has}, and bf16 begins at 8.0)" for has in (7.5, 7.0, 6.0)
)
P100_FP16 = "lacks it (compute capability 6.0, and fp16 at full speed begins at 7.0)"
CPU = Ability("cpu", "none", "none")


@pytest.mark.parametrize(
    ("want", "ranks", "name", "why"),
    [
        ("bf16", [A100, H100], "bf16", "bf16: every rank has it in hardware"),
        ("bf16", [A100, A100, V100, V100], "fp16",
         f"fp16 with scaled losses: not bf16, as ranks 2-3 {V100_BF16.replace('lacks', 'lack')}"),
        ("bf16", [T4, A100], "fp16", f"fp16 with scaled losses: not bf16, as rank 0 {T4_BF16}"),
        ("bf16", [A100, P100], "fp32", f"fp32: not bf16, as rank 1 {P100_BF16}; nor fp16, as rank 1 {P100_FP16}"),
        ("bf16", [A100, V100, CPU], "fp32",
         f"fp32: not bf16, as rank 1 {V100_BF16}, and rank 2 lacks it (none); nor fp16, as rank 2 lacks it (none)"),
        ("fp16", [A100, V100], "fp16", "fp16 with scaled losses: it was asked for"),
        ("fp16", [CPU], "fp32", "fp32: not fp16, as rank 0 lacks it (none)"),
        ("fp32", [A100], "fp32", "fp32: it was asked for"),
    ],
)  # fmt: skip
def test_the_best_that_all_ranks_have(want, ranks, name, why):
    found = decide(want, dict(enumerate(ranks)))
    assert (found.name, found.why) == (name, why)
    assert found.scaler == (name == "fp16")
    assert found.dtype is {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]


def test_a_gpu_that_says_it_supports_bf16_and_emulates_it_does_not():
    """As torch says of a T4: is_bf16_supported() is True there."""
    with (
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(7, 5)),
        mock.patch("torch.cuda.get_device_name", return_value="NVIDIA A100 (so they say)"),
    ):
        found = ability(torch.device("cuda", 0))
    assert found.lacks_bf16 == "compute capability 7.5, and bf16 begins at 8.0"
    assert not found.lacks_fp16


@pytest.mark.parametrize(
    ("architecture", "has"), [("gfx90a:sramecc+:xnack-", True), ("gfx942", True), ("gfx906", False)]
)
def test_amds_numbers_are_not_nvidias(architecture, has):
    with (
        mock.patch.object(torch.version, "hip", "7.0"),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        mock.patch("torch.cuda.get_device_name", return_value="AMD"),
        mock.patch("torch.cuda.get_device_properties", return_value=mock.Mock(gcnArchName=architecture)),
    ):
        assert (not ability(torch.device("cuda", 0)).lacks_bf16) == has


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
        ({"avx512_f": True, "amx_bf16": False}, False),
    ],
)
def test_a_processor_has_it_by_its_instructions(flags, has):
    with mock.patch("torch.cpu.get_capabilities", return_value=flags, create=True):
        assert (not ability(torch.device("cpu")).lacks_bf16) == has


def test_of_an_unknown_device_nothing_is_assumed():
    assert "not known" in ability(torch.device("meta")).lacks_bf16


def agrees(rank, wants):
    with mock.patch("torch.cpu.get_capabilities", return_value={"avx512_bf16": rank == 0}, create=True):
        try:
            return holdfast.agree_precision(wants[rank], device="cpu")
        except BadValue as error:
            return str(error)


@pytest.mark.slow
def test_every_rank_is_told_the_same(tmp_path: Path):
    first, second = run(2, agrees, tmp_path, ["bf16", "bf16"])
    assert first == second
    assert first.name == "fp32"
    assert "not bf16, as rank 1 lacks it (its processor has neither AMX nor AVX512_BF16" in first.why


@pytest.mark.slow
def test_ranks_that_want_different_ones_are_all_refused(tmp_path: Path):
    first, second = run(2, agrees, tmp_path, ["bf16", "fp61"])
    assert first == second
    assert "ranks want bf16 and fp61" in first


def test_one_that_nobody_knows_is_refused_and_fp32_has_no_scaler():
    with pytest.raises(BadValue, match="take bf16, fp16 or fp32"):
        agree_precision("float16")
    assert not agree_precision("fp32").grad_scaler("cpu").is_enabled()


def overflows(rank: int) -> tuple[bool, float]:
    """A step of FSDP2 in which the gradients of rank 1's shard are infinite: were weights left, and the new scale."""
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
def test_a_scaler_leaves_a_step_out_on_all_ranks_of_fsdp2(tmp_path: Path):
    """As docs/heterogeneous.md says; DDP's ranks have the same gradients anyway."""
    assert run(2, overflows, tmp_path) == [(True, 2.0), (True, 2.0)]
